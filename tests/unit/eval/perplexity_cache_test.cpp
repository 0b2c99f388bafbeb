// Perplexity through the inference cache.
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "eval/perplexity.h"
#include "tiny.h"

namespace hysparse {
namespace {

using namespace tests;

PerplexityResult score(TinyModel& m, WindowLosses losses) {
  PerplexityOptions o;
  o.window = 100;
  o.stride = 40;
  Perplexity p(std::move(losses), o);
  for (const int64_t n : {250, 3, 101}) {
    Rng rng{uint64_t(n)};
    std::vector<int32_t> document;
    for (int64_t i = 0; i < n; ++i) document.push_back(int32_t(rng.below(uint64_t(m.config.vocab_size))));
    p.add(document);
  }
  return p.finish();
}

// The compute dtype in the cache changes nothing but the last bits.
TEST(PerplexityThroughTheCache, SaysWhatOneForwardSays) {
  for (const AttentionKind kind : {AttentionKind::hysparse, AttentionKind::full}) {
    TinyModel m(kind);
    const PerplexityResult whole = score(m, model_losses(m.rt, m.model));
    for (const int64_t chunk : {1, 7, 64, 1000}) {
      const PerplexityResult cached = score(m, cached_losses(m.rt, m.model, KvDtype::compute, chunk));
      EXPECT_EQ(cached.tokens, whole.tokens);
      EXPECT_NEAR(cached.nats, whole.nats, 1e-5 * whole.nats) << chunk;
    }
  }
}

// In 8 bits a little is lost, and not a bit depends on the chunks.
TEST(PerplexityThroughTheCache, In8BitsChunksChangeNothing) {
  TinyModel m(AttentionKind::hysparse);
  const PerplexityResult whole = score(m, model_losses(m.rt, m.model));
  for (const KvDtype kv : {KvDtype::int8, KvDtype::fp8}) {
    const PerplexityResult once = score(m, cached_losses(m.rt, m.model, kv, 1000));
    EXPECT_NE(once.nats, whole.nats);
    EXPECT_NEAR(once.nats, whole.nats, 0.02 * whole.nats);
    for (const int64_t chunk : {1, 7, 64})
      EXPECT_EQ(score(m, cached_losses(m.rt, m.model, kv, chunk)).nats, once.nats) << chunk;
  }
  EXPECT_THROW(cached_losses(m.rt, m.model, KvDtype::int8, 0), Error);
}

}  // namespace
}  // namespace hysparse
