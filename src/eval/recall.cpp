#include "eval/recall.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "eval/recall_data.h"

namespace hysparse {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Judged {
  bool right;
  double nats;
};

template <class T>
Judged judge(const T* logits, int64_t vocab, int32_t answer) {
  const T* best = std::max_element(logits, logits + vocab);  // equal: the lower id
  double sum = 0;
  for (int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(logits[i] - *best));
  return {best - logits == answer, std::log(sum) + static_cast<double>(*best - logits[answer])};
}

void score_rows(Runtime& rt, Model& model, const std::vector<RecallRow>& rows, RecallResult& result) {
  RaggedBatch batch;
  std::vector<int32_t> ids;
  for (const RecallRow& row : rows) {
    const int64_t begin = batch.tokens();
    batch.add_sequence(std::ssize(row.tokens));
    ids.insert(ids.end(), row.tokens.begin(), row.tokens.end());
    for (const RecallAnswer& a : row.answers) batch.logit_rows.push_back(begin + a.at - 1);
  }
  const auto n = static_cast<int64_t>(ids.size()), wanted = std::ssize(batch.logit_rows);
  const int64_t vocab = model.config().vocab_size;
  const Tensor tokens(DType::i32, {n}, rt.memory);
  rt.memory.from_host(tokens.view().data, ids.data(), tokens.view().bytes());
  const DType a = accumulation_dtype(model.weights().options().compute);
  const Tensor logits(a, {wanted, vocab}, rt.memory);
  TrainKv kv;
  model.forward(rt, batch, tokens, kv, logits);
  const HostCopy host(logits, rt.memory);
  int64_t at = 0;
  for (const RecallRow& row : rows)
    for (const RecallAnswer& answer : row.answers) {
      const int32_t token = row.tokens[static_cast<size_t>(answer.at)];
      const Judged j = a == DType::f64 ? judge(host.view().as<double>() + at * vocab, vocab, token)
                                       : judge(host.view().as<float>() + at * vocab, vocab, token);
      if (std::isnan(j.nats))
        throw failure("recall", "a logit is not a number", "the weights or the computation are broken");
      result.all.add(j.right, j.nats);
      result.by_hops[answer.hops].add(j.right, j.nats);
      ++at;
    }
}

}  // namespace

double RecallScore::accuracy() const {
  return answers > 0 ? static_cast<double>(right) / static_cast<double>(answers) : kNaN;
}
double RecallScore::standard_error() const {
  if (answers == 0) return kNaN;
  const auto n = static_cast<double>(answers);
  const double p = std::clamp(accuracy(), 1.0 / (n + 1), n / (n + 1));
  return std::sqrt(p * (1 - p) / n);
}
double RecallScore::nats_per_answer() const {
  return answers > 0 ? nats / static_cast<double>(answers) : kNaN;
}
void RecallScore::add(bool is_right, double loss) {
  ++answers;
  right += is_right;
  nats += loss;
}

RecallResult evaluate_recall(Runtime& rt, Model& model, const RecallTask& task, const RecallOptions& o) {
  validate_recall_task(task, "recall");
  if (model.config().vocab_size < recall::kVocabulary)
    throw expected_error("vocab_size", fmt::format("at least the {} ids of made tasks", recall::kVocabulary),
                         std::to_string(model.config().vocab_size),
                         "recall measures models that were trained on made tasks");
  if (task.length > model.config().max_position_embeddings)
    throw expected_error(
        "length", fmt::format("at most max_position_embeddings {}", model.config().max_position_embeddings),
        std::to_string(task.length));
  if (o.rows < 1) throw expected_error("samples", "at least 1", std::to_string(o.rows));
  const int64_t step = o.batch > 0 ? o.batch : std::max<int64_t>(1, 16384 / task.length);
  RecallResult result;
  for (int64_t first = 0; first < o.rows; first += step) {
    std::vector<RecallRow> rows;
    for (int64_t i = first; i < std::min(o.rows, first + step); ++i)
      rows.push_back(make_recall_row(task, o.seed, kEvaluationRows + static_cast<uint64_t>(i)));
    score_rows(rt, model, rows, result);
    if (o.progress) o.progress(std::min(o.rows, first + step));
  }
  return result;
}

}  // namespace hysparse
