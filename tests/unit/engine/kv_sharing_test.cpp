// Pages and rings that several sequences and a cache hold; drafts; moves to host memory and back.
#include <gtest/gtest.h>

#include "kv_driver.h"

namespace hysparse {
namespace {

using namespace tests;

ModelConfig small_pages(int64_t window) {
  ModelConfig c = tiny_config();
  c.hysparse_block_size = 4;
  c.hysparse_topk_tokens = 16;
  c.sliding_window = window;
  return c;
}

PagedKvOptions sharing(int64_t tokens, int64_t sequences, int64_t page, int64_t slots) {
  PagedKvOptions o = kv_options(tokens, sequences, page);
  o.slots = slots;
  return o;
}

TEST(KvSharing, AForkReadsTheSameAndWritesItsOwn) {
  KvDriver d(small_pages(9), sharing(200, 3, 8, 3));
  d.step({0}, {21});
  d.fork(0, 1);
  EXPECT_EQ(d.kv().pages_in_use(), 3);  // nothing was copied
  d.step({1}, {1});
  EXPECT_EQ(d.kv().pages_in_use(), 4);  // the page in the middle was
  d.step({0, 1}, {5, 2});
  d.fork(1, 2);
  d.kv().clear(1);
  EXPECT_EQ(d.kv().length(2), 24);
}

TEST(KvSharing, ASharedPageThatIsFullIsNeverCopied) {
  KvDriver d(small_pages(9), sharing(200, 2, 8, 2));
  d.step({0}, {16});
  d.fork(0, 1);
  d.step({0, 1}, {1, 1});
  EXPECT_EQ(d.kv().pages_in_use(), 4);
}

TEST(KvSharing, ASnapshotServesItsLengthAndOneLess) {
  for (const int64_t length : {7, 8, 9, 16, 17, 40, 41}) {
    SCOPED_TRACE(length);
    KvDriver d(small_pages(9), sharing(200, 3, 8, 4));
    d.step({0}, {length});
    d.hold(0);
    d.step({0}, {30});
    d.attach(0, 1, length);
    d.step({1}, {3});
    d.attach(0, 2, length - 1);
    d.step({2}, {1});
    d.step({2, 0, 1}, {20, 1, 5});
    EXPECT_TRUE(d.kv().rings_serve(length - 1, length));
    EXPECT_EQ(d.kv().rings_serve(length - 2, length), length <= 9);
    d.drop(0);
  }
}

TEST(KvSharing, DraftsThatAreRefusedLeaveNoTrace) {
  for (const int64_t window : {1, 2, 9, 16})
    for (int64_t kept = 1; kept <= 20; ++kept) {
      SCOPED_TRACE(testing::Message() << window << " " << kept);
      KvDriver d(small_pages(window), sharing(200, 2, 8, 2));
      d.step({0, 1}, {13, 3});
      d.step({1, 0}, {2, 20}, true, {1, kept});
      EXPECT_EQ(d.length(0), 13 + kept);
      EXPECT_EQ(d.kv().pages_in_use(), (13 + kept + 7) / 8 + 1);
      d.step({0, 1}, {1, 1});
      d.step({0}, {12});
    }
}

TEST(KvSharing, MovedOutAndBack) {
  KvDriver d(small_pages(9), sharing(200, 3, 8, 3));
  d.step({0, 1}, {29, 5});
  d.fork(0, 2);
  d.move_out(0);
  EXPECT_EQ(d.kv().length(0), 0);
  d.step({2, 1}, {4, 4});
  d.move_in(0, 0);
  d.step({0, 1, 2}, {1, 1, 1});
  d.move_out(1);
  d.move_out(2);
  EXPECT_EQ(d.kv().free_slots(), 2);
  d.move_in(2, 1);
  d.move_in(1, 2);
  d.step({0, 1, 2}, {9, 8, 7});
}

TEST(KvSharing, WithoutFreeSlotsOrPagesNothingChanges) {
  KvDriver d(small_pages(9), sharing(200, 2, 8, 1));
  d.step({0}, {20});
  RaggedBatch batch;
  batch.add_sequence(3, 0);
  EXPECT_THROW(d.kv().begin_step({1}, batch), Error);
  EXPECT_THROW(d.kv().fork(0, 1), Error);
  d.check();
  PagedKvOptions o = sharing(200, 2, 8, 2);
  o.max_pages = 3;
  o.reserve_pages = true;
  KvDriver pages(small_pages(9), o);
  EXPECT_EQ(pages.kv().reserved_bytes(), 3 * 8 * pages.plan_bytes().per_token + 2 * pages.plan_bytes().rings);
  pages.step({0}, {20});
  pages.fork(0, 1);
  EXPECT_EQ(pages.kv().pages_missing(1, 21), 1);  // the copy
  EXPECT_FALSE(pages.kv().fits(1, 21));
  RaggedBatch one;
  one.add_sequence(1, 20);
  EXPECT_THROW(pages.kv().begin_step({1}, one), Error);
  pages.check();
  pages.kv().clear(0);
}

// Steps, drafts, forks, snapshots, moves, cuts: every view of every step is what a plain copy says, and every
// page and slot is accounted for after each of them.
TEST(KvSharing, RandomLife) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    constexpr int kSequences = 4;
    PagedKvOptions o = sharing(120, kSequences, seed % 3 ? 8 : 12, 7);
    o.kv_dtype = kv_dtype_of(seed / 4);
    KvDriver d(small_pages(seed % 2 ? 9 : 16), o);
    Rng rng(seed);
    const auto some = [&] { return int(rng.below(kSequences)); };
    for (int i = 0; i < 250; ++i) {
      const int id = some(), other = some();
      switch (rng.below(12)) {
        default: {
          std::vector<int> ids;
          std::vector<int64_t> counts, kept;
          for (int s = kSequences - 1; s >= 0; --s) {
            const int64_t room = 120 - d.length(s);
            if (rng.below(2) == 0 || room == 0) continue;
            if (d.length(s) == 0 && d.kv().free_slots() < kSequences) continue;
            ids.push_back(s);
            counts.push_back(1 +
                             int64_t(rng.below(uint64_t(std::min<int64_t>(room, rng.below(3) ? 3 : 30)))));
            kept.push_back(1 + int64_t(rng.below(uint64_t(counts.back()))));
          }
          if (!ids.empty())
            d.step(ids, counts, rng.below(8) != 0, rng.below(2) ? kept : std::vector<int64_t>{});
          break;
        }
        case 0:
          d.truncate(id, int64_t(rng.below(uint64_t(d.length(id)) + 1)));
          break;
        case 1:
          if (d.length(id) > 0 && d.length(other) == 0 && d.kv().free_slots() > 0) d.fork(id, other);
          break;
        case 2:
          if (d.length(id) > 0 && d.kv().free_slots() > 0 && d.held.size() < 3) d.hold(id);
          break;
        case 3:
          if (!d.held.empty()) d.drop(rng.below(d.held.size()));
          break;
        case 4:
          if (!d.held.empty() && d.length(id) == 0 && d.kv().free_slots() > 0) {
            const size_t h = rng.below(d.held.size());
            const auto length = int64_t(d.held[h].history.size());
            d.attach(h, id, std::max<int64_t>(1, length - int64_t(rng.below(2))));
          }
          break;
        case 5:
          if (d.length(id) > 0 && !d.images.count(id)) d.move_out(id);
          break;
        case 6:
          if (!d.images.empty() && d.length(id) == 0 && d.kv().free_slots() > 0)
            d.move_in(d.images.begin()->first, id);
          break;
        case 7:
          if (rng.below(3) == 0) d.truncate(id, 0);
          break;
      }
    }
    while (!d.held.empty()) d.drop(0);
    for (int s = 0; s < kSequences; ++s) d.truncate(s, 0);
    EXPECT_EQ(d.kv().pages_in_use(), 0);
    EXPECT_EQ(d.kv().free_slots(), 7);
  }
}

}  // namespace
}  // namespace hysparse
