// The rules for threads and fork(): calls take turns, a generation serves one thread, a child has none of
// them.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "base/sanitizer.h"
#include "unit/capi/support.h"

namespace hysparse::tests {
namespace {

hysparse_generate_options options(uint64_t seed) {
  hysparse_generate_options o = HYSPARSE_GENERATE_OPTIONS_INIT;
  o.max_new_tokens = 40;
  o.ignore_eos = 1;
  o.seed = seed;
  return o;
}

TEST(CapiThreads, OneModelServesManyThreads) {
  const ModelHandle m = load();
  std::vector<Told> want;
  for (uint64_t i = 0; i < 4; ++i) want.push_back(read_to_end(start(m, {int32_t(i), 9}, options(i))));
  std::vector<float> alone(3 * 310);
  const int32_t ids[] = {3, 1, 4};
  ASSERT_EQ(hysparse_logits(m.get(), ids, 3, alone.data(), alone.size()), 0);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      EXPECT_EQ(read_to_end(start(m, {int32_t(i), 9}, options(i))).tokens, want[i].tokens);
      std::vector<float> logits(3 * 310);
      EXPECT_EQ(hysparse_logits(m.get(), ids, 3, logits.data(), logits.size()), 0);
      EXPECT_EQ(logits, alone);
      char* json = nullptr;  // each thread has its own message
      EXPECT_REFUSED(hysparse_plan(std::to_string(i).c_str(), nullptr, &json), "plan options");
    });
  for (std::thread& t : threads) t.join();
}

TEST(CapiThreads, InterleavedGenerationsDoNotMeet) {
  const ModelHandle m = load();
  const Told a = read_to_end(start(m, {1, 2, 3}, options(1))), b = read_to_end(start(m, {7}, options(2)));
  const GenerationHandle first = start(m, {1, 2, 3}, options(1)), second = start(m, {7}, options(2));
  std::vector<int32_t> of_first, of_second;
  hysparse_piece piece{};
  piece.size = sizeof piece;
  for (int code = 0; code == 0;) {
    code = hysparse_generation_next(first.get(), &piece);
    if (piece.token >= 0) of_first.push_back(piece.token);
    ASSERT_GE(hysparse_generation_next(second.get(), &piece), 0);
    if (piece.token >= 0) of_second.push_back(piece.token);
  }
  EXPECT_EQ(of_first, a.tokens);
  EXPECT_EQ(of_second, b.tokens);
}

TEST(CapiThreads, AGenerationServesOneThreadAtATime) {
  const ModelHandle m = load();
  hysparse_generate_options o = options(1);
  o.max_new_tokens = -1;
  std::atomic<int> busy{0}, bad{0}, tokens{0};
  for (int round = 0; round < 20; ++round) {
    const GenerationHandle g = start(m, {1, 2, 3}, o);
    tokens = 0;
    const auto read = [&] {
      hysparse_piece piece{};
      piece.size = sizeof piece;
      for (int code = 0; code != HYSPARSE_END;) {
        code = hysparse_generation_next(g.get(), &piece);
        if (code == HYSPARSE_BUSY)
          ++busy;
        else if (code < 0)
          ++bad;
        else if (piece.token >= 0)
          ++tokens;
      }
    };
    std::thread other(read);
    read();
    other.join();
    EXPECT_EQ(tokens, 253);  // none lost, none twice
    if (busy > 0) break;
  }
  EXPECT_GT(busy, 0);
  EXPECT_EQ(bad, 0);
}

TEST(CapiThreads, CancelFromAnotherThreadEndsTheAnswer) {
  const ModelHandle m = load();
  hysparse_generate_options o = options(1);
  o.max_new_tokens = -1;
  const GenerationHandle g = start(m, {1}, o);
  hysparse_piece piece{};
  piece.size = sizeof piece;
  for (int i = 0; i < 5; ++i) ASSERT_EQ(hysparse_generation_next(g.get(), &piece), HYSPARSE_OK);
  std::thread([&] { EXPECT_EQ(hysparse_generation_cancel(g.get()), 0); }).join();
  EXPECT_EQ(hysparse_generation_next(g.get(), &piece), HYSPARSE_END);
  hysparse_generation_result r{};
  r.size = sizeof r;
  ASSERT_EQ(hysparse_generation_get_result(g.get(), &r), 0);
  EXPECT_EQ(r.finish, HYSPARSE_FINISH_CANCELLED);
  EXPECT_EQ(r.token_count, 4u);  // the first step read the prompt
}

TEST(CapiThreads, FreeingUnderARunningCallIsSafe) {
  for (int round = 0; round < 5; ++round) {
    ModelHandle m = load();
    hysparse_generate_options o = options(1);
    o.max_new_tokens = -1;
    GenerationHandle g = start(m, {1, 2, 3}, o);
    hysparse_generation* shared = g.get();
    std::atomic<int> steps{0};
    std::thread reader([&] {
      hysparse_piece piece{};
      piece.size = sizeof piece;
      while (hysparse_generation_next(shared, &piece) == HYSPARSE_OK) ++steps;
    });
    while (steps < 3) std::this_thread::yield();
    m.reset();
    g.reset();
    reader.join();
  }
}

// The child exits with the number of the first check that failed.
int in_child(const std::function<int()>& checks) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    _exit(checks());
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

#if !defined(HYSPARSE_TSAN)  // ThreadSanitizer allows no new threads in a forked child
TEST(CapiThreads, AForkedChildIsRefusedAndMayLoadItsOwn) {
  ModelHandle m = load();
  GenerationHandle g = start(m, {1, 2, 3}, options(1));
  hysparse_tokenizer* t = nullptr;
  ASSERT_EQ(hysparse_model_tokenizer(m.get(), &t), 0);
  const TokenizerHandle owned(t);
  const Told want = read_to_end(start(m, {1, 2, 3}, options(1)));
  const int code = in_child([&] {
    std::vector<float> logits(310);
    const int32_t id = 5;
    if (hysparse_logits(m.get(), &id, 1, logits.data(), logits.size()) != HYSPARSE_BAD_ARGUMENT) return 1;
    if (last_error() !=
        "model: it was made before fork() and cannot be used in the child (load the model in the child)")
      return 2;
    hysparse_piece piece{};
    piece.size = sizeof piece;
    if (hysparse_generation_next(g.get(), &piece) != HYSPARSE_BAD_ARGUMENT) return 3;
    int32_t* ids = nullptr;
    size_t count = 0;
    if (hysparse_tokenizer_encode(t, "fox", 3, 0, &ids, &count) != 0) return 4;
    hysparse_free(ids);
    if (hysparse_generation_free(g.release()) != 0)
      return 5;  // these must not wait for threads that are not there
    if (hysparse_model_free(m.release()) != 0) return 6;
    ModelHandle own = load();
    if (read_to_end(start(own, {1, 2, 3}, options(1))).tokens != want.tokens) return 7;
    own.reset();
    return 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(read_to_end(g).tokens, want.tokens);  // the parent's are as they were
}
#endif

TEST(CapiThreads, ForkingWhileOthersCallLeavesTheChildFree) {
  std::atomic<bool> stop{false};
  std::thread other([&] {  // in and out of the library's lock
    while (!stop) hysparse_model_free(reinterpret_cast<hysparse_model*>(uintptr_t(1)));
  });
  for (int i = 0; i < 50; ++i)
    EXPECT_EQ(in_child([] {
                return hysparse_model_free(nullptr) == 0 &&
                               hysparse_model_free(reinterpret_cast<hysparse_model*>(uintptr_t(1))) ==
                                   HYSPARSE_BAD_ARGUMENT
                           ? 0
                           : 1;
              }),
              0);
  stop = true;
  other.join();
}

}  // namespace
}  // namespace hysparse::tests
