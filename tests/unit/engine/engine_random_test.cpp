// Random requests under random settings: each says exactly what it says alone, whatever happens around it.
#include <gtest/gtest.h>

#include <cstdlib>

#include "engine/engine_thread.h"
#include "engine_rig.h"

namespace hysparse {
namespace {

using namespace tests;

struct Draw {
  Request request;
  bool cancelled = false;
  std::unique_ptr<Answer> answer;
  Outcome out;
};

Request random_request(Rng& rng, int64_t longest, const std::vector<std::vector<int32_t>>& shared) {
  Request r;
  if (rng.below(4)) {
    const auto& begin = shared[rng.below(shared.size())];
    const size_t cut = rng.below(2) ? begin.size() : 1 + rng.below(begin.size());
    r.prompt.assign(begin.begin(), begin.begin() + std::ptrdiff_t(cut));
  }
  const auto more = int64_t(rng.below(uint64_t(rng.below(4) ? 20 : longest / 2)));
  const auto tail = ids(std::max<int64_t>(more, r.prompt.empty() ? 1 : 0), rng.next(), rng.below(2) ? 61 : 3);
  r.prompt.insert(r.prompt.end(), tail.begin(), tail.end());
  r.prompt.resize(std::min<size_t>(r.prompt.size(), size_t(longest)));
  r.max_new_tokens = int64_t(rng.below(40)) - (rng.below(30) == 0 ? 50 : 0);
  r.sampling.seed = rng.next() % 1000;
  r.sampling.temperature = rng.below(3) ? 0.05 + rng.uniform() : 0.0;
  if (rng.below(4) == 0) r.sampling.repetition_penalty = 1.3;
  if (rng.below(4) == 0) r.sampling.top_k = 1 + int64_t(rng.below(5));
  r.n = rng.below(5) == 0 ? 1 + int64_t(rng.below(4)) : 1;
  if (rng.below(4) == 0) r.logprobs = int(rng.below(4));
  if (rng.below(12) == 0) r.prompt_logprobs = true;
  if (rng.below(5) == 0) r.stop_ids = {{int32_t(rng.below(61))}, {7, int32_t(rng.below(61))}};
  r.priority = int(rng.below(10)) - 8 > 0 ? 1 : 0;
  r.cache_prompt = rng.below(8) != 0;
  r.speculate = rng.below(5) != 0;
  if (rng.below(10) == 0) r.cache_salt = "a";
  return r;
}

EngineOptions random_options(Rng& rng, const ModelConfig& config, int64_t longest, KvDtype kv) {
  // Few pages: what runs does not fit together.
  EngineOptions o =
      rig_options(config, longest / 10 + int64_t(rng.below(uint64_t(rng.below(2) ? longest / 8 : longest))),
                  1 + int64_t(rng.below(8)), 8, kv);
  o.context = longest * 3 / 2;
  const auto sequences = o.memory.max_sequences;
  const auto snapshots = int64_t(rng.below(20));
  o.memory.kv_bytes += kv_budget(config, 8, 0, snapshots, kv);
  const auto rings = double(kv_bytes(config, build_layer_plan(config), 4).rings);
  o.memory.snapshot_share =
      rings > 0 ? std::min(0.5, (rings * double(snapshots) + 1) / double(o.memory.kv_bytes)) : 0;
  o.step_tokens = 1 + int64_t(rng.below(100));
  o.snapshot_interval = 8 + int64_t(rng.below(80));
  o.prefix_cache = rng.below(8) != 0;
  o.speculate = rng.below(3) ? int64_t(rng.below(9)) : 0;
  o.preemption = rng.below(3) ? Preemption::swap : Preemption::recompute;
  if (rng.below(4) == 0) o.swap_bytes = kv_budget(config, 8, 10, sequences, kv);
  o.starvation_steps = 1 + int64_t(rng.below(300));
  return o;
}

struct Totals {
  int64_t preempted = 0, hits = 0, accepted = 0, cancelled = 0, finished = 0, moved = 0;
};

constexpr KvDtype kFormats[] = {KvDtype::compute, KvDtype::int8, KvDtype::fp8};

void random_rounds(uint64_t seed, int requests, int64_t longest, Totals& totals) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Rng rng(seed);
  const AttentionKind kinds[] = {AttentionKind::hysparse, AttentionKind::hysparse, AttentionKind::full,
                                 AttentionKind::hybrid_swa};
  const ModelConfig config = hash_config(kinds[rng.below(4)]);
  const EngineOptions options = random_options(rng, config, longest, kFormats[seed % 3]);
  Rig rig(options, config);
  std::vector<std::vector<int32_t>> shared;
  for (int i = 0; i < 2; ++i)
    shared.push_back(ids(20 + int64_t(rng.below(uint64_t(longest * 2 / 3))), rng.next()));
  std::vector<Draw> draws;
  draws.reserve(size_t(requests));
  while (true) {
    while (int(draws.size()) < requests && rng.below(5) == 0) {
      Draw d;
      d.request = random_request(rng, std::min(rig.engine.context(), longest), shared);
      d.answer = rig.engine.submit(d.request);
      draws.push_back(std::move(d));
    }
    if (!draws.empty() && rng.below(25) == 0) {
      Draw& d = draws[rng.below(draws.size())];
      if (!d.answer->done()) {
        d.cancelled = true;
        d.answer->cancel();
      }
    }
    const bool worked = rig.engine.step();  // with the check of all books behind it
    for (Draw& d : draws)
      if (rng.below(3) == 0) d.out.take_all(*d.answer);
    if (!worked && int(draws.size()) == requests) break;
  }
  EngineOptions solo = options;
  solo.context = rig.engine.context();  // what the pages hold
  for (Draw& d : draws) {
    d.out.take_all(*d.answer);
    EXPECT_TRUE(d.answer->done());
    const Outcome want = alone(d.request, solo, config);
    if (!d.cancelled) {
      expect_same(d.out, want);
    } else {  // what came before the cancellation is right
      for (size_t c = 0; c < d.out.choices.size(); ++c) {
        const auto& said = d.out.choices[c].tokens;
        ASSERT_LE(said.size(), want.choices[c].tokens.size());
        EXPECT_TRUE(std::equal(said.begin(), said.end(), want.choices[c].tokens.begin()));
      }
    }
    if (testing::Test::HasFailure()) return;
    ASSERT_TRUE(d.out.usage);
    totals.preempted += d.out.usage->preemptions;
  }
  const EngineStats s = rig.engine.stats();
  EXPECT_EQ(s.running + s.queued + s.swapped + s.swap_bytes + s.slots_running, 0);
  EXPECT_EQ(s.pages_used, s.pages_cached);  // nothing leaked
  EXPECT_EQ(s.finished + s.cancelled, requests);
  totals.hits += s.cache_hits;
  totals.accepted += s.accepted;
  totals.cancelled += s.cancelled;
  totals.finished += s.finished;
  totals.moved += s.preempted_swap;
}

void random_requests(uint64_t first_seed, int rounds, int a_round, int64_t longest) {
  Totals totals;
  for (int i = 0; i < rounds && !testing::Test::HasFailure(); ++i)
    random_rounds(first_seed + uint64_t(i), a_round, longest, totals);
  if (testing::Test::HasFailure()) return;
  // The sweep went where it was meant to go.
  EXPECT_GT(totals.preempted, rounds / 2);
  EXPECT_GT(totals.moved, rounds / 4);
  EXPECT_GT(totals.hits, rounds);
  EXPECT_GT(totals.accepted, rounds);
  EXPECT_GT(totals.cancelled, rounds / 2);
  EXPECT_GT(totals.finished, 5 * rounds);
}

TEST(EngineRandom, EachSaysWhatItSaysAlone) {
  random_requests(1, 12, 12, 300);
}

TEST(FullEngineRandom, AThousandRequests) {
  random_requests(1000, 50, 16, 300);
  random_requests(2000, 12, 18, 2700);  // up to 4k tokens with the answers
}

}  // namespace
}  // namespace hysparse
