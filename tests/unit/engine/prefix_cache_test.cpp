// Prefixes found again: how much, why not, and never another answer.
#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include "engine_rig.h"

namespace hysparse {
namespace {

using namespace tests;

EngineOptions cached(int64_t pages, int64_t snapshots, const ModelConfig& config = hash_config()) {
  EngineOptions o = rig_options(config, pages, 4);
  o.memory.kv_bytes = kv_budget(config, 8, pages, 4 + snapshots);
  const auto rings = double(kv_bytes(config, build_layer_plan(config), 4).rings);
  o.memory.snapshot_share = (rings * double(snapshots) + 1) / double(o.memory.kv_bytes);
  o.snapshot_interval = 32;
  return o;
}

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(PrefixCache, FindsTheLongestPrefixThatHasASnapshot) {
  const EngineOptions options = cached(300, 20);
  Rig rig(options);
  ASSERT_EQ(rig.engine.stats().slots, 24);
  const auto prompt = ids(100, 1);
  const auto ask = [&](const Request& r) {
    const Outcome out = rig.ask(r);
    expect_same(out, alone(r, options));
    return out.usage->cached_tokens;
  };
  EXPECT_EQ(ask(request(prompt, 10)), 0);
  EXPECT_EQ(ask(request(prompt, 10)), 99);  // its end; the last token is computed for its logits
  EXPECT_EQ(ask(request(joined(prompt, {1, 2, 3}), 10)), 100);
  const std::vector<int32_t> cut(prompt.begin(), prompt.begin() + 70);
  EXPECT_EQ(ask(request(joined(cut, ids(20, 2)), 10)), 64);  // the snapshot at 2 x 32
  const std::vector<int32_t> to_snapshot(prompt.begin(), prompt.begin() + 64);
  EXPECT_EQ(ask(request(to_snapshot, 10)), 63);
  const std::vector<int32_t> before(prompt.begin(), prompt.begin() + 31);
  EXPECT_EQ(ask(request(joined(before, ids(20, 3)), 10)), 0);  // pages, but no rings
  const EngineStats s = rig.engine.stats();
  EXPECT_EQ(s.cache_hits, 4);
  EXPECT_EQ(s.cache_misses[size_t(CacheMiss::unknown)], 1);
  EXPECT_EQ(s.cache_misses[size_t(CacheMiss::no_snapshot)], 1);
}

TEST(PrefixCache, AConversationGoesOnFromItsAnswer) {
  const EngineOptions options = cached(300, 30);
  Rig rig(options);
  std::vector<int32_t> history;
  int64_t held = 0;
  for (uint64_t turn = 0; turn < 6; ++turn) {
    history = joined(history, ids(7 + int64_t(turn) * 5, turn));
    const Request r = request(history, 12, turn);
    const Outcome out = rig.ask(r);
    expect_same(out, alone(r, options));
    // All that was computed before: everything but the answer's last token, which was never fed.
    EXPECT_EQ(out.usage->cached_tokens, turn == 0 ? 0 : held);
    history = joined(history, out.choices[0].tokens);
    held = int64_t(history.size()) - 1;
  }
}

TEST(PrefixCache, WithoutRingsEveryPageAndPartOfAPageIsAPlaceToGoOnFrom) {
  const ModelConfig config = hash_config(AttentionKind::full);
  const EngineOptions options = cached(300, 0, config);
  Rig rig(options, config);
  EXPECT_EQ(rig.engine.stats().slots, 0);
  const auto prompt = ids(100, 1);
  const auto ask = [&](const Request& r) {
    const Outcome out = rig.ask(r);
    expect_same(out, alone(r, options, config));
    return out.usage->cached_tokens;
  };
  EXPECT_EQ(ask(request(prompt, 10)), 0);
  for (const int64_t cut : {1, 7, 8, 9, 31, 50, 99}) {
    std::vector<int32_t> other(prompt.begin(), prompt.begin() + cut);
    other.push_back((prompt[size_t(cut)] + 1) % 61);
    EXPECT_EQ(ask(request(joined(other, ids(9, uint64_t(cut))), 5)), cut);
  }
}

TEST(PrefixCache, KeysCarryIdentityAndSalt) {
  const EngineOptions options = cached(300, 20);
  Rig rig(options);
  Request r = request(ids(50, 1), 5);
  rig.ask(r);
  EXPECT_EQ(rig.ask(r).usage->cached_tokens, 49);
  r.cache_salt = "tenant";
  EXPECT_EQ(rig.ask(r).usage->cached_tokens, 0);
  EXPECT_EQ(rig.ask(r).usage->cached_tokens, 49);
  rig.model.identity_now = 2;  // other weights
  EXPECT_EQ(rig.ask(r).usage->cached_tokens, 0);
  EXPECT_EQ(rig.engine.stats().cache_misses[size_t(CacheMiss::other_identity)], 1);
  EXPECT_EQ(rig.ask(r).usage->cached_tokens, 49);
  rig.model.identity_now = 1;
  EXPECT_EQ(rig.ask(r).usage->cached_tokens, 49);
  r.cache_prompt = false;
  EXPECT_EQ(rig.ask(r).usage->cached_tokens, 0);
  EXPECT_EQ(rig.engine.stats().cache_misses[size_t(CacheMiss::disabled)], 1);
  // What began under one set of weights is not kept under another.
  r = request(ids(40, 9), 5);
  const auto answer = rig.engine.submit(r);
  rig.engine.step();
  rig.model.identity_now = 3;
  rig.run();
  EXPECT_EQ(rig.ask(r).usage->cached_tokens, 0);
}

TEST(PrefixCache, TheLeastRecentlyUsedMakesRoom) {
  const EngineOptions options = cached(300, 4);  // two ends a request, and the slots of three that do not run
  Rig rig(options);
  for (uint64_t i = 0; i < 6; ++i) {
    rig.ask(request(ids(20, 0), 3));  // used all the time
    rig.ask(request(ids(20, 100 + i), 3));
  }
  EXPECT_EQ(rig.ask(request(ids(20, 0), 3)).usage->cached_tokens, 19);
  EXPECT_EQ(rig.ask(request(ids(20, 105), 3)).usage->cached_tokens, 19);
  EXPECT_EQ(rig.ask(request(ids(20, 100), 3)).usage->cached_tokens, 0);
  EXPECT_EQ(rig.engine.stats().cache_misses[size_t(CacheMiss::evicted)], 1);
  EXPECT_GT(rig.engine.stats().cache_evictions, 3);
  EXPECT_LE(rig.engine.stats().slots_snapshots, 8);
}

TEST(PrefixCache, PagesGiveWayToWhoRuns) {
  for (const AttentionKind kind : {AttentionKind::hysparse, AttentionKind::full}) {
    const ModelConfig config = hash_config(kind);
    const EngineOptions options = cached(16, 8, config);
    Rig rig(options, config);
    for (uint64_t i = 0; i < 8; ++i) {
      const Request r = request(ids(60 + int64_t(i) * 8, i), 10, i);
      expect_same(rig.ask(r), alone(r, options, config));
    }
    EXPECT_GT(rig.engine.stats().cache_evictions, 0);
    EXPECT_GT(rig.engine.stats().pages_cached, 0);
    // The whole pool, with the prompt cached in the middle of a page: it is found, or given up for room.
    const Request all = request(ids(123, 77), 5, 3);
    expect_same(rig.ask(all), alone(all, options, config));
    expect_same(rig.ask(all), alone(all, options, config));
  }
}

TEST(PrefixCache, ChoicesShareThePromptAndLateOnesFindIt) {
  EngineOptions options = cached(300, 10);
  Rig rig(options);
  Request r = request(ids(61, 1), 20);
  r.n = 9;  // five wait for a place
  const auto answer = rig.engine.submit(r);
  rig.run();
  Outcome out;
  out.take_all(*answer);
  expect_same(out, alone(r, options));
  for (size_t c = 1; c < 9; ++c) EXPECT_NE(out.choices[c].tokens, out.choices[0].tokens);
  EXPECT_EQ(rig.engine.stats().prompt_tokens, 61 + 5);  // and one for the logits of each late one
  EXPECT_EQ(rig.engine.stats().cached_tokens, 5 * 60);
}

// The books of the cache itself, beside a plain list of what was put in.
TEST(PrefixCache, RandomLife) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    const ModelConfig config = hash_config(seed % 2 ? AttentionKind::full : AttentionKind::hysparse);
    const LayerPlan plan = build_layer_plan(config);
    PagedKvOptions o;
    o.max_tokens = 64;
    o.max_sequences = 2;
    o.page_size = 8;
    o.max_pages = 60;
    o.slots = 8;
    PagedKv kv(config, plan, o);
    PrefixCache cache(kv);
    Rng rng(seed);
    const auto check = [&] {
      std::vector<int32_t> pages, slots;
      cache.held(pages, slots);
      kv.check(pages, slots);
    };
    std::vector<std::vector<int32_t>> known;
    for (int i = 0; i < 300; ++i) {
      // Sequences over two letters: many begin alike.
      const std::vector<int32_t> tokens = ids(1 + int64_t(rng.below(40)), rng.below(12), 2);
      const PrefixKey key{rng.below(2), ""};
      if (rng.below(3) > 0) {
        while (kv.free_pages() < 6 || (kv.has_rings() && kv.free_slots() < 2)) ASSERT_TRUE(cache.evict());
        kv.reserve(0, int64_t(tokens.size()));
        RaggedBatch batch;
        batch.add_sequence(int64_t(tokens.size()), 0);
        kv.begin_step({0}, batch);
        const Tensor rows(DType::f32, {int64_t(tokens.size()), 1, config.d()});
        for (size_t layer = 0; layer < plan.size(); ++layer)
          if (plan[layer].kind == LayerKind::full || plan[layer].own_window_kv)
            kv.append(int(layer), batch, rows, rows);
        kv.commit();
        cache.insert(key, tokens, kv.pages(0), kv.has_rings() ? kv.copy_rings(0) : -1);
        kv.clear(0);
        EXPECT_TRUE(cache.covers(key, tokens));
      } else {
        const int64_t peek = cache.peek(key, tokens);
        const PrefixCache::Hit hit = cache.find(key, tokens);
        EXPECT_EQ(hit.length, peek);
        EXPECT_LT(hit.length, int64_t(tokens.size()));
        EXPECT_EQ(int64_t(hit.pages.size()), kv.pages_for(hit.length));
        if (hit.length > 0) {
          kv.attach(1, hit.pages, hit.length, hit.slot, hit.peak);
          kv.clear(1);
        }
      }
      if (rng.below(10) == 0) cache.evict();
      check();
    }
    cache.clear();
    check();
    EXPECT_EQ(cache.pages(), 0);
    EXPECT_EQ(kv.pages_in_use(), 0);
    EXPECT_EQ(kv.free_slots(), kv.slots());
  }
}

}  // namespace
}  // namespace hysparse
