#include "paths_common.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "base/rng.h"
#include "engine/paged_kv.h"

namespace hysparse::paths {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

ModelConfig finalized(ModelConfig config) {
  config.finalize("test");
  return config;
}

void set_all(Weight& w, int64_t i, double x) {
  if (w.master) tests::store(w.master, i, x);
  tests::store(w.value, i, x);
}

}  // namespace

ModelConfig tiny(AttentionKind kind, int64_t block, int64_t window, int64_t topk_tokens) {
  ModelConfig c = tests::tiny_config(kind);
  c.hysparse_block_size = block;
  c.hysparse_topk_tokens = topk_tokens;
  c.sliding_window = window;
  c.initializer_range = 0.1;  // sharper attention would only amplify rounding
  return c;
}

std::vector<int32_t> random_tokens(int64_t n, uint64_t seed, int64_t vocab) {
  Rng rng(seed, 77);
  std::vector<int32_t> out;
  for (int64_t i = 0; i < n; ++i)
    out.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab))));
  return out;
}

Subject::Subject(const ModelConfig& c, DType compute, int threads, uint64_t seed, WeightFormat format)
    : backend(compute, threads),
      config(finalized(c)),
      plan(build_layer_plan(config)),
      weights(config, plan, WeightOptions{.compute = compute, .format = format}),
      model(config, weights) {
  weights.init_random(config, plan, seed);
  for (Weight* w : weights.all()) {
    const bool sink = w->name.find("sinks") != std::string::npos;
    const bool norm = w->name.find("norm") != std::string::npos;
    const bool bias = w->name.find("bias") != std::string::npos;
    if (!sink && !norm && !bias) continue;
    for (int64_t i = 0; i < w->value.numel(); ++i) {
      uint64_t name = seed;
      for (const char ch : w->name) name = hash_words({name, static_cast<uint64_t>(ch)});
      const double x = Rng(name, 5, static_cast<uint64_t>(2 * i)).normal();
      set_all(*w, i, static_cast<float>(norm ? 1 + 0.2 * x : x));
    }
    ++w->version;
  }
}

Subject::Subject(const Subject& other, DType compute)
    : backend(compute),
      config(other.config),
      plan(other.plan),
      weights(config, plan, WeightOptions{.compute = compute}),
      model(config, weights) {
  for (Weight* from : other.weights.all()) {
    Weight* to = weights.find(from->name);
    for (int64_t i = 0; i < from->value.numel(); ++i) set_all(*to, i, tests::load(from->value, i));
    ++to->version;
  }
}

Subject Subject::reference() const {
  return Subject(*this, DType::f64);
}

Path train() {
  return {};
}
Path one_shot(int64_t n) {
  return {n};
}
Path chunks(int64_t n, int64_t size) {
  Path out;
  for (int64_t done = 0; done < n; done += size) out.push_back(std::min(size, n - done));
  return out;
}

Outcome run(Subject& s, const std::vector<int32_t>& tokens, const Path& path, const RunOptions& options) {
  const auto n = static_cast<int64_t>(tokens.size());
  const int64_t vocab = s.config.vocab_size, heads = s.config.kv_heads(), entries = s.config.entries();
  const int64_t blocks = (n + s.config.hysparse_block_size - 1) / s.config.hysparse_block_size;
  Runtime& rt = s.backend.rt;
  PagedKvOptions kv_options;
  kv_options.max_tokens = n;
  kv_options.dtype = s.backend.compute;
  kv_options.page_size = options.page_size;
  kv_options.poison = std::nan("");
  PagedKv paged(s.config, s.plan, kv_options);
  TrainKv none;

  Outcome out;
  out.tokens = n;
  out.entries = entries;
  out.logits.resize(static_cast<size_t>(n * vocab));
  for (size_t layer = 0; layer < s.plan.size(); ++layer) {
    if (!s.plan[layer].emits_scores) continue;
    out.selection[int(layer)].resize(static_cast<size_t>(n * heads * entries));
    if (options.want_scores) out.scores[int(layer)].assign(static_cast<size_t>(n * heads * blocks), -kInf);
  }
  int64_t past = 0;
  for (const int64_t count : path.empty() ? Path{n} : path) {
    RaggedBatch batch;
    batch.add_sequence(count, past);
    for (int64_t i = 0; i < count; ++i) batch.logit_rows.push_back(i);
    Arena arena;
    Trace trace;
    trace.arena = &arena;
    trace.want_selection = trace.want_experts = true;
    trace.want_scores = options.want_scores;
    SelectionMap pinned;
    if (options.pinned) {
      for (const auto& [layer, all] : *options.pinned) {
        pinned[layer] = arena.alloc(DType::i32, {count, heads, entries});
        std::copy_n(all.begin() + past * heads * entries, count * heads * entries,
                    pinned[layer].as<int32_t>());
      }
    }
    const int64_t active = s.config.num_experts_per_tok;
    RouteMap experts;
    if (options.experts) {
      for (const auto& [layer, all] : *options.experts) {
        experts[layer] = arena.alloc(DType::i32, {count, active});
        std::copy_n(all.begin() + past * active, count * active, experts[layer].as<int32_t>());
      }
    }
    ForwardOptions forward;
    if (options.experts) forward.pinned_experts = &experts;
    forward.trace = &trace;
    if (options.pinned) forward.pinned = &pinned;
    const TensorView ids = arena.alloc(DType::i32, {count});
    std::copy_n(tokens.begin() + past, count, ids.as<int32_t>());
    const TensorView logits = arena.alloc(accumulation_dtype(s.backend.compute), {count, vocab});
    if (path.empty()) {
      s.model.forward(rt, batch, ids, none, logits, forward);
    } else {
      paged.begin_step({0}, batch);
      s.model.forward(rt, batch, ids, paged, logits, forward);
      paged.commit();
      paged.check();
    }
    for (int64_t i = 0; i < count * vocab; ++i)
      out.logits[static_cast<size_t>(past * vocab + i)] = tests::load(logits, i);
    for (const auto& [layer, idx] : trace.selection)
      std::copy_n(idx.as<int32_t>(), count * heads * entries,
                  out.selection[layer].begin() + past * heads * entries);
    for (const auto& [layer, chosen] : trace.experts)
      out.experts[layer].insert(out.experts[layer].end(), chosen.as<int32_t>(),
                                chosen.as<int32_t>() + count * active);
    for (const auto& [layer, scores] : trace.block_scores)
      for (int64_t row = 0; row < count * heads; ++row)
        for (int64_t j = 0; j < scores.dim(2); ++j)
          out.scores[layer][static_cast<size_t>((past * heads + row) * blocks + j)] =
              tests::load(scores, row * scores.dim(2) + j);
    past += count;
  }
  return out;
}

double tolerance(DType compute) {
  switch (compute) {
    case DType::f64:
      return 2e-14;
    case DType::f32:
      return 1e-5;
    default:
      return 0.08;
  }
}

void expect_logits(const Outcome& got, const Outcome& want, DType compute) {
  ASSERT_EQ(got.logits.size(), want.logits.size());
  const size_t vocab = want.logits.size() / static_cast<size_t>(want.tokens);
  double squares = 0, worst = 0, scale = 0;
  size_t where = 0;
  for (size_t row = 0; row < static_cast<size_t>(want.tokens); ++row) {
    double off = 0;
    for (size_t i = row * vocab; i < (row + 1) * vocab; ++i) {
      const double d = got.logits[i] - want.logits[i];
      off += d * d;
      scale += want.logits[i] * want.logits[i];
    }
    ASSERT_FALSE(std::isnan(off)) << "position " << row;
    squares += off;
    if (off > worst) worst = off, where = row;
  }
  scale /= static_cast<double>(want.tokens);  // mean squared norm of a row
  EXPECT_LE(std::sqrt(worst / scale), tolerance(compute)) << "at position " << where;
  EXPECT_LE(std::sqrt(squares / static_cast<double>(want.tokens) / scale), tolerance(compute) / 3);
}

void Agreement::print(const std::string& what) const {
  std::printf(
      "%s: %lld selections, %lld at near-ties of the float64 log-scores; %lld routes, %lld of other "
      "experts\n",
      what.c_str(), static_cast<long long>(rows), static_cast<long long>(near_ties),
      static_cast<long long>(tokens), static_cast<long long>(rerouted));
}

void expect_free_agreement(Subject& reference, const std::vector<int32_t>& tokens, const Outcome& truth,
                           const Outcome& got, DType compute, Agreement& sum) {
  const ModelConfig& c = reference.config;
  if (c.hysparse_selection == SelectionMode::random) {  // a hash decides: the same everywhere
    EXPECT_EQ(got.selection, truth.selection);
    return expect_logits(got, truth, compute);
  }
  Outcome followed;
  for (const auto& [layer, chosen] : got.experts) {
    const auto& other = truth.experts.at(layer);
    ASSERT_EQ(chosen.size(), other.size());
    const auto k = static_cast<size_t>(c.num_experts_per_tok);
    for (size_t t = 0; t < chosen.size(); t += k) {
      ++sum.tokens;
      sum.rerouted += !std::equal(chosen.begin() + std::ptrdiff_t(t), chosen.begin() + std::ptrdiff_t(t + k),
                                  other.begin() + std::ptrdiff_t(t));
    }
  }
  EXPECT_LE(100 * sum.rerouted, sum.tokens);
  const bool same = got.selection == truth.selection && got.experts == truth.experts;
  if (!same) {
    RunOptions options;
    options.pinned = &got.selection;
    options.experts = &got.experts;
    options.want_scores = true;
    followed = run(reference, tokens, train(), options);
  }
  const Outcome& want = same ? truth : followed;
  const int64_t heads = c.kv_heads(), entries = c.entries(), block = c.hysparse_block_size;
  const int64_t blocks = (got.tokens + block - 1) / block;
  for (const auto& [layer, idx] : got.selection) {
    for (int64_t row = 0; row < got.tokens * heads; ++row) {
      const int64_t position = row / heads, mine = position / block + 1;
      const double* score = want.scores.at(layer).data() + row * blocks;
      std::vector<bool> chosen(static_cast<size_t>(mine));
      int64_t count = 0;
      int32_t before = -1;
      for (int64_t e = 0; e < entries; ++e) {
        const int32_t j = idx[static_cast<size_t>(row * entries + e)];
        if (j == -1) {
          before = std::numeric_limits<int32_t>::max();  // padding stands at the end
          continue;
        }
        ASSERT_TRUE(j > before && j < mine)
            << "layer " << layer << " position " << position << " entry " << e << " is " << j;
        chosen[static_cast<size_t>(j)] = true;
        before = j;
        ++count;
      }
      ASSERT_EQ(count, std::min(entries, mine)) << "layer " << layer << " position " << position;
      double worst_in = kInf, best_out = -kInf;
      int64_t worst_index = 0, best_index = 0;
      for (int64_t j = 0; j < mine; ++j) {
        if (chosen[static_cast<size_t>(j)] && score[j] <= worst_in) worst_in = score[j], worst_index = j;
        if (!chosen[static_cast<size_t>(j)] && score[j] > best_out) best_out = score[j], best_index = j;
      }
      ++sum.rows;
      if (best_out > worst_in || (best_out == worst_in && best_index < worst_index)) {
        ++sum.near_ties;
        EXPECT_LT(best_out - worst_in, 1e-5) << "layer " << layer << " position " << position << ": block "
                                             << best_index << " was left for block " << worst_index;
      }
    }
  }
  expect_logits(got, want, compute);
}

double overlap(const Outcome& a, const Outcome& b) {
  int64_t same = 0, all = 0;
  for (const auto& [layer, idx] : a.selection) {
    const auto& other = b.selection.at(layer);
    const auto entries = static_cast<size_t>(a.entries);
    for (size_t row = 0; row < idx.size(); row += entries)
      for (size_t e = row; e < row + entries; ++e) {
        if (idx[e] < 0) continue;
        ++all;
        same += std::count(other.begin() + std::ptrdiff_t(row), other.begin() + std::ptrdiff_t(row + entries),
                           idx[e]) > 0;
      }
  }
  return all > 0 ? double(same) / double(all) : 1;
}

}  // namespace hysparse::paths
