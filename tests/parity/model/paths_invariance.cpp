// Batch invariance on the CPU: what is computed for a token is the same to the bit whatever else is in the
// call. Logits and appended K and V of a sequence alone, in one go, against the same sequence in chunks of
// any size, one token at a time, in the company of others, and with weights packed for inference.
#include <algorithm>
#include <cstring>

#include "engine/paged_kv.h"
#include "kernels/cpu/dispatch.h"
#include "paths_common.h"

namespace hysparse::paths {
namespace {

using Bytes = std::vector<char>;

// What a sequence left behind: rows in the order of its tokens.
struct Trail {
  Bytes logits;
  std::map<int, Bytes> k, v;  // a layer
};

void append_rows(Bytes& to, const TensorView& rows, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const TensorView row = rows.at(i);
    for (int64_t h = 0; h < (row.rank == 2 ? row.dim(0) : 1); ++h) {
      const TensorView part = row.rank == 2 ? row.at(h) : row;
      const char* p = static_cast<const char*>(part.data);
      to.insert(to.end(), p, p + part.bytes());
    }
  }
}

// Passes everything on to the cache and keeps a copy of what is appended.
class Recorder : public KvStore {
 public:
  Recorder(PagedKv& cache, std::vector<Trail>& trails) : cache_(cache), trails_(trails) {}
  void begin_step(const std::vector<int>& ids, const RaggedBatch& batch) {
    ids_ = ids;
    cache_.begin_step(ids, batch);
  }
  KvView append(int layer, const RaggedBatch& batch, const TensorView& k, const TensorView& v) override {
    for (size_t s = 0; s < ids_.size(); ++s) {
      Trail& trail = trails_[size_t(ids_[s])];
      append_rows(trail.k[layer], k, batch.cu_q[s], batch.cu_q[s + 1]);
      append_rows(trail.v[layer], v, batch.cu_q[s], batch.cu_q[s + 1]);
    }
    return cache_.append(layer, batch, k, v);
  }

 private:
  PagedKv& cache_;
  std::vector<Trail>& trails_;
  std::vector<int> ids_;
};

struct Request {
  std::vector<int32_t> tokens;
  Path pace;         // chunk lengths, again and again
  int64_t wait = 0;  // steps before it begins
};

std::vector<Trail> play(Subject& s, const std::vector<Request>& requests, KvDtype kv_dtype) {
  PagedKvOptions options;
  options.kv_dtype = kv_dtype;
  for (const Request& r : requests)
    options.max_tokens = std::max(options.max_tokens, static_cast<int64_t>(r.tokens.size()));
  options.max_sequences = static_cast<int64_t>(requests.size());
  options.dtype = s.backend.compute;
  options.poison = std::nan("");
  PagedKv cache(s.config, s.plan, options, host_memory(), cache_runtime(s.backend.rt, kv_dtype));
  std::vector<Trail> trails(requests.size());
  Recorder kv(cache, trails);
  const int64_t vocab = s.config.vocab_size;
  for (int64_t step = 0;; ++step) {
    RaggedBatch batch;
    std::vector<int> ids;
    std::vector<int32_t> tokens;
    bool waiting = false;
    // The order within the batch turns around from step to step.
    for (size_t i = 0; i < requests.size(); ++i) {
      const size_t r = step % 2 == 0 ? i : requests.size() - 1 - i;
      const int64_t past = cache.length(int(r)),
                    left = static_cast<int64_t>(requests[r].tokens.size()) - past;
      waiting = waiting || (left > 0 && step < requests[r].wait);
      if (left == 0 || step < requests[r].wait) continue;
      const Path& pace = requests[r].pace;
      const int64_t count = std::min(left, pace[size_t(step - requests[r].wait) % pace.size()]);
      batch.add_sequence(count, past);
      ids.push_back(int(r));
      tokens.insert(tokens.end(), requests[r].tokens.begin() + past,
                    requests[r].tokens.begin() + past + count);
    }
    if (ids.empty()) {
      if (waiting) continue;
      return trails;
    }
    for (int64_t i = 0; i < batch.tokens(); ++i) batch.logit_rows.push_back(i);
    const Tensor input(DType::i32, {batch.tokens()}), logits(DType::f32, {batch.tokens(), vocab});
    std::copy(tokens.begin(), tokens.end(), input.view().as<int32_t>());
    kv.begin_step(ids, batch);
    s.model.forward(s.backend.rt, batch, input, kv, logits);
    cache.commit();
    for (size_t b = 0; b < ids.size(); ++b)
      append_rows(trails[size_t(ids[b])].logits, logits, batch.cu_q[b], batch.cu_q[b + 1]);
  }
}

// The first token and, in bytes, where in its row two trails differ; nothing when they do not.
std::string difference(const Bytes& a, const Bytes& b, size_t tokens) {
  if (a.size() != b.size()) return "other lengths";
  if (a == b) return "";
  const auto at = static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin());
  const size_t row = a.size() / tokens;
  return "token " + std::to_string(at / row) + ", byte " + std::to_string(at % row) + " of " +
         std::to_string(row);
}
void expect_equal(const Trail& got, const Trail& want, size_t tokens) {
  // In the order of computation: the first line printed is where it began.
  for (const auto& [layer, k] : want.k) {
    EXPECT_EQ(difference(got.k.at(layer), k, tokens), "") << "K of layer " << layer;
    EXPECT_EQ(difference(got.v.at(layer), want.v.at(layer), tokens), "") << "V of layer " << layer;
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_EQ(difference(got.logits, want.logits, tokens), "") << "logits";
}

struct Kind {
  std::string name;
  ModelConfig config;
  int64_t tokens;
};

ModelConfig heads(int64_t d, int64_t query, int64_t kv) {
  ModelConfig c = tiny();
  c.num_hidden_layers = 5;
  c.hidden_size = 192;
  c.num_attention_heads = query;
  c.num_key_value_heads = kv;
  c.head_dim = d;
  c.intermediate_size = 320;
  c.hysparse_topk_tokens = 128;
  return c;
}

std::vector<Kind> kinds() {
  std::vector<Kind> all{{"tiny", tiny(), 330},
                        {"small_blocks", tiny(AttentionKind::hysparse, 16, 20, 48), 330},
                        {"tiny_blocks", tiny(AttentionKind::hysparse, 8, 20, 48), 200},
                        {"odd_blocks", tiny(AttentionKind::hysparse, 48, 300, 96), 330},
                        {"full", tiny(AttentionKind::full), 330},
                        {"heads64", heads(64, 6, 2), 330},
                        {"heads128", heads(128, 4, 4), 330},
                        {"moe", tiny(), 330}};
  ModelConfig& moe = all.back().config;
  moe.n_routed_experts = 8;
  moe.num_experts_per_tok = 3;
  moe.moe_intermediate_size = 48;
  return all;
}

class Invariance : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { force_cpu_dispatch_level(GetParam()); }
  void TearDown() override { force_cpu_dispatch_level(""); }
  bool slow() const { return GetParam() == "SCALAR" || GetParam() == "EMU128"; }
};

// With pages in 8 bits, too: every row is read as it is stored, those of the running chunk included.
void check(const Kind& kind, DType dtype, WeightFormat format, bool all_paths,
           KvDtype kv = KvDtype::compute) {
  SCOPED_TRACE(kind.name + " " + std::string(name_of(dtype)) +
               (format == WeightFormat::int8  ? " int8"
                : format == WeightFormat::fp8 ? " fp8"
                                              : "") +
               (kv == KvDtype::compute ? "" : ", kv " + std::string(enum_name(kv))));
  Subject s(kind.config, dtype, 2, 1, format);
  const auto n = kind.tokens;
  const std::vector<int32_t> tokens = random_tokens(n, 9);
  const auto size = static_cast<size_t>(n);
  const Trail want = play(s, {{tokens, {n}}}, kv)[0];
  const auto same = [&](const std::string& what, const std::vector<Request>& requests) {
    SCOPED_TRACE(what);
    expect_equal(play(s, requests, kv)[0], want, size);
  };
  const std::vector<int64_t> sizes =
      all_paths ? std::vector<int64_t>{17, 64, 127, 128} : std::vector<int64_t>{17, 128};
  for (const int64_t chunk : sizes) same("chunks of " + std::to_string(chunk), {{tokens, {chunk}}});
  s.weights.pack(s.backend.rt);
  same("packed, in one go", {{tokens, {n}}});
  same("packed, a token at a time", {{tokens, {1}}});
  same("packed, a few tokens at a time", {{tokens, {1, 2, 3, 5, 8, 13, 40}}});
  // Mates of other lengths: some long done, some still to come, some in prefill while this one decodes.
  same("packed, in company", {{tokens, {60, 1, 1, 1, 31, 1}},
                              {random_tokens(n, 1), {n / 2, 1}},
                              {random_tokens(70, 2), {1}, 3},
                              {random_tokens(129, 3), {128, 1}, 6},
                              {random_tokens(5, 4), {2}, 9}});
}

// The best level in every kind of model; the others in two.
TEST_P(Invariance, PathsAgreeToTheBit) {
  for (Kind kind : kinds()) {
    if (!GetParam().empty() && kind.name != "small_blocks" && kind.name != "heads64") continue;
    kind.tokens = GetParam().empty() ? 200 : 140;
    for (const DType dtype : {DType::f32, DType::bf16}) check(kind, dtype, WeightFormat::compute, false);
    if (kind.name == "heads64" || kind.name == "moe") check(kind, DType::bf16, WeightFormat::int8, false);
    if (kind.name == "moe") check(kind, DType::bf16, WeightFormat::fp8, false);
    if (kind.name == "small_blocks" || kind.name == "heads64") {
      check(kind, DType::f32, WeightFormat::compute, false, KvDtype::int8);
      check(kind, DType::bf16, WeightFormat::compute, false, KvDtype::fp8);
    }
    if (HasFailure()) return;
  }
}

// Contexts of several chunks of keys.
TEST(InvarianceOfLongContexts, PathsAgreeToTheBit) {
  check({"long", tiny(AttentionKind::hysparse), 700}, DType::bf16, WeightFormat::compute, false);
  check({"long_full", tiny(AttentionKind::full), 600}, DType::f32, WeightFormat::compute, false);
  check({"long", tiny(AttentionKind::hysparse), 700}, DType::f32, WeightFormat::compute, false,
        KvDtype::int8);
}

class FullInvariance : public Invariance {};
TEST_P(FullInvariance, PathsAgreeToTheBit) {
  std::vector<Kind> all = kinds();
  all.push_back({"long", tiny(AttentionKind::hysparse), 1200});
  all.push_back({"long_full", tiny(AttentionKind::full), 1200});
  for (Kind& kind : all) {
    if (slow()) kind.tokens = std::min<int64_t>(kind.tokens, 330);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      check(kind, dtype, WeightFormat::compute, true);
      check(kind, dtype, WeightFormat::int8, true);
      for (const KvDtype kv : {KvDtype::int8, KvDtype::fp8})
        check(kind, dtype, WeightFormat::compute, true, kv);
    }
  }
}

std::vector<std::string> levels() {
  std::vector<std::string> list = cpu_dispatch_levels();
  list.insert(list.begin(), "");  // nothing forced: AVX512-BF16 where the CPU has it
  return list;
}
INSTANTIATE_TEST_SUITE_P(Levels, Invariance, ::testing::ValuesIn(levels()),
                         [](const ::testing::TestParamInfo<std::string>& info) {
                           return info.param.empty() ? std::string("best") : info.param;
                         });

INSTANTIATE_TEST_SUITE_P(Levels, FullInvariance, ::testing::ValuesIn(levels()),
                         [](const ::testing::TestParamInfo<std::string>& info) {
                           return info.param.empty() ? std::string("best") : info.param;
                         });

}  // namespace
}  // namespace hysparse::paths
