// The C API gives what the C++ library gives.
#include <cmath>
#include <cstring>
#include <string>

#include "engine/generate.h"
#include "engine/machine.h"
#include "engine/session.h"
#include "engine/text_model.h"
#include "eval/perplexity.h"
#include "model/plan_report.h"
#include "unit/capi/support.h"

extern "C" int options_from_c_are_sized(void);

namespace hysparse::tests {
namespace {

std::vector<int32_t> some_ids(int n) {
  std::vector<int32_t> ids;
  for (int i = 0; i < n; ++i) ids.push_back((i * 37 + 11) % 300);
  return ids;
}

TEST(Capi, HeadersAreC) {
  EXPECT_TRUE(options_from_c_are_sized());
  EXPECT_STREQ(hysparse_version(), HYSPARSE_VERSION);
}

TEST(Capi, InfoAndConfigAreTheModels) {
  const ModelHandle m = load();
  hysparse_model_info info{};
  info.size = sizeof info;
  ASSERT_EQ(hysparse_model_get_info(m.get(), &info), 0);
  EXPECT_EQ(info.vocab_size, 310);
  EXPECT_EQ(info.context, 256);
  EXPECT_EQ(info.layers, 5);
  EXPECT_EQ(info.hidden_size, 32);
  EXPECT_EQ(info.threads, 2);
  EXPECT_EQ(info.has_tokenizer, 1);
  const ModelConfig config = tiny_config();
  EXPECT_EQ(info.parameters, count_parameters(config, build_layer_plan(config)).total);
  char* json = nullptr;
  ASSERT_EQ(hysparse_model_config(m.get(), &json), 0);
  EXPECT_EQ(json, model_config_json(load_model_config(Files::get().model())));
  hysparse_free(json);
}

TEST(Capi, LogitsAreThoseOfASessionInEveryDtypeAndOnAnyThreads) {
  const std::vector<int32_t> ids = some_ids(60);
  for (const char* dtype : {"f32", "bf16", "f64"}) {
    Machine machine({"cpu", 1, dtype});
    TextModel text = load_text_model(Files::get().model(), {.compute = machine.compute()}, host_memory(), {});
    Session session(machine.runtime(), text.model());
    const TensorView last = session.prompt(ids);
    for (const int threads : {1, 3}) {
      const ModelHandle m = load(Files::get().model(), threads, dtype);
      std::vector<float> logits(ids.size() * 310 + 1, 12345.f);
      ASSERT_EQ(hysparse_logits(m.get(), ids.data(), ids.size(), logits.data(), logits.size()), 0)
          << last_error();
      EXPECT_EQ(logits.back(), 12345.f);
      for (int i = 0; i < 310; ++i) {
        const double want = last.dtype == DType::f64 ? last.as<double>()[i] : double(last.as<float>()[i]);
        EXPECT_EQ(logits[59 * 310 + size_t(i)], float(want)) << dtype << " " << i;
      }
    }
  }
}

// Near the float64 reference on the same 8-bit integers, and those near the model as it was saved.
TEST(Capi, Int8WeightsGiveNearlyTheSameLogits) {
  const std::vector<int32_t> ids = some_ids(90);  // more rows than dot products take, and the last alone
  const auto logits = [&](const char* dtype, const char* weights) {
    std::vector<float> out(ids.size() * 310);
    const ModelHandle m = load(Files::get().model(), 2, dtype, weights);
    EXPECT_EQ(hysparse_logits(m.get(), ids.data(), ids.size(), out.data(), out.size()), 0) << last_error();
    return out;
  };
  const auto distance = [](const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0, size = 0;
    for (size_t i = 0; i < a.size(); ++i)
      sum += double(a[i] - b[i]) * double(a[i] - b[i]), size += double(b[i]) * double(b[i]);
    return std::sqrt(sum / size);
  };
  const std::vector<float> exact = logits("f64", "int8"), saved = logits("f64", "dtype");
  EXPECT_LT(distance(logits("f32", "int8"), exact), 1e-5);
  // Rounding moves some selections of this untrained model, so that the two below are not smaller.
  EXPECT_LT(distance(logits("bf16", "int8"), exact), 0.15);
  EXPECT_LT(distance(exact, saved), 0.2);
  EXPECT_GT(distance(exact, saved), 1e-4);  // they were rounded
}

TEST(Capi, TokenizerRoundTripsAnyBytes) {
  hysparse_tokenizer* handle = nullptr;
  ASSERT_EQ(hysparse_tokenizer_load(Files::get().tokenizer().c_str(), &handle), 0) << last_error();
  const TokenizerHandle t(handle);
  const Tokenizer want = Tokenizer::load(Files::get().tokenizer());
  hysparse_tokenizer_info info{};
  info.size = sizeof info;
  ASSERT_EQ(hysparse_tokenizer_get_info(t.get(), &info), 0);
  EXPECT_EQ(info.vocab_size, 300);
  EXPECT_EQ(info.eos, want.eos_id());
  for (const std::string& text : {std::string("the quick fox"), std::string("a\0b\xff\xc3", 5), std::string(),
                                  std::string("<|endoftext|>")}) {
    for (const int special : {0, 1}) {
      int32_t* ids = nullptr;
      size_t count = 99;
      ASSERT_EQ(hysparse_tokenizer_encode(t.get(), text.data(), text.size(), special, &ids, &count), 0);
      EXPECT_EQ(std::vector<int32_t>(ids, ids + count), want.encode(text, special != 0));
      char* back = nullptr;
      size_t bytes = 99;
      ASSERT_EQ(hysparse_tokenizer_decode(t.get(), ids, count, 1, &back, &bytes), 0);
      EXPECT_EQ(std::string(back, bytes), text);
      EXPECT_EQ(back[bytes], 0);
      hysparse_free(ids);
      hysparse_free(back);
    }
  }
}

TEST(Capi, BosIsReadWhereTheTokenizerAsksForIt) {
  const ModelHandle m = load(Files::get().with_bos());
  hysparse_tokenizer* handle = nullptr;
  ASSERT_EQ(hysparse_model_tokenizer(m.get(), &handle), 0);
  const TokenizerHandle t(handle);
  const auto encode = [&](decltype(hysparse_tokenizer_encode)* call, const std::string& text, int special) {
    int32_t* ids = nullptr;
    size_t count = 0;
    EXPECT_EQ(call(t.get(), text.data(), text.size(), special, &ids, &count), 0) << last_error();
    const std::vector<int32_t> out(ids, ids + count);
    hysparse_free(ids);
    return out;
  };
  const std::vector<int32_t> plain = encode(hysparse_tokenizer_encode, "the fox", 0);
  std::vector<int32_t> whole = encode(hysparse_tokenizer_encode_from_start, "the fox", 0);
  ASSERT_EQ(whole.size(), plain.size() + 1);
  EXPECT_EQ(encode(hysparse_tokenizer_encode_from_start, "<|endoftext|>the fox", 1), whole);
  hysparse_generate_options o = HYSPARSE_GENERATE_OPTIONS_INIT;
  o.temperature = 0;
  o.max_new_tokens = 8;
  o.ignore_eos = 1;
  hysparse_generation* g = nullptr;
  ASSERT_EQ(hysparse_generate(m.get(), "the fox", 7, &o, nullptr, nullptr, &g), 0) << last_error();
  const GenerationHandle of_text(g);
  hysparse_generation_result r{};
  r.size = sizeof r;
  ASSERT_EQ(hysparse_generation_get_result(of_text.get(), &r), 0);
  EXPECT_EQ(r.prompt_tokens, int64_t(whole.size()));
  EXPECT_EQ(read_to_end(start(m, whole, o)).tokens, std::vector<int32_t>(r.tokens, r.tokens + r.token_count));
  EXPECT_EQ(whole[0], 0);
}

TEST(Capi, TokenizerOutlivesItsModel) {
  hysparse_tokenizer* handle = nullptr;
  ModelHandle m = load();
  ASSERT_EQ(hysparse_model_tokenizer(m.get(), &handle), 0);
  const TokenizerHandle t(handle);
  m.reset();
  int32_t* ids = nullptr;
  size_t count = 0;
  ASSERT_EQ(hysparse_tokenizer_encode(t.get(), "fox", 3, 0, &ids, &count), 0);
  EXPECT_GT(count, 0u);
  hysparse_free(ids);
}

// What the engine makes of the same options.
Generation want(const std::vector<int32_t>& prompt, const hysparse_generate_options& o,
                const std::vector<std::string>& stops = {}) {
  Machine machine({"cpu", 1, "f32"});
  TextModel text = load_text_model(Files::get().model(), {.compute = machine.compute()}, host_memory(), {});
  SessionOptions session_options;
  session_options.context = o.context;
  if (o.kv_cache_dtype) session_options.kv_dtype = parse_kv_dtype("kv_cache_dtype", o.kv_cache_dtype);
  Session session(machine.runtime(), text.model(), session_options);
  GenerateOptions g;
  g.sampling = {.temperature = o.temperature,
                .top_k = o.top_k,
                .top_p = o.top_p,
                .min_p = o.min_p,
                .repetition_penalty = o.repetition_penalty,
                .seed = o.seed};
  g.max_new_tokens = o.max_new_tokens;
  g.stops = stops;
  if (!o.ignore_eos) g.eos = text.eos;
  g.tokenizer_vocab = text.tokenizer->vocab_size();
  g.token_bytes = [&](int32_t id) { return text.token_bytes(id); };
  return generate(session, prompt, text.config().vocab_size, g);
}

TEST(Capi, GenerationIsTheEnginesWithEveryOption) {
  const ModelHandle m = load();
  const auto check = [&](hysparse_generate_options o, const char* name) {
    const std::vector<int32_t> prompt = some_ids(40);
    const Generation w = want(prompt, o);
    const Told got = read_to_end(start(m, prompt, o));
    EXPECT_EQ(got.tokens, w.tokens) << name;
    EXPECT_EQ(got.text, w.text) << name;
    EXPECT_EQ(got.finish, w.reason == FinishReason::eos ? HYSPARSE_FINISH_EOS : HYSPARSE_FINISH_LENGTH)
        << name;
    return got.tokens;
  };
  hysparse_generate_options base = HYSPARSE_GENERATE_OPTIONS_INIT;
  base.max_new_tokens = 30;
  base.temperature = 1.2;
  base.ignore_eos = 1;
  const auto plain = check(base, "plain");
  EXPECT_EQ(plain.size(), 30u);
  std::vector<hysparse_generate_options> variants(8, base);
  variants[0].temperature = 0;
  variants[1].top_k = 3;
  variants[2].top_p = 0.3;
  variants[3].min_p = 0.2;
  variants[4].repetition_penalty = 3;
  variants[5].seed = UINT64_MAX;
  variants[6].max_new_tokens = 5;
  variants[7].context = 50;  // ten tokens of room
  for (size_t i = 0; i < variants.size(); ++i)
    EXPECT_NE(check(variants[i], std::to_string(i).c_str()), plain) << "variant " << i << " changes nothing";
  for (const char* kv : {"int8", "fp8"}) {
    hysparse_generate_options in_8_bits = base;
    in_8_bits.kv_cache_dtype = kv;
    check(in_8_bits, kv);
  }
  base.max_new_tokens = -1;  // until the context of 256 is full
  EXPECT_EQ(check(base, "to the end").size(), 216u);
  base.max_new_tokens = 0;
  EXPECT_TRUE(check(base, "none").empty());
}

TEST(Capi, ChunksOfThePromptAreStepsWithoutATokenAndChangeNothing) {
  const ModelHandle m = load();
  hysparse_generate_options o = HYSPARSE_GENERATE_OPTIONS_INIT;
  o.max_new_tokens = 5;
  o.temperature = 0;
  const std::vector<int32_t> prompt = some_ids(100);
  const Told whole = read_to_end(start(m, prompt, o));
  o.chunk = 32;
  const GenerationHandle g = start(m, prompt, o);
  hysparse_piece piece{};
  piece.size = sizeof piece;
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(hysparse_generation_next(g.get(), &piece), HYSPARSE_OK) << last_error();
    EXPECT_EQ(piece.token, -1);
  }
  ASSERT_EQ(hysparse_generation_next(g.get(), &piece), HYSPARSE_OK);
  EXPECT_EQ(piece.token, whole.tokens.at(0));
}

TEST(Capi, StopTextsEndTheAnswerAndAreNotPartOfIt) {
  const ModelHandle m = load();
  hysparse_generate_options o = HYSPARSE_GENERATE_OPTIONS_INIT;
  o.max_new_tokens = 40;
  o.temperature = 1.0;
  o.ignore_eos = 1;
  const std::vector<int32_t> prompt = some_ids(4);
  const std::string all = read_to_end(start(m, prompt, o)).text;
  ASSERT_GT(all.size(), 10u);
  size_t at = all.size() / 2;
  while (at < all.size() && (static_cast<unsigned char>(all[at]) & 0x80))
    ++at;  // one byte that is a character
  ASSERT_LT(at, all.size());
  const std::string stop = all.substr(at, 1);
  const char* stops[] = {stop.c_str()};
  o.stop = stops;
  o.stop_count = 1;
  const Told cut = read_to_end(start(m, prompt, o));
  EXPECT_EQ(cut.text, all.substr(0, all.find(stop)));
  EXPECT_EQ(cut.finish, HYSPARSE_FINISH_STOP);
}

TEST(Capi, GenerateCallsBackAndLeavesTheResult) {
  const ModelHandle m = load();
  hysparse_generate_options o = HYSPARSE_GENERATE_OPTIONS_INIT;
  o.max_new_tokens = 20;
  o.ignore_eos = 1;
  const Tokenizer tokenizer = Tokenizer::load(Files::get().tokenizer());
  const std::string prompt = "the <|endoftext|>quick";
  for (const int special : {0, 1}) {
    o.special = special;
    std::string told;
    hysparse_generation* handle = nullptr;
    const auto append = [](void* user, const char* text, size_t bytes) {
      static_cast<std::string*>(user)->append(text, bytes);
      return 0;
    };
    ASSERT_EQ(hysparse_generate(m.get(), prompt.data(), prompt.size(), &o, append, &told, &handle), 0)
        << last_error();
    const GenerationHandle g(handle);
    EXPECT_EQ(told, want(tokenizer.encode(prompt, special != 0), o).text);
    hysparse_generation_result r{};
    r.size = sizeof r;
    ASSERT_EQ(hysparse_generation_get_result(g.get(), &r), 0);
    EXPECT_EQ(told, r.text);
    EXPECT_EQ(r.prompt_tokens, int64_t(tokenizer.encode(prompt, special != 0).size()));
    EXPECT_GT(r.kv_bytes, 0);
    hysparse_piece piece{};  // a finished generation has nothing more
    piece.size = sizeof piece;
    EXPECT_EQ(hysparse_generation_next(g.get(), &piece), HYSPARSE_END);
    EXPECT_EQ(piece.text_bytes, 0u);
    EXPECT_EQ(piece.token, -1);
  }
  EXPECT_EQ(hysparse_generate(m.get(), "a", 1, &o, nullptr, nullptr, nullptr), 0);
}

TEST(Capi, AnEmptyPromptStartsANewText) {
  const ModelHandle m = load();
  hysparse_generate_options o = HYSPARSE_GENERATE_OPTIONS_INIT;
  o.max_new_tokens = 8;
  o.ignore_eos = 1;
  const int32_t eos = Tokenizer::load(Files::get().tokenizer()).eos_id();
  EXPECT_EQ(read_to_end(start(m, {}, o)).tokens, want({eos}, o).tokens);
}

TEST(Capi, CallbacksEndAnswersAndMayCallTheLibrary) {
  const ModelHandle m = load();
  hysparse_generate_options o = HYSPARSE_GENERATE_OPTIONS_INIT;
  o.max_new_tokens = 100;
  o.ignore_eos = 1;
  struct Seen {
    hysparse_model* model;
    int calls = 0;
  } seen{m.get()};
  const auto third_ends = [](void* user, const char*, size_t) {
    auto& s = *static_cast<Seen*>(user);
    std::vector<float> logits(310);
    const int32_t id = 5;
    EXPECT_EQ(hysparse_logits(s.model, &id, 1, logits.data(), logits.size()), 0) << last_error();
    return int(++s.calls == 3);
  };
  hysparse_generation* handle = nullptr;
  ASSERT_EQ(hysparse_generate(m.get(), "fox", 3, &o, third_ends, &seen, &handle), 0);
  const GenerationHandle g(handle);
  EXPECT_EQ(seen.calls, 3);
  hysparse_generation_result r{};
  r.size = sizeof r;
  ASSERT_EQ(hysparse_generation_get_result(g.get(), &r), 0);
  EXPECT_EQ(r.finish, HYSPARSE_FINISH_CANCELLED);
  EXPECT_LT(r.token_count, 100u);

  // A C++ callback that throws is an error of this call, no more.
  const auto throws = [](void*, const char*, size_t) -> int {
    throw std::runtime_error("from the callback");
  };
  EXPECT_EQ(hysparse_generate(m.get(), "fox", 3, &o, throws, nullptr, nullptr), HYSPARSE_FAILURE);
  EXPECT_EQ(last_error(), "from the callback");
}

TEST(Capi, PerplexityIsTheLibrarys) {
  const ModelHandle m = load();
  std::vector<int32_t> ids = some_ids(150);
  const size_t starts[] = {0, 100, 101, 150};
  hysparse_perplexity_options o = HYSPARSE_PERPLEXITY_OPTIONS_INIT;
  o.window = 64;
  o.stride = 16;
  Machine machine({"cpu", 1, "f32"});
  TextModel text = load_text_model(Files::get().model(), {.compute = machine.compute()}, host_memory(), {});
  PerplexityOptions options;
  options.window = 64;
  options.stride = 16;
  options.token_bytes = [&](int32_t id) { return int64_t(text.token_bytes(id).size()); };
  Perplexity perplexity(model_losses(machine.runtime(), text.model()), options);
  for (int i = 0; i < 3; ++i) perplexity.add({ids.data() + starts[i], ids.data() + starts[i + 1]});
  const PerplexityResult w = perplexity.finish();
  hysparse_perplexity_result r{};
  r.size = sizeof r;
  ASSERT_EQ(hysparse_perplexity(m.get(), ids.data(), starts, 3, &o, &r), 0) << last_error();
  EXPECT_EQ(r.documents, 3);
  EXPECT_EQ(r.tokens, 147);
  EXPECT_EQ(r.nats, w.nats);
  EXPECT_EQ(r.bytes, w.bytes);
  EXPECT_EQ(r.perplexity, w.perplexity());
  EXPECT_EQ(r.standard_error, w.standard_error);
  EXPECT_EQ(r.bits_per_byte, w.bits_per_byte());
  EXPECT_EQ(r.bits_per_byte_standard_error, w.bits_per_byte_error());

  o.max_tokens = 20;
  ASSERT_EQ(hysparse_perplexity(m.get(), ids.data(), starts, 3, &o, &r), 0) << last_error();
  EXPECT_EQ(r.tokens, 20);
  o.progress = [](void*, int64_t) { return 1; };
  EXPECT_EQ(hysparse_perplexity(m.get(), ids.data(), starts, 3, &o, &r), HYSPARSE_CANCELLED);
}

TEST(Capi, PlanIsThePlanReport) {
  const ModelConfig config = load_model_config(Files::get().model());
  hysparse_plan_options o = HYSPARSE_PLAN_OPTIONS_INIT;
  o.context = 200;
  o.batch = 3;
  char* of_path = nullptr;
  char* of_text = nullptr;
  ASSERT_EQ(hysparse_plan(Files::get().model().c_str(), &o, &of_path), 0) << last_error();
  ASSERT_EQ(hysparse_plan(("  " + model_config_json(config)).c_str(), &o, &of_text), 0) << last_error();
  EXPECT_EQ(of_path, plan_report_json(config, make_plan_report(config, 200, 3), DType::bf16));
  EXPECT_STREQ(of_path, of_text);
  hysparse_free(of_path);
  hysparse_free(of_text);
  const char* sets[] = {"attention=full"};
  o.set = sets;
  o.set_count = 1;
  o.dtype = "f32";
  const ModelConfig full = twin(config, AttentionKind::full);
  char* changed = nullptr;
  ASSERT_EQ(hysparse_plan(Files::get().model().c_str(), &o, &changed), 0) << last_error();
  EXPECT_EQ(changed, plan_report_json(full, make_plan_report(full, 200, 3, DType::f32, 4), DType::f32));
  hysparse_free(changed);
}

TEST(Capi, LoadTellsWhatItFinds) {
  hysparse_model_options o = HYSPARSE_MODEL_OPTIONS_INIT;
  std::string told;
  o.log_user = &told;
  o.log = [](void* user, int level, const char* message) {
    static_cast<std::string*>(user)->append(std::to_string(level) + " " + message + "\n");
  };
  hysparse_model* m = nullptr;
  ASSERT_EQ(hysparse_model_load(Files::get().model().c_str(), &o, &m), 0);
  const ModelHandle owned(m);
  EXPECT_NE(told.find("1 " + Files::get().model() + ": RoPE theta 10000"), std::string::npos) << told;
}

}  // namespace
}  // namespace hysparse::tests
