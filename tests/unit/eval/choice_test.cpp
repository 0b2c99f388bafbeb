// Choices: how texts become tokens, which one wins, and that the server says the same.
#include <cmath>

#include "../engine/backends.h"
#include "../engine/hash_model.h"
#include "../serve/client.h"
#include "base/error.h"
#include "engine/engine_thread.h"
#include "eval/choice.h"
#include "serve/server.h"
#include "support.h"

namespace hysparse {
namespace {

using namespace tests;

TextModel text_model() {
  TextModel m;
  m.tokenizer = bytes_tokenizer();
  m.eos = {m.tokenizer->vocab_size() - 1};
  m.where = "HASH";
  return m;
}

ModelConfig config_of(const TextModel& m) {
  ModelConfig c = hash_config();
  c.vocab_size = m.tokenizer->vocab_size();
  c.finalize("HASH");
  return c;
}

EngineOptions options(const TextModel& m, bool cache = true) {
  EngineOptions o;
  o.context = 512;
  o.eos = m.eos;
  o.memory.kv_bytes = 16 << 20;
  o.memory.max_sequences = 4;
  o.prefix_cache = cache;
  o.step_tokens = 32;
  o.poison = std::nan("");
  o.check_steps = true;
  return o;
}

std::vector<ChoiceItem> items() {
  std::vector<ChoiceItem> out;
  for (int i = 0; i < 12; ++i) {
    ChoiceItem item;
    if (i != 5)
      item.context = fmt::format("Question {}: which of these follows a text of some length?", i * 7919);
    if (i % 3 == 0) item.context += "  ";
    for (int c = 0; c < 2 + i % 4; ++c)
      item.choices.push_back(fmt::format("choice {}{}", c, std::string(size_t(c), 'x')));
    item.gold = i % 2;
    out.push_back(item);
  }
  return out;
}

TEST(Choice, TokensArePartedAsTheHarnessDoes) {
  const TextModel m = text_model();
  const auto text = [&](const Continuation& c) {
    return m.tokenizer->decode({c.ids.begin() + c.context, c.ids.end()});
  };
  Continuation c = encode_continuation(m, "two  ", " words");
  EXPECT_EQ(c.context, 3);
  EXPECT_EQ(text(c), "   words");
  c = encode_continuation(m, "", " words");  // behind the end of another text
  EXPECT_EQ(c.context, 1);
  EXPECT_EQ(c.ids.front(), m.eos.front());
  EXPECT_EQ(text(c), " words");
  c = encode_continuation(m, " \n", "x");
  EXPECT_EQ(text(c), " \nx");
  // A merge over the border: the ids behind as many as the context alone has.
  TextModel merged = text_model();
  merged.tokenizer = std::make_shared<const Tokenizer>(test::load(test::tokenizer_json({{"a", "b"}})));
  c = encode_continuation(merged, "xa", "bc");
  EXPECT_EQ(c.context, 2);
  EXPECT_EQ(c.ids.size(), 3u);
}

TEST(Choice, TheCacheSavesWorkAndChangesNothing) {
  const TextModel m = text_model();
  const std::vector<ChoiceItem> all = items();
  Backend backend(DType::f32, 2);
  HashModel model(config_of(m));
  Engine with(backend.rt, model, options(m)), without(backend.rt, model, options(m, false));
  int64_t told = 0;
  ChoiceOptions o;
  o.progress = [&](int64_t done) { told = done; };
  const std::vector<ScoredItem> a = score_choices(with, m, all, o), b = score_choices(without, m, all, {});
  EXPECT_EQ(told, 12);
  ASSERT_EQ(a.size(), all.size());
  int64_t choices = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(a[i].choices.size(), all[i].choices.size());
    EXPECT_EQ(a[i].best, b[i].best);
    for (size_t c = 0; c < a[i].choices.size(); ++c) {
      const ScoredChoice &x = a[i].choices[c], &y = b[i].choices[c];
      ++choices;
      EXPECT_EQ(x.loglikelihood, y.loglikelihood);
      EXPECT_EQ(x.bytes, int64_t(all[i].choices[c].size()));
      double sum = 0;
      for (const TokenLogprob& t : x.tokens) sum += double(t.logprob);
      EXPECT_EQ(x.loglikelihood, sum);
      EXPECT_GE(a[i].choices[size_t(a[i].best)].loglikelihood, x.loglikelihood);
    }
  }
  EXPECT_EQ(with.stats().cache_hits, choices - 3) << "all but those without a context";
  EXPECT_GT(with.stats().cached_tokens, 2 * with.stats().prompt_tokens / 3);
  EXPECT_EQ(without.stats().cached_tokens, 0);
}

// The server, asked as lm-evaluation-harness asks, tells the same log-likelihoods.
TEST(Choice, TheServerAgrees) {
  const TextModel m = text_model();
  const std::vector<ChoiceItem> all = items();
  Backend backend(DType::f32, 2);
  HashModel model(config_of(m)), served_model(config_of(m));
  Engine engine(backend.rt, model, options(m));
  const std::vector<ScoredItem> scored = score_choices(engine, m, all, {});

  Backend other(DType::f32, 2);
  Engine served(other.rt, served_model, options(m));
  EngineThread thread(served);
  ServedModel s;
  s.name = "hash";
  s.tokenizer = m.tokenizer;
  s.eos = m.eos;
  s.vocab = m.tokenizer->vocab_size();
  s.context = served.context();
  ServerOptions so;
  so.http.port = 0;
  Server server(so, std::move(s), served, [&] { return thread.failure(); });
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t c = 0; c < all[i].choices.size(); ++c) {
      const Continuation ids = encode_continuation(m, all[i].context, " " + all[i].choices[c]);
      const Reply r = post(server.port(), "/v1/completions",
                           Json{{"prompt", Json::array({ids.ids})},
                                {"echo", true},
                                {"logprobs", 1},
                                {"max_tokens", 1},
                                {"temperature", 0}});
      ASSERT_EQ(r.status, 200) << r.body;
      const Json told = r.json()["choices"][0]["logprobs"]["token_logprobs"];
      ASSERT_EQ(told.size(), ids.ids.size() + 1);
      double sum = 0;
      for (size_t t = size_t(ids.context); t < ids.ids.size(); ++t) sum += told[t].get<double>();
      EXPECT_NEAR(sum, scored[i].choices[c].loglikelihood, 1e-4);
    }
}

TEST(Choice, SummaryOnHandedScores) {
  std::vector<ChoiceItem> asked(4);
  std::vector<ScoredItem> scored(4);
  for (size_t i = 0; i < 4; ++i) {
    asked[i].choices = {"a", "bb"};
    asked[i].gold = 0;
    scored[i].best = i < 3 ? 0 : 1;
    scored[i].best_normalised = i < 1 ? 0 : 1;
  }
  asked[3].choices.push_back("c");
  asked[3].choices.push_back("d");
  const ChoiceResult r = summarise(asked, scored);
  EXPECT_EQ(r.items, 4);
  EXPECT_DOUBLE_EQ(r.accuracy, 0.75);
  EXPECT_DOUBLE_EQ(r.normalised, 0.25);
  EXPECT_DOUBLE_EQ(r.accuracy_error, std::sqrt(0.75 * 0.25 / 3));
  EXPECT_DOUBLE_EQ(r.chance, (0.5 * 3 + 0.25) / 4);
  EXPECT_TRUE(std::isnan(summarise({asked[0]}, {scored[0]}).accuracy_error));
}

TEST(Choice, BadInput) {
  test::TempDir dir;
  const auto bad = [&](const std::string& text, const std::string& message) {
    test::write(dir / "f.jsonl", text);
    try {
      read_choice_items(dir / "f.jsonl");
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::input);
      EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
    }
  };
  const std::string good = R"({"context": "c", "choices": ["a", "b"], "gold": 1, "id": 7})";
  test::write(dir / "f.jsonl", good + "\n\n" + good);
  EXPECT_EQ(read_choice_items(dir / "f.jsonl").size(), 2u);
  EXPECT_EQ(read_choice_items(dir / "f.jsonl")[0].id, "7");
  bad("", "no item");
  bad(good + "\n[]", "f.jsonl:2: expected a JSON object");
  bad(R"({"context": "c", "choices": ["a"], "gold": 0})", "at least two");
  bad(R"({"context": "c", "choices": ["a", "b"], "gold": 2})", "expected 0 to 1, got 2");
  bad(R"({"context": "c", "choices": ["a", "b"], "gold": 18446744073709551615})", "got 18446744073709551615");
  bad(R"({"context": "c", "choices": ["a", 1], "gold": 0})", "choices[1]");
  bad(R"({"context": "c", "choices": ["a", "b"], "answer": 0})", "unknown key \"answer\"");
  bad(R"({"context": "c", "choices": ["a", "b"]})", "\"gold\" is missing");
  bad(R"({"contxt": "c", "choices": ["a", "b"], "gold": 0})", "did you mean context?");
  EXPECT_THROW(read_choice_items(dir / "missing.jsonl"), Error);

  const TextModel m = text_model();
  Backend backend(DType::f32, 1);
  HashModel model(config_of(m));
  Engine engine(backend.rt, model, options(m));
  ChoiceItem item;
  item.context = "c";
  item.choices = {"a", ""};
  EXPECT_THROW(score_choices(engine, m, {item}, {.delimiter = ""}), Error);
  item.choices = {"a", std::string(600, 'b')};
  EXPECT_THROW(score_choices(engine, m, {item}, {}), Error);
  // A broken model is no model that picks the first choice.
  item.choices = {"a", "bq?"};
  model.poisoned_token = m.tokenizer->encode("q").front();
  EXPECT_THROW(score_choices(engine, m, {item}, {}), Error);
}

}  // namespace
}  // namespace hysparse
