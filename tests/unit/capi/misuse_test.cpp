// What callers get wrong is an error with a message, never a crash: handles, pointers, sizes, ids, options.
#include <cmath>
#include <cstring>

#include "unit/capi/support.h"

namespace hysparse::tests {
namespace {

TEST(CapiMisuse, HandlesAreCheckedByLifeAndKind) {
  ModelHandle m = load();
  hysparse_tokenizer* t = nullptr;
  ASSERT_EQ(hysparse_model_tokenizer(m.get(), &t), 0);
  const hysparse_generate_options o = HYSPARSE_GENERATE_OPTIONS_INIT;
  GenerationHandle g = start(m, {1, 2}, o);
  char* json = nullptr;
  EXPECT_REFUSED(hysparse_model_config(nullptr, &json), "model: expected a handle, got NULL");
  EXPECT_REFUSED(hysparse_model_config(reinterpret_cast<hysparse_model*>(t), &json),
                 "model: expected a model handle, got a tokenizer handle");
  EXPECT_REFUSED(hysparse_model_free(reinterpret_cast<hysparse_model*>(g.get())),
                 "model: expected a model handle, got a generation handle");
  int local = 0;
  EXPECT_REFUSED(hysparse_model_config(reinterpret_cast<hysparse_model*>(&local), &json),
                 "model: not a handle of this library");
  EXPECT_REFUSED(hysparse_tokenizer_free(reinterpret_cast<hysparse_tokenizer*>(uintptr_t(3))), "tokenizer");

  hysparse_model* freed = m.get();
  m.reset();
  EXPECT_REFUSED(hysparse_model_config(freed, &json), "model: the handle was freed");
  EXPECT_REFUSED(hysparse_model_free(freed), "model: the handle was freed");
  const ModelHandle next = load();  // does not take the old one's place
  EXPECT_NE(next.get(), freed);
  EXPECT_REFUSED(hysparse_model_config(freed, &json), "model: the handle was freed");
  EXPECT_EQ(json, nullptr);

  EXPECT_FALSE(read_to_end(g).tokens.empty());  // keeps its model
  hysparse_generation* ended = g.get();
  g.reset();
  hysparse_piece piece{};
  piece.size = sizeof piece;
  EXPECT_REFUSED(hysparse_generation_next(ended, &piece), "generation: the handle was freed");
  EXPECT_REFUSED(hysparse_generation_cancel(ended), "generation: the handle was freed");
  EXPECT_EQ(hysparse_tokenizer_free(t), 0);
  EXPECT_EQ(hysparse_model_free(nullptr), 0);
  EXPECT_EQ(hysparse_tokenizer_free(nullptr), 0);
  EXPECT_EQ(hysparse_generation_free(nullptr), 0);
  hysparse_free(nullptr);
}

TEST(CapiMisuse, NullPointersAreNamed) {
  const ModelHandle m = load();
  hysparse_tokenizer* t = nullptr;
  ASSERT_EQ(hysparse_model_tokenizer(m.get(), &t), 0);
  const TokenizerHandle owned(t);
  hysparse_model* model = nullptr;
  const int32_t ids[] = {1, 2};
  float logits[310];
  int32_t* out_ids = nullptr;
  char* text = nullptr;
  size_t n = 0;
  EXPECT_REFUSED(hysparse_model_load(nullptr, nullptr, &model), "dir: expected a pointer, got NULL");
  EXPECT_REFUSED(hysparse_model_load("x", nullptr, nullptr), "out");
  EXPECT_REFUSED(hysparse_model_get_info(m.get(), nullptr), "model info");
  EXPECT_REFUSED(hysparse_model_config(m.get(), nullptr), "json");
  EXPECT_REFUSED(hysparse_model_tokenizer(m.get(), nullptr), "out");
  EXPECT_REFUSED(hysparse_logits(m.get(), nullptr, 1, logits, 310), "ids: expected 1 elements, got NULL");
  EXPECT_REFUSED(hysparse_logits(m.get(), ids, 1, nullptr, 310), "logits");
  EXPECT_REFUSED(hysparse_tokenizer_load(nullptr, &t), "path");
  EXPECT_REFUSED(hysparse_tokenizer_encode(t, nullptr, 3, 0, &out_ids, &n), "text");
  EXPECT_REFUSED(hysparse_tokenizer_encode(t, "a", 1, 0, nullptr, &n), "ids");
  EXPECT_REFUSED(hysparse_tokenizer_encode(t, "a", 1, 0, &out_ids, nullptr), "count");
  EXPECT_REFUSED(hysparse_tokenizer_encode_from_start(t, nullptr, 3, 0, &out_ids, &n), "text");
  EXPECT_REFUSED(hysparse_tokenizer_decode(t, nullptr, 2, 0, &text, &n), "ids");
  EXPECT_REFUSED(hysparse_tokenizer_decode(t, ids, 2, 0, nullptr, &n), "text");
  EXPECT_REFUSED(hysparse_tokenizer_decode(t, ids, 2, 0, &text, nullptr), "bytes");
  EXPECT_REFUSED(hysparse_generation_start(m.get(), nullptr, 2, nullptr, nullptr), "out");
  hysparse_generation* g = nullptr;
  EXPECT_REFUSED(hysparse_generation_start(m.get(), nullptr, 2, nullptr, &g), "prompt");
  EXPECT_REFUSED(hysparse_generate(m.get(), nullptr, 2, nullptr, nullptr, nullptr, nullptr), "prompt");
  hysparse_generate_options o = HYSPARSE_GENERATE_OPTIONS_INIT;
  o.stop_count = 1;
  EXPECT_REFUSED(hysparse_generation_start(m.get(), ids, 2, &o, &g), "stop");
  const char* stops[] = {"a", nullptr};
  o.stop = stops;
  o.stop_count = 2;
  EXPECT_REFUSED(hysparse_generation_start(m.get(), ids, 2, &o, &g), "stop[1]");
  hysparse_perplexity_result r{};
  r.size = sizeof r;
  const size_t starts[] = {0, 2};
  EXPECT_REFUSED(hysparse_perplexity(m.get(), ids, nullptr, 1, nullptr, &r), "starts");
  EXPECT_REFUSED(hysparse_perplexity(m.get(), nullptr, starts, 1, nullptr, &r), "ids");
  EXPECT_REFUSED(hysparse_perplexity(m.get(), ids, starts, 1, nullptr, nullptr), "perplexity result");
  hysparse_plan_options p = HYSPARSE_PLAN_OPTIONS_INIT;
  EXPECT_REFUSED(hysparse_plan(nullptr, &p, &text), "config");
  EXPECT_REFUSED(hysparse_plan("{}", nullptr, &text), "plan options");
  EXPECT_REFUSED(hysparse_plan("{}", &p, nullptr), "json");
  EXPECT_EQ(model, nullptr);
  EXPECT_EQ(g, nullptr);
  EXPECT_EQ(text, nullptr);
  EXPECT_EQ(out_ids, nullptr);
}

TEST(CapiMisuse, StructsOfOtherSizes) {
  const ModelHandle m = load();
  hysparse_generation* g = nullptr;
  hysparse_generate_options unset{};
  EXPECT_REFUSED(hysparse_generation_start(m.get(), nullptr, 0, &unset, &g), "_INIT");
  std::memset(&unset, 0xff, sizeof unset);
  EXPECT_REFUSED(hysparse_generation_start(m.get(), nullptr, 0, &unset, &g), "size");
  hysparse_piece piece{};
  const GenerationHandle going = start(m, {1}, HYSPARSE_GENERATE_OPTIONS_INIT);
  EXPECT_REFUSED(hysparse_generation_next(going.get(), &piece), "set it to sizeof");

  // A caller of a later version: what it leaves zero is fine, what it sets is not known here.
  struct Later {
    hysparse_generate_options now;
    int64_t more[2];
  } later{HYSPARSE_GENERATE_OPTIONS_INIT, {0, 0}};
  later.now.size = sizeof later;
  ASSERT_EQ(hysparse_generation_start(m.get(), nullptr, 0, &later.now, &g), 0) << last_error();
  const GenerationHandle owned(g);
  later.more[1] = 1;
  EXPECT_REFUSED(hysparse_generation_start(m.get(), nullptr, 0, &later.now, &g), "does not know");
  struct LaterInfo {
    hysparse_model_info now;
    int64_t more;
  } info{{}, 77};
  info.now.size = sizeof info;
  ASSERT_EQ(hysparse_model_get_info(m.get(), &info.now), 0);
  EXPECT_EQ(info.now.vocab_size, 310);
  EXPECT_EQ(info.now.size, sizeof info);
  EXPECT_EQ(info.more, 77);
}

TEST(CapiMisuse, IdsAndLengthsOutOfRange) {
  const ModelHandle m = load();
  std::vector<float> logits(300 * 310);
  std::vector<int32_t> ids(300, 1);
  EXPECT_REFUSED(hysparse_logits(m.get(), ids.data(), 0, logits.data(), logits.size()),
                 "at least one token id");
  EXPECT_REFUSED(hysparse_logits(m.get(), ids.data(), 257, logits.data(), logits.size()),
                 "at most 256 tokens (max_position_embeddings), got 257");
  EXPECT_REFUSED(hysparse_logits(m.get(), ids.data(), SIZE_MAX, logits.data(), logits.size()), "at most 256");
  EXPECT_REFUSED(hysparse_logits(m.get(), ids.data(), 2, logits.data(), 619),
                 "room for 620 floats (2 x 310), got 619");
  EXPECT_REFUSED(hysparse_logits(m.get(), ids.data(), 2, logits.data(), 0), "room for 620 floats");
  hysparse_generation* g = nullptr;
  EXPECT_REFUSED(hysparse_generation_start(m.get(), ids.data(), 257, nullptr, &g),
                 "257 tokens are more than the context of 256");
  for (const int32_t bad : {-1, 310, INT32_MIN, INT32_MAX}) {
    ids[1] = bad;
    const std::string what = "token 1: expected an id from 0 to 309, got " + std::to_string(bad);
    EXPECT_REFUSED(hysparse_logits(m.get(), ids.data(), 3, logits.data(), logits.size()), "ids: " + what);
    EXPECT_REFUSED(hysparse_generation_start(m.get(), ids.data(), 3, nullptr, &g), "prompt: " + what);
    const size_t starts[] = {0, 3};
    hysparse_perplexity_result r{};
    r.size = sizeof r;
    EXPECT_REFUSED(hysparse_perplexity(m.get(), ids.data(), starts, 1, nullptr, &r), "ids: " + what);
  }
  EXPECT_EQ(g, nullptr);
  ids[1] = 1;
  hysparse_perplexity_result r{};
  r.size = sizeof r;
  for (const auto& starts : {std::vector<size_t>{1, 3}, std::vector<size_t>{0, 3, 2}}) {
    EXPECT_REFUSED(hysparse_perplexity(m.get(), ids.data(), starts.data(), starts.size() - 1, nullptr, &r),
                   "starts[");
  }
  const size_t lonely[] = {0, 1, 2}, none[] = {0};
  EXPECT_REFUSED(hysparse_perplexity(m.get(), ids.data(), lonely, 2, nullptr, &r), "no token to score");
  EXPECT_REFUSED(hysparse_perplexity(m.get(), nullptr, none, 0, nullptr, &r), "no token to score");
}

TEST(CapiMisuse, OptionsOutOfRange) {
  hysparse_model* loaded = nullptr;
  hysparse_model_options mo = HYSPARSE_MODEL_OPTIONS_INIT;
  mo.dtype = "int3";
  EXPECT_REFUSED(hysparse_model_load(Files::get().model().c_str(), &mo, &loaded),
                 "dtype: expected f32, bf16 or f64, got int3");
  mo.dtype = nullptr;
  mo.weights = "int4";
  EXPECT_REFUSED(hysparse_model_load(Files::get().model().c_str(), &mo, &loaded),
                 "weights: expected dtype (as the computation), int8 or fp8, got 'int4'");
  mo.weights = nullptr;
  for (const int32_t threads : {-1, 4097, INT32_MAX}) {
    mo.threads = threads;
    EXPECT_REFUSED(hysparse_model_load(Files::get().model().c_str(), &mo, &loaded),
                   "threads: expected 0 to 4096");
  }
  EXPECT_REFUSED(hysparse_model_load("/nowhere/at/all", nullptr, &loaded), "/nowhere/at/all");
  EXPECT_EQ(loaded, nullptr);

  const ModelHandle m = load();
  hysparse_generation* g = nullptr;
  const auto refused = [&](auto change, const char* message) {
    hysparse_generate_options o = HYSPARSE_GENERATE_OPTIONS_INIT;
    change(o);
    EXPECT_REFUSED(hysparse_generation_start(m.get(), nullptr, 0, &o, &g), message);
  };
  refused([](auto& o) { o.temperature = NAN; }, "temperature");
  refused([](auto& o) { o.temperature = -1; }, "temperature");
  refused([](auto& o) { o.top_k = -1; }, "top_k");
  refused([](auto& o) { o.top_p = 0; }, "top_p");
  refused([](auto& o) { o.min_p = 2; }, "min_p");
  refused([](auto& o) { o.repetition_penalty = 0; }, "repetition_penalty");
  refused([](auto& o) { o.max_new_tokens = -2; }, "max_new_tokens");
  refused([](auto& o) { o.context = 257; }, "context");
  refused([](auto& o) { o.context = -1; }, "context");
  refused([](auto& o) { o.chunk = 0; }, "chunk");
  refused([](auto& o) { o.kv_cache_dtype = "int4"; }, "kv_cache_dtype: expected auto, int8 or fp8, got int4");
  const char* stops[] = {""};
  refused([&](auto& o) { o.stop = stops, o.stop_count = 1; }, "stop");
  EXPECT_EQ(g, nullptr);

  hysparse_plan_options p = HYSPARSE_PLAN_OPTIONS_INIT;
  char* json = nullptr;
  EXPECT_REFUSED(hysparse_plan(Files::get().model().c_str(), &p, &json), "context");
  p.context = 64;
  p.dtype = "f64";
  EXPECT_REFUSED(hysparse_plan(Files::get().model().c_str(), &p, &json),
                 "dtype: expected bf16 or f32, got f64");
  p.dtype = nullptr;
  EXPECT_REFUSED(hysparse_plan("{\"hiden_size\": 3}", &p, &json), "did you mean \"hidden_size\"?");
  EXPECT_REFUSED(hysparse_plan("{\"hidden_size\"", &p, &json), "config");
  EXPECT_REFUSED(hysparse_plan("", &p, &json), "");
  EXPECT_EQ(json, nullptr);
}

TEST(CapiMisuse, AModelWithoutATokenizer) {
  const ModelHandle m = load(Files::get().wordless());
  hysparse_tokenizer* t = nullptr;
  EXPECT_REFUSED(hysparse_model_tokenizer(m.get(), &t), "there is no tokenizer.json");
  EXPECT_REFUSED(hysparse_generate(m.get(), "a", 1, nullptr, nullptr, nullptr, nullptr),
                 "there is no tokenizer.json");
  hysparse_generation* g = nullptr;
  EXPECT_REFUSED(hysparse_generation_start(m.get(), nullptr, 0, nullptr, &g),
                 "neither a BOS nor an EOS token");
  hysparse_generate_options o = HYSPARSE_GENERATE_OPTIONS_INIT;
  const char* stops[] = {"a"};
  o.stop = stops;
  o.stop_count = 1;
  const int32_t id = 5;
  EXPECT_REFUSED(hysparse_generation_start(m.get(), &id, 1, &o, &g), "there is no tokenizer.json");
  o.stop_count = 0;
  o.max_new_tokens = 10;
  const Told told = read_to_end(start(m, {5}, o));  // ids still work
  EXPECT_EQ(told.tokens.size(), 10u);
  EXPECT_EQ(told.text, "");
  const int32_t ids[] = {1, 2, 3};
  const size_t starts[] = {0, 3};
  hysparse_perplexity_result r{};
  r.size = sizeof r;
  ASSERT_EQ(hysparse_perplexity(m.get(), ids, starts, 1, nullptr, &r), 0);
  EXPECT_TRUE(std::isnan(r.bits_per_byte));
}

TEST(CapiMisuse, AVeryLongMessageIsCut) {
  hysparse_model* m = nullptr;
  const std::string dir(20000, 'x');
  EXPECT_EQ(hysparse_model_load(dir.c_str(), nullptr, &m), HYSPARSE_BAD_ARGUMENT);
  EXPECT_EQ(last_error().size(), 4003u);
  EXPECT_EQ(last_error().substr(4000), "...");
}

}  // namespace
}  // namespace hysparse::tests
