// What is loaded and freed again leaves nothing behind: no memory, no threads, no open files. (Under
// AddressSanitizer the leak check at the program's end sees to single blocks, too.)
#include <malloc.h>

#include <algorithm>
#include <cstdint>

#include "unit/capi/support.h"

namespace hysparse::tests {
namespace {

struct Held {
  size_t heap = 0, pages = 0, threads = 0, files = 0;
};

size_t entries(const char* folder) {
  size_t n = 0;
  for (const auto& entry : fs::directory_iterator(folder)) n += !entry.path().empty();
  return n;
}

Held held() {
  const struct mallinfo2 info = mallinfo2();
  Held h{info.uordblks + info.hblkhd, 0, entries("/proc/self/task"), entries("/proc/self/fd")};
  std::ifstream("/proc/self/statm") >> h.pages;
  return h;
}

void load_use_and_free(const char* dtype) {
  const ModelHandle m = load(Files::get().model(), 2, dtype);
  hysparse_tokenizer* tokenizer = nullptr;
  ASSERT_EQ(hysparse_model_tokenizer(m.get(), &tokenizer), 0);
  const TokenizerHandle t(tokenizer);
  hysparse_generate_options o = HYSPARSE_GENERATE_OPTIONS_INIT;
  o.max_new_tokens = 4;
  hysparse_generation* g = nullptr;
  ASSERT_EQ(hysparse_generate(m.get(), "the quick", 9, &o, nullptr, nullptr, &g), 0) << last_error();
  const GenerationHandle finished(g);
  const GenerationHandle unfinished = start(m, {1, 2, 3}, o);
  std::vector<float> logits(3 * 310);
  const int32_t ids[] = {4, 5, 6};
  ASSERT_EQ(hysparse_logits(m.get(), ids, 3, logits.data(), logits.size()), 0) << last_error();
  hysparse_model* none = nullptr;  // a load that fails holds nothing either
  EXPECT_REFUSED(hysparse_model_load("no/such/model", nullptr, &none), "no/such/model");
  EXPECT_REFUSED(hysparse_logits(m.get(), ids, 3, logits.data(), 1), "expected room for 930 floats");
}

// Caches of the allocator fill for a while, by kilobytes and then no more; what is lost with every load grows
// in every round. So the round that grew least counts: 32 bytes a load would be 1,280.
TEST(CapiLeaks, LoadingAndFreeingAgainAndAgainHoldsNothing) {
  constexpr int kRounds = 6, kLoads = 40;
  for (const char* dtype : {"f32", "bf16"}) {
    for (int i = 0; i < 10; ++i) load_use_and_free(dtype);  // what is made once
    const Held first = held();
    Held before = first;
    int64_t least = INT64_MAX;
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < kLoads; ++i) load_use_and_free(dtype);
      const Held after = held();
      least = std::min(least, int64_t(after.heap) - int64_t(before.heap));
      before = after;
    }
    EXPECT_LT(least, 32 * kLoads) << dtype;
    EXPECT_LE(before.heap, first.heap + 32768) << dtype;  // a model of this size is a dozen times that
    EXPECT_LE(before.pages, first.pages + 1024) << dtype;
    EXPECT_EQ(before.threads, first.threads) << dtype;
    EXPECT_EQ(before.files, first.files) << dtype;
  }
}

}  // namespace
}  // namespace hysparse::tests
