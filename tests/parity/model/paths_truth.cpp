// Training forward, one-shot prefill, chunked prefill and decode are one truth (spec section 9).
#include <algorithm>
#include <cmath>

#include "paths_common.h"

namespace hysparse::paths {
namespace {

struct Grid {
  DType dtype;
  int64_t block, window, topk;
};

std::string name(const testing::TestParamInfo<Grid>& info) {
  const Grid& g = info.param;
  return std::string(name_of(g.dtype)) + "_block" + std::to_string(g.block) + "_window" +
         std::to_string(g.window) + "_topk" + std::to_string(g.topk);
}

std::vector<std::pair<std::string, Path>> paths_of(int64_t n) {
  std::vector<std::pair<std::string, Path>> out{
      {"train", train()}, {"prefill", one_shot(n)}, {"decode", chunks(n, 1)}};
  for (const int64_t size : {7, 64, 100})
    if (size < n || size == 7) out.emplace_back("chunks of " + std::to_string(size), chunks(n, size));
  return out;
}

// Compares every path with the float64 training forward of the same weights.
void one_truth(const Grid& g, const std::vector<int64_t>& lengths) {
  Subject subject(tiny(AttentionKind::hysparse, g.block, g.window, g.topk), g.dtype);
  Subject reference = subject.reference();
  Agreement sum;
  double shared = 0;
  int64_t runs = 0;
  for (const int64_t n : lengths) {
    const std::vector<int32_t> tokens = random_tokens(n, uint64_t(n));
    const Outcome truth = run(reference, tokens, train(), {.want_scores = true});
    for (const auto& [path_name, path] : paths_of(n)) {
      SCOPED_TRACE(path_name + " of " + std::to_string(n) + " tokens");
      RunOptions pinned;
      pinned.pinned = &truth.selection;
      expect_logits(run(subject, tokens, path, pinned), truth, g.dtype);
      const Outcome free = run(subject, tokens, path);
      shared += overlap(truth, free);
      ++runs;
      // In bf16 the selection itself is rounded: pinned runs decide, the overlap is a figure.
      if (g.dtype != DType::bf16) expect_free_agreement(reference, tokens, truth, free, g.dtype, sum);
    }
  }
  if (g.dtype == DType::bf16)
    std::printf("bf16: %.2f%% of the float64 selection is selected\n", 100 * shared / double(runs));
  else
    sum.print(std::string(name_of(g.dtype)));
}

class OneTruth : public testing::TestWithParam<Grid> {};
TEST_P(OneTruth, EveryPath) {
  std::vector<int64_t> lengths{1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 193};
  if (GetParam().dtype != DType::f64) lengths.push_back(300);
  one_truth(GetParam(), lengths);
}
INSTANTIATE_TEST_SUITE_P(Tiny, OneTruth,
                         testing::Values(Grid{DType::f64, 64, 128, 128}, Grid{DType::f64, 4, 4, 16},
                                         Grid{DType::f32, 64, 128, 128}, Grid{DType::f32, 1, 128, 24},
                                         Grid{DType::f32, 4, 4, 16}, Grid{DType::f32, 16, 128, 32},
                                         Grid{DType::bf16, 64, 128, 128}, Grid{DType::bf16, 16, 4, 32}),
                         name);

class FullOneTruth : public testing::TestWithParam<Grid> {};
TEST_P(FullOneTruth, EveryPath) {
  one_truth(GetParam(), {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 193, 300, 1000});
}
std::vector<Grid> whole_grid() {
  std::vector<Grid> out;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const int64_t block : {1, 4, 16, 64})
      for (const int64_t window : {4, 128})
        for (const int64_t topk : {2 * block, int64_t(128)}) {
          if (topk == 128 && block == 64) continue;
          out.push_back({dtype, block, window, topk});
        }
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const int64_t window : {4, 128}) out.push_back({dtype, 64, window, 128});
  return out;
}
INSTANTIATE_TEST_SUITE_P(Full, FullOneTruth, testing::ValuesIn(whole_grid()), name);

// The chunk that a token arrives in, and the pages it is kept in, change nothing: also where a chunk is
// larger than the window, or its edges fall just beside window and block.
TEST(Paths, ChunkAndPageSizeDoNotMatter) {
  const int64_t n = 700;
  const std::vector<int32_t> tokens = random_tokens(n, 3);
  Subject subject(tiny(), DType::f32);
  Subject reference = subject.reference();
  const Outcome truth = run(reference, tokens, train(), {.want_scores = true});
  RunOptions pinned;
  pinned.pinned = &truth.selection;
  Agreement sum;
  for (const int64_t size : {1, 17, 64, 127, 128, 129, 256, 700}) {
    SCOPED_TRACE("chunks of " + std::to_string(size));
    pinned.page_size = size % 2 ? 128 : 64;
    expect_logits(run(subject, tokens, chunks(n, size), pinned), truth, DType::f32);
    if (size == 17 || size == 129)
      expect_free_agreement(reference, tokens, truth, run(subject, tokens, chunks(n, size)), DType::f32, sum);
  }
  sum.print("f32, 700 tokens");
}

// What a cache is for must not change what the model means: without a cache, filled at once, token by token.
TEST(Paths, CacheOrNoCache) {
  const int64_t n = 300;
  const std::vector<int32_t> tokens = random_tokens(n, 9);
  for (const DType dtype : {DType::f64, DType::f32}) {
    Subject subject(tiny(), dtype);
    Subject reference = subject.reference();
    const Outcome truth = run(reference, tokens, train(), {.want_scores = true});
    RunOptions pinned;
    pinned.pinned = &truth.selection;
    for (const Path& path : {train(), one_shot(n), chunks(n, 1), Path{1, n - 1}}) {
      const Outcome got = run(subject, tokens, path, pinned);
      for (size_t i = 0; i < truth.logits.size(); ++i)
        ASSERT_NEAR(got.logits[i], truth.logits[i], 1e-4) << i / 97;
    }
  }
}

// The training pass itself (with what backward needs kept) and the loss alone say what the logits say.
TEST(Paths, LossesFollowFromTheLogits) {
  const int64_t n = 193;
  const std::vector<int32_t> tokens = random_tokens(n + 1, 4);
  const ModelConfig config = [] {
    ModelConfig c = tiny(AttentionKind::hysparse, 4, 16, 16);
    c.finalize("test");
    return c;
  }();
  const LayerPlan plan = build_layer_plan(config);
  for (const DType dtype : {DType::f64, DType::f32}) {
    tests::Backend backend(dtype);
    Weights weights(config, plan, WeightOptions{.compute = dtype, .training = true});
    weights.init_random(config, plan, 2);
    Model model(config, weights);
    RaggedBatch batch;
    batch.add_sequence(n);
    for (int64_t i = 0; i < n; ++i) batch.logit_rows.push_back(i);
    const DType a = accumulation_dtype(dtype);
    const Tensor ids(DType::i32, {n}), labels(DType::i32, {n}), logits(a, {n, 97}), alone(a, {n});
    std::copy_n(tokens.begin(), n, ids.view().as<int32_t>());
    std::copy_n(tokens.begin() + 1, n, labels.view().as<int32_t>());
    labels.view().as<int32_t>()[5] = kIgnoreLabel;
    TrainKv kv;
    model.forward(backend.rt, batch, ids, kv, logits);
    model.forward_loss(backend.rt, batch, ids, labels, alone);
    std::vector<Tensor> losses;
    for (const Recompute recompute :
         {Recompute::none, Recompute::selective, Recompute::projections, Recompute::layer}) {
      losses.emplace_back(a, std::initializer_list<int64_t>{n});
      model.forward_backward(backend.rt, batch, ids, labels, 1, recompute, losses.back());
    }
    for (int64_t i = 0; i < n; ++i) {
      double best = -1e300, sum = 0;
      for (int64_t v = 0; v < 97; ++v) best = std::max(best, tests::load(logits, i * 97 + v));
      for (int64_t v = 0; v < 97; ++v) sum += std::exp(tests::load(logits, i * 97 + v) - best);
      const int32_t label = labels.view().as<int32_t>()[i];
      const double want =
          label == kIgnoreLabel ? 0 : best + std::log(sum) - tests::load(logits, i * 97 + label);
      const double within = (dtype == DType::f64 ? 1e-11 : 2e-5) * (1 + std::abs(best));
      EXPECT_NEAR(tests::load(alone, i), want, within);
      for (const Tensor& loss : losses) EXPECT_NEAR(tests::load(loss, i), want, within);
    }
  }
}

}  // namespace
}  // namespace hysparse::paths
