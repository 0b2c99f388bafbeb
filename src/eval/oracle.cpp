#include "eval/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/limits.h"

namespace hysparse {
namespace {

ModelConfig tokenwise(ModelConfig c) {
  c.hysparse_block_size = 1;
  c.hysparse_force_first = c.hysparse_force_diagonal = false;
  return c;
}

double element(const TensorView& v, int64_t i) {
  return v.dtype == DType::f64 ? v.as<double>()[i] : static_cast<double>(v.as<float>()[i]);
}

// The blocks of largest score: equal scores, the lower index; ascending.
std::vector<int32_t> largest(const TensorView& scores, int64_t row, int64_t blocks, int64_t entries) {
  std::vector<int32_t> order(static_cast<size_t>(blocks));
  for (int64_t j = 0; j < blocks; ++j) order[static_cast<size_t>(j)] = static_cast<int32_t>(j);
  const int64_t base = row * scores.dim(2), keep = std::min(entries, blocks);
  std::partial_sort(order.begin(), order.begin() + keep, order.end(), [&](int32_t a, int32_t b) {
    const double x = element(scores, base + a), y = element(scores, base + b);
    return x > y || (x == y && a < b);
  });
  order.resize(static_cast<size_t>(keep));
  std::sort(order.begin(), order.end());
  return order;
}

double shared(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  std::vector<int32_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return static_cast<double>(both.size());
}

}  // namespace

double OracleMean::value() const {
  return count > 0 ? sum / static_cast<double>(count) : std::numeric_limits<double>::quiet_NaN();
}

// Of one row: of each full layer, token and KV head the blocks, those of largest score and the selected ones.
struct Oracle::Seen {
  int64_t tokens = 0, heads = 0;
  std::vector<std::vector<std::vector<int32_t>>> top, selected;  // [layer][token * heads + head]
  std::vector<HostCopy> mass;                                    // [layer] [tokens, heads, tokens] log
};

Oracle::Oracle(Runtime& rt, Model& model)
    : rt_(rt), model_(model), tokenwise_(tokenwise(model.config()), model.weights()), arena_(rt.memory) {
  for (size_t i = 0; i < model.plan().size(); ++i) {
    if (model.plan()[i].kind != LayerKind::full) continue;
    OracleLayer layer;
    layer.layer = static_cast<int>(i);
    layer.read = model.plan()[i].emits_scores;
    result_.layers.push_back(layer);
  }
  if (result_.layers.empty())
    throw input_error("oracle", "the model has no full-attention layer: nothing is selected");
  result_.stability.assign(result_.layers.size(), std::vector<OracleMean>(result_.layers.size()));
  result_.stability_chance = result_.stability;
}

Oracle::Seen Oracle::look(const std::vector<int32_t>& ids) {
  const auto n = static_cast<int64_t>(ids.size());
  const ModelConfig& c = model_.config();
  const int64_t heads = c.kv_heads(), entries = c.entries(), block = c.hysparse_block_size;
  for (const int32_t id : ids)
    if (id < 0 || id >= c.vocab_size)
      throw expected_error("oracle", fmt::format("token ids from 0 to {}", c.vocab_size - 1),
                           std::to_string(id), "the model's vocabulary is not that of the text or task");
  // Scores of single tokens of every full layer, and the host's copy of them.
  const int64_t most = memory_available() / 2 / std::ssize(result_.layers) / heads / 4;
  if (most / n < n)
    throw input_error(
        "length",
        fmt::format(
            "{} tokens: the scores of every token with every other take {} GB, {} are "
            "available",
            n, std::llround(2e-9 * 4 * double(n) * double(n) * double(heads) * double(result_.layers.size())),
            memory_available() / 1'000'000'000),
        "take shorter rows (--length)");
  Seen seen;
  seen.tokens = n;
  seen.heads = heads;
  RaggedBatch batch;
  batch.add_sequence(n);
  arena_.reset();
  const TensorView tokens = arena_.alloc(DType::i32, {n});
  rt_.memory.from_host(tokens.data, ids.data(), tokens.bytes());
  Trace trace;
  trace.arena = &arena_;
  trace.want_scores = trace.want_unread_scores = trace.want_selection = true;
  ForwardOptions options;
  options.trace = &trace;
  TrainKv kv;
  model_.forward(rt_, batch, tokens, kv, {}, options);

  SelectionMap pinned;
  for (const OracleLayer& layer : result_.layers) {
    const HostCopy scores(trace.block_scores.at(layer.layer), rt_.memory);
    auto& top = seen.top.emplace_back();
    for (int64_t row = 0; row < n * heads; ++row)
      top.push_back(largest(scores.view(), row, row / heads / block + 1, entries));
    auto& selected = seen.selected.emplace_back(top);
    if (!layer.read) continue;
    const HostCopy idx(trace.selection.at(layer.layer), rt_.memory);
    std::vector<int32_t> single(static_cast<size_t>(n * heads * entries * block), -1);
    for (int64_t row = 0; row < n * heads; ++row) {
      auto& of_row = selected[static_cast<size_t>(row)];
      of_row.clear();
      for (int64_t e = 0; e < entries; ++e)
        if (const int32_t b = idx.view().as<int32_t>()[row * entries + e]; b >= 0) of_row.push_back(b);
      auto* out = single.data() + row * entries * block;
      for (const int32_t b : of_row)
        for (int64_t t = b * block; t < std::min((b + 1) * block, row / heads + 1); ++t)
          *out++ = static_cast<int32_t>(t);
    }
    const TensorView view = arena_.alloc(DType::i32, {n, heads, entries * block});
    rt_.memory.from_host(view.data, single.data(), view.bytes());
    pinned[layer.layer] = view;
  }
  // The same computation, with the scores of single tokens.
  Trace fine;
  fine.arena = &arena_;
  fine.want_scores = fine.want_unread_scores = true;
  ForwardOptions again;
  again.trace = &fine;
  if (!pinned.empty()) again.pinned = &pinned;
  tokenwise_.forward(rt_, batch, tokens, kv, {}, again);
  for (const OracleLayer& layer : result_.layers)
    seen.mass.emplace_back(fine.block_scores.at(layer.layer), rt_.memory);
  return seen;
}

void Oracle::compare_layers(const Seen& seen) {
  const ModelConfig& c = model_.config();
  const int64_t block = c.hysparse_block_size;
  for (int64_t t = 0; t < seen.tokens; ++t) {
    const int64_t blocks = t / block + 1;
    if (blocks <= c.entries()) continue;
    ++result_.counted;
    std::vector<std::vector<int32_t>> all;  // a layer: over its KV heads
    for (size_t l = 0; l < result_.layers.size(); ++l) {
      OracleLayer& layer = result_.layers[l];
      std::set<int32_t> any;
      for (int64_t g = 0; g < seen.heads; ++g) {
        const auto row = static_cast<size_t>(t * seen.heads + g);
        const std::vector<int32_t>& mine = seen.selected[l][row];
        const auto& before = seen.selected[l][row - static_cast<size_t>(seen.heads)];
        layer.neighbours.add(shared(mine, before) / static_cast<double>(mine.size()));
        layer.neighbour_chance.add(static_cast<double>(before.size()) / static_cast<double>(blocks));
        double covered = 0, whole = 0;
        const TensorView& mass = seen.mass[l].view();
        for (int64_t i = 0; i <= t; ++i) {
          const double p = std::exp(element(mass, static_cast<int64_t>(row) * mass.dim(2) + i));
          whole += p;
          if (std::binary_search(mine.begin(), mine.end(), static_cast<int32_t>(i / block))) covered += p;
        }
        layer.mass.add(covered / whole);
        layer.share.add(static_cast<double>(mine.size()) / static_cast<double>(blocks));
        any.insert(seen.top[l][row].begin(), seen.top[l][row].end());
      }
      all.emplace_back(any.begin(), any.end());
    }
    for (size_t a = 0; a < all.size(); ++a)
      for (size_t b = 0; b < all.size(); ++b) {
        result_.stability[a][b].add(shared(all[a], all[b]) / static_cast<double>(all[b].size()));
        result_.stability_chance[a][b].add(static_cast<double>(all[a].size()) / static_cast<double>(blocks));
      }
  }
}

void Oracle::count_gold(const Seen& seen, const std::vector<RecallAnswer>& answers) {
  const int64_t block = model_.config().hysparse_block_size;
  for (const RecallAnswer& a : answers) {
    const int64_t t = a.at - 1, blocks = t / block + 1;
    if (blocks <= model_.config().entries()) continue;
    for (size_t l = 0; l < result_.layers.size(); ++l) {
      std::set<int32_t> any;
      for (int64_t g = 0; g < seen.heads; ++g) {
        const auto& mine = seen.selected[l][static_cast<size_t>(t * seen.heads + g)];
        any.insert(mine.begin(), mine.end());
      }
      for (size_t h = 0; h < a.gold.size(); ++h) {
        const auto hop = static_cast<int64_t>(h) + 1;
        result_.layers[l].gold[hop].add(any.count(static_cast<int32_t>(a.gold[h] / block)) > 0);
        result_.layers[l].gold_chance[hop].add(static_cast<double>(any.size()) / static_cast<double>(blocks));
      }
    }
  }
}

void Oracle::add(const std::vector<int32_t>& tokens, const std::vector<RecallAnswer>& answers) {
  if (tokens.empty()) return;
  const Seen seen = look(tokens);
  ++result_.rows;
  result_.tokens += seen.tokens;
  compare_layers(seen);
  count_gold(seen, answers);
}

}  // namespace hysparse
