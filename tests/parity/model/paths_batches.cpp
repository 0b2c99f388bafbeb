// Sequences that share a step do not see each other: packed in training, batched over one cache.
#include <algorithm>
#include <cmath>

#include "engine/paged_kv.h"
#include "paths_common.h"

namespace hysparse::paths {
namespace {

const std::vector<int64_t> kLengths{1, 130, 64, 17, 200};

// In f32 a near-tie may flip a block: there everything is selected, and the selection is tested in f64.
int64_t topk(DType dtype) {
  return dtype == DType::f64 ? 48 : 1024;
}

std::vector<Outcome> each_alone(Subject& subject) {
  std::vector<Outcome> out;
  for (const int64_t n : kLengths) out.push_back(run(subject, random_tokens(n, uint64_t(n)), train()));
  return out;
}

// One forward over some rows of every sequence; its logits go where each sequence's are collected.
void step(Subject& s, KvStore& kv, const RaggedBatch& shape, const std::vector<size_t>& who,
          std::vector<Outcome>& got) {
  RaggedBatch batch = shape;
  const int64_t vocab = s.config.vocab_size;
  std::vector<int32_t> ids;
  for (size_t b = 0; b < who.size(); ++b) {
    const std::vector<int32_t> all = random_tokens(kLengths[who[b]], uint64_t(kLengths[who[b]]));
    const auto first = all.begin() + batch.past_len[b];
    ids.insert(ids.end(), first, first + batch.q_len(int64_t(b)));
  }
  for (int64_t i = 0; i < batch.tokens(); ++i) batch.logit_rows.push_back(i);
  const Tensor tokens(DType::i32, {batch.tokens()});
  std::copy(ids.begin(), ids.end(), tokens.view().as<int32_t>());
  const Tensor logits(accumulation_dtype(s.backend.compute), {batch.tokens(), vocab});
  s.model.forward(s.backend.rt, batch, tokens, kv, logits);
  for (size_t b = 0; b < who.size(); ++b)
    for (int64_t i = batch.cu_q[b] * vocab; i < batch.cu_q[b + 1] * vocab; ++i)
      got[who[b]].logits.push_back(tests::load(logits, i));
}

std::vector<Outcome> empty() {
  std::vector<Outcome> got(kLengths.size());
  for (size_t s = 0; s < kLengths.size(); ++s) got[s].tokens = kLengths[s];
  return got;
}

TEST(PathsBatches, PackedDocuments) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    Subject subject(tiny(AttentionKind::hysparse, 16, 20, topk(dtype)), dtype);
    const std::vector<Outcome> want = each_alone(subject);
    std::vector<Outcome> got = empty();
    RaggedBatch batch;
    for (const int64_t n : kLengths) batch.add_sequence(n);
    TrainKv kv;
    step(subject, kv, batch, {0, 1, 2, 3, 4}, got);
    for (size_t s = 0; s < kLengths.size(); ++s) {
      SCOPED_TRACE(kLengths[s]);
      expect_logits(got[s], want[s], dtype);
    }
  }
}

// Sequences of different lengths and progress in one step: some prefill a chunk, some decode, some are over.
TEST(PathsBatches, PrefillAndDecodeInOneStep) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    Subject subject(tiny(AttentionKind::hysparse, 16, 20, topk(dtype)), dtype);
    const std::vector<Outcome> want = each_alone(subject);
    std::vector<Outcome> got = empty();
    PagedKvOptions options;
    options.max_tokens = 200;
    options.max_sequences = int64_t(kLengths.size());
    options.dtype = dtype;
    options.poison = std::nan("");
    PagedKv kv(subject.config, subject.plan, options);
    const std::vector<int64_t> pace{1, 37, 1, 5, 61};  // tokens a step
    for (bool more = true; more;) {
      RaggedBatch batch;
      std::vector<int> ids;
      std::vector<size_t> who;
      // The order within the batch is not that of the cache.
      for (size_t s = kLengths.size(); s-- > 0;) {
        const int64_t left = kLengths[s] - kv.length(int(s));
        if (left == 0) continue;
        batch.add_sequence(std::min(left, pace[s]), kv.length(int(s)));
        ids.push_back(int(s));
        who.push_back(s);
      }
      more = !ids.empty();
      if (!more) break;
      kv.begin_step(ids, batch);
      step(subject, kv, batch, who, got);
      kv.commit();
      kv.check();
    }
    for (size_t s = 0; s < kLengths.size(); ++s) {
      SCOPED_TRACE(kLengths[s]);
      expect_logits(got[s], want[s], dtype);
    }
  }
}

}  // namespace
}  // namespace hysparse::paths
