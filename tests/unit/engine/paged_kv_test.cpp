#include "engine/paged_kv.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "kv_driver.h"
#include "tiny.h"

namespace hysparse {
namespace {

using tests::kv_options;
using tests::KvDriver;
using tests::tiny_config;

TEST(PagedKv, ReturnsWhatWasPutInForEveryChunkSize) {
  for (const int64_t chunk : {1, 17, 64, 127, 128, 129, 256, 700}) {
    SCOPED_TRACE(chunk);
    KvDriver d(tiny_config(), kv_options(700));
    for (int64_t done = 0; done < 700; done += chunk) d.step({0}, {std::min(chunk, 700 - done)});
    EXPECT_EQ(d.kv().pages_in_use(), 11);
  }
}

TEST(PagedKv, EveryLayoutAndDtype) {
  for (const AttentionKind kind :
       {AttentionKind::full, AttentionKind::hybrid_swa, AttentionKind::hysparse, AttentionKind::window})
    for (const WindowMode mode : {WindowMode::own, WindowMode::shared, WindowMode::none})
      for (const auto& [dtype, kv] : {std::pair{DType::f64, KvDtype::compute},
                                      {DType::f32, KvDtype::compute},
                                      {DType::bf16, KvDtype::compute},
                                      {DType::f32, KvDtype::int8},
                                      {DType::bf16, KvDtype::fp8},
                                      {DType::bf16, KvDtype::int8}}) {
        ModelConfig c = tiny_config(kind);
        c.hysparse_window = mode;
        c.sliding_window = 5;
        c.v_head_dim = 16;
        PagedKvOptions o = kv_options(100);
        o.dtype = dtype;
        o.kv_dtype = kv;
        KvDriver d(c, o);
        for (const int64_t n : {1, 4, 1, 12, 5, 3, 30}) d.step({0}, {n});
        const KvBytes bytes = kv_bytes(d.config(), d.plan(), int(size_of(dtype)), kv);
        EXPECT_EQ(d.kv().ring_bytes(), bytes.rings);
        EXPECT_EQ(d.kv().page_bytes(), bytes.per_token * 64);
      }
}

// A random life of three sequences: steps that mix them, are dropped, cut back, cleared, reserved.
TEST(PagedKv, RandomLife) {
  for (uint64_t seed = 0; seed < 9; ++seed) {
    SCOPED_TRACE(seed);
    ModelConfig c = tiny_config();
    c.hysparse_block_size = 4;
    c.hysparse_topk_tokens = 16;
    c.sliding_window = seed % 2 ? 9 : 16;
    PagedKvOptions o = kv_options(200, 3, seed % 3 ? 8 : 12);
    if (seed >= 6) o.kv_dtype = tests::kv_dtype_of(seed - 5);
    KvDriver d(c, o, seed >= 3);
    Rng rng(seed);
    for (int i = 0; i < 120; ++i) {
      const uint64_t what = rng.below(10);
      const int id = int(rng.below(3));
      if (what < 7) {
        std::vector<int> ids;
        std::vector<int64_t> counts;
        for (int s = 2; s >= 0; --s) {
          const int64_t room = 200 - d.length(s);
          if (rng.below(2) == 0 || room == 0) continue;
          ids.push_back(s);
          counts.push_back(1 + int64_t(rng.below(uint64_t(std::min<int64_t>(room, rng.below(3) ? 3 : 40)))));
        }
        if (!ids.empty()) d.step(ids, counts, what != 0);
      } else if (what == 7) {
        d.truncate(id, int64_t(rng.below(uint64_t(d.length(id)) + 1)));
      } else if (what == 8) {
        d.truncate(id, std::max<int64_t>(0, d.length(id) - 1));
      } else if (rng.below(4) == 0) {
        EXPECT_TRUE(d.truncate(id, 0));
      } else {
        d.kv().reserve(id, std::min<int64_t>(200, d.length(id) + 30));
        d.check();
      }
    }
  }
}

// The query at position n needs the keys n-w+1 .. n-1 and the ring holds the last w: cutting one token back
// is always possible, more only while nothing was overwritten.
TEST(PagedKv, TruncatesOnlyWhereTheWindowIsStillThere) {
  ModelConfig c = tiny_config();
  c.sliding_window = 16;
  for (const int64_t total : {1, 15, 16, 17, 18, 40})
    for (int64_t keep = 0; keep <= total; ++keep) {
      SCOPED_TRACE(testing::Message() << keep << " of " << total);
      KvDriver d(c, kv_options(100));
      d.step({0}, {total});
      const bool possible = total <= 16 || keep >= total - 1 || keep == 0;
      EXPECT_EQ(d.truncate(0, keep), possible);
      EXPECT_EQ(d.length(0), possible ? keep : total);
      d.step({0}, {1});
      d.step({0}, {20});
    }
  // A second cut must not be judged by the new length: what the ring lost stays lost.
  KvDriver d(c, kv_options(100));
  d.step({0}, {40});
  EXPECT_TRUE(d.truncate(0, 39));
  EXPECT_FALSE(d.truncate(0, 38));
  d.step({0}, {1});
  EXPECT_TRUE(d.truncate(0, 39));
  EXPECT_FALSE(d.truncate(0, 38));
  // Without rings any length is possible.
  for (const AttentionKind kind : {AttentionKind::full, AttentionKind::hysparse}) {
    c.attention = kind;
    c.hysparse_window = WindowMode::none;
    KvDriver free(c, kv_options(100));
    free.step({0}, {90});
    EXPECT_TRUE(free.truncate(0, 3));
    free.step({0}, {20});
  }
  c = tiny_config();
  c.sliding_window = 1;  // a query needs no earlier key at all
  KvDriver one(c, kv_options(100));
  one.step({0}, {90});
  EXPECT_TRUE(one.truncate(0, 30));
  one.step({0}, {5});
}

TEST(PagedKv, PageSizeIsAMultipleOfTheBlock) {
  for (const int64_t block : {1, 4, 16, 48, 64, 96, 128}) {
    ModelConfig c = tiny_config();
    c.hysparse_block_size = block;
    c.hysparse_topk_tokens = 2 * block;
    KvDriver d(c, kv_options(1000));
    EXPECT_EQ(d.kv().page_size() % block, 0);
    EXPECT_GE(d.kv().page_size(), 64);
  }
  EXPECT_EQ(KvDriver(tiny_config(), kv_options(1000, 1, 128)).kv().page_size(), 128);
  for (const int64_t bad : {1, 63, 65, 100, -64}) {
    try {
      KvDriver d(tiny_config(), kv_options(1000, 1, bad));
      ADD_FAILURE() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::input);
      EXPECT_NE(std::string(e.what()).find("multiple of the selection block (64)"), std::string::npos)
          << e.what();
    }
  }
}

TEST(PagedKv, LimitsAreCheckedBeforeAnythingChanges) {
  KvDriver d(tiny_config(), kv_options(130));
  d.step({0}, {128});
  RaggedBatch batch;
  batch.add_sequence(3, 128);
  EXPECT_THROW(d.kv().begin_step({0}, batch), Error);
  d.check();
  d.step({0}, {2});
  EXPECT_FALSE(d.kv().fits(0, 131));

  // A pool that is smaller than the sequences may become: refused, nothing half done, and usable after a
  // clear.
  PagedKvOptions o = kv_options(640, 2);
  o.max_pages = 4;
  KvDriver small(tiny_config(), o);
  EXPECT_TRUE(small.kv().fits(0, 256));
  EXPECT_FALSE(small.kv().fits(0, 257));
  small.step({0}, {100});
  EXPECT_TRUE(small.kv().fits(1, 128));
  EXPECT_FALSE(small.kv().fits(1, 129));
  RaggedBatch both;
  both.add_sequence(60, 100);
  both.add_sequence(120, 0);
  try {
    small.kv().begin_step({0, 1}, both);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::failure);
  }
  small.check();
  EXPECT_EQ(small.kv().pages_in_use(), 2);
  EXPECT_TRUE(small.truncate(0, 0));
  small.step({1}, {256});
}

TEST(PagedKv, MisuseIsCaught) {
  KvDriver d(tiny_config(), kv_options(100, 2));
  RaggedBatch batch;
  batch.add_sequence(3, 0);
  EXPECT_THROW(d.kv().begin_step({2}, batch), Error);     // no such sequence
  EXPECT_THROW(d.kv().begin_step({0, 1}, batch), Error);  // not the batch's number
  RaggedBatch twice = batch;
  twice.add_sequence(3, 0);
  EXPECT_THROW(d.kv().begin_step({0, 0}, twice), Error);
  RaggedBatch later;
  later.add_sequence(3, 5);
  EXPECT_THROW(d.kv().begin_step({0}, later), Error);  // past_len is not what is cached
  EXPECT_THROW(d.kv().commit(), Error);
  d.kv().begin_step({0}, batch);
  EXPECT_THROW(d.kv().begin_step({0}, batch), Error);
  EXPECT_THROW(d.kv().truncate(0, 0), Error);
  const Tensor k(DType::f32, {3, 2, 32}), wrong(DType::f32, {3, 2, 16}), other(DType::f64, {3, 2, 32});
  EXPECT_THROW(d.kv().append(0, batch, k, wrong), Error);
  EXPECT_THROW(d.kv().append(0, batch, k, other), Error);
  d.kv().append(0, batch, k, k);
  EXPECT_THROW(d.kv().append(0, batch, k, k), Error);
  EXPECT_THROW(d.kv().commit(), Error);  // the other layers are missing
  d.kv().discard();
  d.check();
}

TEST(PagedKv, DroppedStepsAndClearedSequencesLeaveNothingBehind) {
  KvDriver d(tiny_config(), kv_options(1000, 2));
  d.step({0}, {100});
  const int64_t pages = d.kv().pages_in_use();
  d.step({0, 1}, {300, 70}, false);
  EXPECT_EQ(d.kv().pages_in_use(), pages);
  d.step({0}, {100});
  EXPECT_TRUE(d.truncate(0, 0));  // 200 tokens had wrapped the ring: a new sequence starts afresh
  EXPECT_EQ(d.kv().pages_in_use(), 0);
  d.step({0}, {90});
  EXPECT_TRUE(d.truncate(0, 20));
  d.step({0}, {90});
}

// What a twin pays: counted from the caches themselves.
TEST(PagedKv, MeasuredBytesAgreeWithThePlan) {
  for (const AttentionKind kind : {AttentionKind::full, AttentionKind::hybrid_swa, AttentionKind::hysparse})
    for (const int64_t tokens : {1024, 4096}) {
      KvDriver d(tiny_config(kind), kv_options(4096));
      d.kv().reserve(0, tokens);
      const KvBytes plan = kv_bytes(d.config(), d.plan(), 4);
      EXPECT_EQ(d.kv().page_bytes() + d.kv().ring_bytes(), plan.at(tokens));
      EXPECT_GE(d.kv().reserved_bytes(), plan.at(tokens));
    }
}

}  // namespace
}  // namespace hysparse
