// What is loaded and freed again leaves nothing behind: no memory, no threads, no open files. (Under
// AddressSanitizer the leak check at the program's end sees to single blocks, too.)
#include <malloc.h>

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

TEST(CapiLeaks, LoadingAndFreeingAgainAndAgainHoldsNothing) {
  for (const char* dtype : {"f32", "bf16"}) {
    for (int i = 0; i < 10; ++i)
      load_use_and_free(dtype);  // what is made once, and the allocator's own habits
    const Held before = held();
    for (int i = 0; i < 40; ++i) load_use_and_free(dtype);
    const Held after = held();
    EXPECT_LE(after.heap, before.heap + 4096) << dtype;  // a model of this size is a hundred times that
    EXPECT_LE(after.pages, before.pages + 1024) << dtype;
    EXPECT_EQ(after.threads, before.threads) << dtype;
    EXPECT_EQ(after.files, before.files) << dtype;
  }
}

}  // namespace
}  // namespace hysparse::tests
