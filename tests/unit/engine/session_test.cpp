#include "engine/session.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "backends.h"
#include "base/error.h"
#include "base/rng.h"
#include "engine/generate.h"
#include "tiny.h"

namespace hysparse {
namespace {

using tests::Backend;
using tests::load;
using tests::tiny_config;

// Memory between two walls of a pattern; check() sees a write outside any allocation that lives.
class GuardedMemory final : public Memory {
 public:
  DeviceKind device() const override { return DeviceKind::cpu; }
  void* allocate(size_t bytes) override {
    auto* base = static_cast<std::byte*>(host_memory().allocate(bytes + 2 * kWall));
    std::memset(base, 0x5a, kWall);
    std::memset(base + kWall + bytes, 0x5a, kWall);
    const std::lock_guard lock(mutex_);
    live_[base + kWall] = bytes;
    return base + kWall;
  }
  void release(void* p, size_t bytes) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      EXPECT_TRUE(intact(static_cast<std::byte*>(p), live_.at(static_cast<std::byte*>(p))));
      live_.erase(static_cast<std::byte*>(p));
    }
    host_memory().release(static_cast<std::byte*>(p) - kWall, bytes + 2 * kWall);
  }
  void zero(void* p, size_t bytes) override { std::memset(p, 0, bytes); }
  void from_host(void* dst, const void* host, size_t bytes) override { std::memcpy(dst, host, bytes); }
  void to_host(void* host, const void* src, size_t bytes) override { std::memcpy(host, src, bytes); }
  void copy(void* dst, const void* src, size_t bytes) override { std::memmove(dst, src, bytes); }
  void check() {
    const std::lock_guard lock(mutex_);
    for (const auto& [p, bytes] : live_) EXPECT_TRUE(intact(p, bytes));
  }

 private:
  static constexpr size_t kWall = 4096;
  static bool intact(const std::byte* p, size_t bytes) {
    for (size_t i = 0; i < kWall; ++i)
      if (p[-1 - std::ptrdiff_t(i)] != std::byte{0x5a} || p[bytes + i] != std::byte{0x5a}) return false;
    return true;
  }
  std::mutex mutex_;
  std::map<std::byte*, size_t> live_;
};

struct Tiny {
  Tiny(ModelConfig c, DType compute, int threads = 1, Memory& memory = host_memory())
      : config([&] {
          c.finalize("test");
          return c;
        }()),
        plan(build_layer_plan(config)),
        weights(config, plan, WeightOptions{.compute = compute}, memory),
        model(config, weights),
        pool(threads),
        scratch(memory),
        rt{pool, scratch, compute == DType::f64 ? ref_ops() : cpu_ops(), memory} {
    weights.init_random(config, plan, 3);
    uint64_t stream = 0;
    for (Weight* w : weights.all()) {
      ++stream;
      if (w->name.find("sinks") == std::string::npos) continue;
      for (int64_t i = 0; i < w->value.numel(); ++i)
        tests::store(w->value, i, Rng(9, stream, uint64_t(2 * i)).normal());
      ++w->version;
    }
  }
  ModelConfig config;
  LayerPlan plan;
  Weights weights;
  Model model;
  ThreadPool pool;
  Arena scratch;
  Runtime rt;
};

std::vector<int32_t> tokens(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(int32_t(rng.below(97)));
  return out;
}

std::vector<double> values(const TensorView& logits) {
  std::vector<double> out;
  for (int64_t i = 0; i < logits.dim(0); ++i) out.push_back(load(logits, i));
  return out;
}

SessionOptions poisoned(int64_t chunk = 512) {
  SessionOptions o;
  o.chunk = chunk;
  o.poison = std::nan("");
  return o;
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  double scale = 0;
  for (const double x : b) scale = std::max(scale, std::abs(x));
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance * scale) << i;
}

// The logits after `prompt`, and after each of `then` tokens more.
std::vector<std::vector<double>> answers(Session& s, const std::vector<int32_t>& prompt, int then = 4) {
  std::vector<std::vector<double>> out{values(s.prompt(prompt))};
  for (int i = 0; i < then; ++i) out.push_back(values(s.decode(int32_t(7 * i + 1))));
  s.kv().check();
  return out;
}

TEST(Session, LogitsDoNotDependOnTheChunk) {
  Tiny t(tiny_config(), DType::f64);
  const std::vector<int32_t> prompt = tokens(700, 1);
  Session whole(t.rt, t.model, poisoned(700));
  const auto want = answers(whole, prompt);
  for (const int64_t chunk : {17, 64, 127, 128, 129, 256}) {
    SCOPED_TRACE(chunk);
    Session s(t.rt, t.model, poisoned(chunk));
    const auto got = answers(s, prompt);
    for (size_t i = 0; i < want.size(); ++i) expect_near(got[i], want[i], 1e-10);
  }
}

// Request A, then B that shares a prefix and then differs: B must equal a cold run, whether the window state
// at the split is still there or not.
TEST(Session, APrefixIsReusedOrRecomputedNeverGuessed) {
  Tiny t(tiny_config(), DType::f64);
  struct Case {
    int64_t first, shared, reused;  // tokens of A (then 4 are decoded); of B's common prefix; kept from it
  };
  // 4 decoded tokens follow A. The ring of 128 wraps at token 129: until then any split keeps its prefix,
  // after it only the whole sequence but its last token.
  for (const Case& c : {Case{600, 300, 0},
                        {200, 127, 0},
                        {200, 128, 0},
                        {200, 129, 0},
                        {200, 199, 0},
                        {200, 200, 0},
                        {200, 203, 203},
                        {200, 204, 204},
                        {200, 0, 0},
                        {100, 50, 50},
                        {100, 1, 1},
                        {124, 100, 100},
                        {124, 127, 127},
                        {124, 128, 128},
                        {125, 100, 0},
                        {125, 127, 0},
                        {125, 128, 128},
                        {125, 129, 129}}) {
    SCOPED_TRACE(testing::Message() << "A " << c.first << " shared " << c.shared);
    std::vector<int32_t> a = tokens(c.first, 5);
    Session warm(t.rt, t.model, poisoned(100));
    answers(warm, a);
    a = warm.tokens();
    std::vector<int32_t> b(a.begin(), a.begin() + c.shared);
    for (const int32_t x : tokens(30, 8)) b.push_back(x);
    if (c.shared < int64_t(a.size())) b[size_t(c.shared)] = (a[size_t(c.shared)] + 1) % 97;
    Session cold(t.rt, t.model, poisoned(100));
    const auto want = answers(cold, b), got = answers(warm, b);
    EXPECT_EQ(warm.reused(), c.reused);
    for (size_t i = 0; i < want.size(); ++i) expect_near(got[i], want[i], 1e-10);
  }
}

TEST(Session, APromptThatIsAlreadyCachedStillGivesItsLogits) {
  Tiny t(tiny_config(), DType::f64);
  for (const int64_t n : {1, 2, 100, 300}) {
    const std::vector<int32_t> prompt = tokens(n, 2);
    Session s(t.rt, t.model, poisoned());
    const auto first = values(s.prompt(prompt));
    expect_near(values(s.prompt(prompt)), first, 1e-10);
    EXPECT_EQ(s.reused(), n - 1);
    EXPECT_EQ(s.length(), n);
    const std::vector<int32_t> shorter(prompt.begin(), prompt.begin() + (n + 1) / 2);
    Session cold(t.rt, t.model, poisoned());
    expect_near(values(s.prompt(shorter)), values(cold.prompt(shorter)), 1e-10);
  }
}

TEST(Session, StopsAtTheContextAndNowhereElse) {
  GuardedMemory memory;
  {
    Tiny t(tiny_config(), DType::f32, 1, memory);
    SessionOptions o = poisoned(100);
    o.context = 512;
    Session s(t.rt, t.model, o);
    GenerateOptions g;
    g.max_new_tokens = 400;
    for (const int64_t n : {500, 511, 512}) {
      const Generation out = generate(s, tokens(n, uint64_t(n)), 97, g);
      EXPECT_EQ(n + int64_t(out.tokens.size()), 512);
      EXPECT_EQ(out.reason, FinishReason::length);
      memory.check();
      s.kv().check();
    }
    EXPECT_EQ(s.length(), 512);
    const auto refused = [&](auto call, const char* what) {
      try {
        call();
        ADD_FAILURE() << what;
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::input);
        EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what();
        EXPECT_NE(std::string(e.what()).find("512"), std::string::npos) << e.what();
      }
      EXPECT_EQ(s.length(), 512);
    };
    refused([&] { s.decode(1); }, "512");
    refused([&] { s.prompt(tokens(513, 1)); }, "513");
    refused([&] { generate(s, tokens(513, 1), 97, g); }, "513");
    // And works on.
    EXPECT_EQ(generate(s, tokens(100, 1), 97, g).tokens.size(), 400u);
    memory.check();
  }
}

TEST(Session, RefusesBadOptionsAndTokensBeforeAnythingChanges) {
  Tiny t(tiny_config(), DType::f64);
  const auto bad = [&](auto set) {
    SessionOptions o;
    set(o);
    EXPECT_THROW(Session(t.rt, t.model, o), Error);
  };
  bad([](SessionOptions& o) { o.context = 4097; });
  bad([](SessionOptions& o) { o.context = -1; });
  bad([](SessionOptions& o) { o.chunk = 0; });
  bad([](SessionOptions& o) { o.page_size = 63; });
  bad([](SessionOptions& o) { o.page_size = -64; });
  Session s(t.rt, t.model, poisoned());
  EXPECT_EQ(s.context(), 4096);
  s.prompt({1, 2, 3});
  EXPECT_THROW(s.prompt({}), Error);
  EXPECT_THROW(s.prompt({1, 97}), Error);
  EXPECT_THROW(s.prompt({-1}), Error);
  EXPECT_THROW(s.decode(97), Error);
  EXPECT_EQ(s.tokens(), (std::vector<int32_t>{1, 2, 3}));
}

TEST(Session, ACancelledPromptLeavesAUsableSession) {
  Tiny t(tiny_config(), DType::f64);
  Session s(t.rt, t.model, poisoned(16)), cold(t.rt, t.model, poisoned());
  std::atomic<bool> cancel{true};
  const std::vector<int32_t> prompt = tokens(60, 1);
  EXPECT_FALSE(s.prompt(prompt, &cancel));
  cancel = false;
  const auto got = answers(s, prompt), want = answers(cold, prompt);
  for (size_t i = 0; i < want.size(); ++i) expect_near(got[i], want[i], 1e-10);
}

TEST(Session, MeasuredCacheBytes) {
  for (const AttentionKind kind : {AttentionKind::full, AttentionKind::hybrid_swa, AttentionKind::hysparse}) {
    Tiny t(tiny_config(kind), DType::f32);
    Session s(t.rt, t.model, poisoned());
    s.prompt(tokens(192, 1));
    EXPECT_EQ(s.kv().page_bytes() + s.kv().ring_bytes(), kv_bytes(t.config, t.plan, 4).at(192));
  }
}

// The same seed gives the same bits on any number of threads.
TEST(Session, GenerationIsBitEqualOnAnyThreadCount) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<int32_t> want;
    std::vector<double> want_logits;
    for (const int threads : {1, 2, 4}) {
      Tiny t(tiny_config(), dtype, threads);
      Session s(t.rt, t.model, poisoned(128));
      GenerateOptions g;
      g.sampling.seed = 42;
      g.sampling.top_p = 0.95;
      g.max_new_tokens = 60;
      const Generation out = generate(s, tokens(300, 4), 97, g);
      const std::vector<double> logits = values(s.decode(5));
      if (want.empty()) {
        want = out.tokens;
        want_logits = logits;
      }
      EXPECT_EQ(out.tokens, want) << threads;
      EXPECT_EQ(logits, want_logits) << threads;
    }
    EXPECT_EQ(want.size(), 60u);
  }
}

}  // namespace
}  // namespace hysparse
