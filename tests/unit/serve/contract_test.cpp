// What OpenAI's clients and lm-evaluation-harness rely on, request by request and field by field.
#include "rig.h"

namespace hysparse {
namespace {

using namespace tests;

RigOptions letters() {
  RigOptions o;
  o.merges = {{"A", "B"},       {"AB", "C"},     {"D", "E"},
              {"DE", "F"},      {"H", "I"},      {"\xf0\x9f", "\x98\x80"},
              {"\xf0", "\x9f"}, {"\x98", "\x80"}};
  return o;
}

// BC-17. The same text whether streamed or not: up to just before the first stop; near misses and ends
// release all.
TEST(Serve, StopStrings) {
  struct Case {
    std::vector<std::string> says;
    std::vector<std::string> stops;
    std::string text, finish;
  };
  const std::vector<Case> cases = {
      {{"ABC", "DEF", "G", "HI", "J"}, {"DEFGHIJ"}, "ABC", "stop"},
      {{"ABC", "DEF", "G", "HI", "K"}, {"DEFGHIJ"}, "ABCDEFGHIK", "stop"},
      {{"ABC", "DEF"}, {"DEFGHIJ"}, "ABCDEF", "stop"},
      {{"ABC", "DEF", "G"}, {"EF", "EFG"}, "ABCD", "stop"},
      {{"ABC", "DEF", "G"}, {"CDEFG", "CD"}, "AB", "stop"},
      {{"ABC", "DEF"}, {"B"}, "A", "stop"},
      {{"A", "\xf0\x9f", "\x98\x80", "B"}, {"\xf0\x9f\x98\x80"}, "A", "stop"},
      {{"A", "\xf0\x9f", "\x98\x80", "B", "C"}, {"B"}, "A\xf0\x9f\x98\x80", "stop"},
  };
  for (const Case& c : cases) {
    ServeRig rig(letters());
    rig.say('s', c.says);
    Json body = {{"prompt", {int('s')}}, {"stop", c.stops}, {"temperature", 0}, {"max_tokens", 50}};
    const Reply whole = rig.complete(body);
    ASSERT_EQ(whole.status, 200) << whole.body;
    EXPECT_EQ(whole.json()["choices"][0]["text"], c.text);
    EXPECT_EQ(whole.json()["choices"][0]["finish_reason"], c.finish);
    body["stream"] = true;
    const Reply r = rig.complete(body);
    const Streamed s = gather(r, false);
    EXPECT_EQ(s.text.at(0), c.text);
    EXPECT_EQ(s.finish.at(0), c.finish);
    EXPECT_TRUE(r.ended_with_mark());
  }
}

// BC-18. Characters arrive whole, however their bytes are cut into tokens; invalid bytes stall nothing.
TEST(Serve, CharactersAreNeverCut) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"\xf0\x9f", "\x98\x80", "!"}, "\xf0\x9f\x98\x80!"},
      {{"\xf0", "\x9f", "\x98", "\x80", "!"}, "\xf0\x9f\x98\x80!"},
      {{"\xc3", "\xa9"}, "\xc3\xa9"},
      {{"\xed", "\x95", "\x9c"}, "\xed\x95\x9c"},
      {{"\xff", "a", "b"},
       "\xef\xbf\xbd"
       "ab"},
  };
  for (const auto& [says, text] : cases) {
    ServeRig rig(letters());
    rig.say('s', says);
    Json body = {{"prompt", {int('s')}}, {"temperature", 0}};
    EXPECT_EQ(rig.complete(body).json()["choices"][0]["text"], text);
    body["stream"] = true;
    const Streamed s = gather(rig.complete(body), false);
    EXPECT_EQ(s.text.at(0), text);
    if (text.find("\xef\xbf\xbd") == std::string::npos) {
      EXPECT_EQ(s.text.at(0).find("\xef\xbf\xbd"), std::string::npos);
    }
  }
  ServeRig rig(letters());
  rig.model.script('s', {0xff, 0xff});  // for ever
  const Reply r =
      rig.complete({{"prompt", {int('s')}}, {"temperature", 0}, {"max_tokens", 200}, {"stream", true}});
  EXPECT_EQ(gather(r, false).text.at(0).size(), 600u);
  EXPECT_EQ(gather(r, false).finish.at(0), "length");
}

// BC-20. The tail of a stream; choices with indices, texts and ends of their own; seeds repeat.
TEST(Serve, TailsOfStreams) {
  ServeRig rig(letters());
  rig.say('s', {"ABC", "DEF", "G"});
  for (const bool chat : {false, true}) {
    for (const int n : {1, 2}) {
      for (const bool usage : {false, true}) {
        for (const int max_tokens : {1, 30}) {
          SCOPED_TRACE(testing::Message() << chat << n << usage << max_tokens);
          Json body = chat ? rig.chat_body() : Json{{"prompt", {int('s')}}};
          body.update({{"n", n}, {"max_tokens", max_tokens}, {"seed", 5}, {"temperature", 1}});
          const std::string path = chat ? "/v1/chat/completions" : "/v1/completions";
          const Json whole = post(rig.port(), path, body).json();
          ASSERT_TRUE(whole.contains("usage")) << whole;
          body["stream"] = true;
          if (usage) body["stream_options"] = {{"include_usage", true}};
          const Reply r = post(rig.port(), path, body);
          const Streamed s = gather(r, chat);
          EXPECT_TRUE(r.ended_with_mark());
          EXPECT_NE(r.head.find("text/event-stream"), std::string::npos);
          EXPECT_EQ(s.bare_usage, usage ? 1 : 0);
          if (usage) {
            EXPECT_TRUE(r.events().back()["choices"].empty());
            for (const char* key : {"prompt_tokens", "completion_tokens", "total_tokens"})
              EXPECT_EQ(s.usage[key], whole["usage"][key]) << key;
          }
          ASSERT_EQ(s.finish.size(), size_t(n));
          for (int i = 0; i < n; ++i) {
            const Json& c = whole["choices"][size_t(i)];
            EXPECT_EQ(c["index"], i);
            EXPECT_EQ(s.text.at(i), chat ? c["message"]["content"] : c["text"]);
            EXPECT_EQ(s.finish.at(i), c["finish_reason"]);
          }
        }
      }
    }
  }
  // Unscripted letters: choices differ from each other and repeat.
  const Json body = {{"prompt", {int('z')}}, {"n", 2}, {"max_tokens", 20}, {"seed", 9}};
  const Json a = rig.complete(body).json(), b = rig.complete(body).json();
  EXPECT_NE(a["choices"][0]["text"], a["choices"][1]["text"]);
  EXPECT_EQ(a["choices"], b["choices"]);
  EXPECT_NE(rig.complete({{"prompt", {int('z')}}, {"max_tokens", 20}}).json()["choices"],
            rig.complete({{"prompt", {int('z')}}, {"max_tokens", 20}}).json()["choices"]);
}

// The scoring request of lm-evaluation-harness, as it sends it, and what it reads out of the answer.
TEST(Serve, ScoringContract) {
  ServeRig rig(letters());
  rig.say('a', {"b", "c"});
  const Json answer = rig.complete({{"model", "script"},
                                    {"prompt", {{97, 98, 99}, {97, 120}}},
                                    {"max_tokens", 1},
                                    {"temperature", 0},
                                    {"logprobs", 1},
                                    {"echo", true},
                                    {"seed", 1234}})
                          .json();
  ASSERT_EQ(answer["choices"].size(), 2u) << answer;
  for (size_t i = 0; i < 2; ++i) {
    const Json& c = answer["choices"][i];
    const size_t prompt = i == 0 ? 3 : 2;
    EXPECT_EQ(c["index"], i);
    const Json& l = c["logprobs"];
    for (const char* key : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
      ASSERT_EQ(l[key].size(), prompt + 1) << key;
    EXPECT_TRUE(l["token_logprobs"][0].is_null());
    EXPECT_TRUE(l["top_logprobs"][0].is_null());
    for (size_t t = 1; t <= prompt; ++t) {
      EXPECT_LE(l["token_logprobs"][t].get<double>(), 0);
      double best = -1e9;
      for (const auto& [name, v] : l["top_logprobs"][t].items()) best = std::max(best, v.get<double>());
      // What the harness takes for greedy: equality with the maximum, of numbers printed twice.
      const bool greedy = l["token_logprobs"][t].get<double>() == best;
      EXPECT_EQ(greedy, !(i == 1 && t == 1)) << c;  // only "x" was not what the script says
    }
  }
  EXPECT_EQ(answer["choices"][0]["text"],
            "abc");  // echo, then the end of the text: one generated entry all the same
  EXPECT_EQ(answer["choices"][0]["logprobs"]["tokens"][3], "<|end|>");
  EXPECT_NEAR(answer["choices"][0]["logprobs"]["token_logprobs"][1].get<double>(), 0, 1e-6);
  EXPECT_EQ(answer["choices"][0]["logprobs"]["text_offset"], Json({0, 1, 2, 3}));
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 2);
}

TEST(Serve, ChatAnswersAndLogprobs) {
  ServeRig rig(letters());
  rig.model.script(':', {'O', 'K', rig.end});  // "plain" ends with "Assistant:"
  Json body = rig.chat_body("Hello <|end|>");
  body.update({{"logprobs", true}, {"top_logprobs", 2}, {"temperature", 0}, {"user", "u1"}});
  const Json j = post(rig.port(), "/v1/chat/completions", body).json();
  EXPECT_EQ(j["object"], "chat.completion");
  EXPECT_EQ(j["model"], "script");
  EXPECT_TRUE(j["id"].get<std::string>().starts_with("chatcmpl-"));
  const Json& c = j["choices"][0];
  EXPECT_EQ(c["message"], (Json{{"role", "assistant"}, {"content", "OK"}, {"refusal", nullptr}}));
  EXPECT_EQ(c["finish_reason"], "stop");
  ASSERT_EQ(c["logprobs"]["content"].size(), 3u);
  EXPECT_EQ(c["logprobs"]["content"][0]["token"], "O");
  EXPECT_EQ(c["logprobs"]["content"][0]["bytes"], Json({'O'}));
  EXPECT_EQ(c["logprobs"]["content"][0]["top_logprobs"].size(), 2u);
  // "User: Hello <|end|>\n\nAssistant:" by bytes: the control token's text stayed text.
  EXPECT_EQ(j["usage"]["prompt_tokens"], 31);
  const Reply t = post(rig.port(), "/tokenize", {{"messages", body["messages"]}});
  EXPECT_EQ(t.json()["count"], 31);
  const Json ids = t.json()["tokens"];
  for (const Json& id : ids) EXPECT_NE(id, rig.end);
}

TEST(Serve, SamplingFieldsReachTheSampler) {
  ServeRig rig(letters());
  const auto text = [&](const Json& more) {
    Json body = {{"prompt", {int('z')}}, {"max_tokens", 12}, {"temperature", 0}};
    if (more.is_object()) body.update(more);
    const Json j = rig.complete(body).json();
    return j.contains("choices") ? j["choices"][0]["text"].get<std::string>() : j.dump();
  };
  EXPECT_EQ(text({}), "aaaaaaaaaaaa");
  EXPECT_EQ(text({{"logit_bias", {{"98", 5}}}}), "bbbbbbbbbbbb");
  EXPECT_EQ(text({{"presence_penalty", 1.5}}), "abcdefghijkl");
  EXPECT_EQ(text({{"frequency_penalty", 0.5}}), "abcdefghijkl");
  EXPECT_EQ(text({{"stop_token_ids", {97}}}), "a");
  EXPECT_EQ(text({{"max_tokens", 0}}), "");
  EXPECT_EQ(text({{"echo", true}, {"max_tokens", 2}}), "zaa");
  EXPECT_EQ(text({{"top_k", 1}, {"temperature", 1}, {"seed", 3}}), "aaaaaaaaaaaa");
  EXPECT_EQ(text({{"min_p", 1.0}, {"temperature", 0.1}, {"logit_bias", {{"99", 3}}}}), "cccccccccccc");
}

TEST(Serve, ConstrainedAnswersParse) {
  ServeRig rig(letters());
  const Json schema = {{"type", "object"},
                       {"properties",
                        {{"name", {{"type", "string"}, {"maxLength", 6}}},
                         {"age", {{"type", "integer"}, {"minimum", 0}, {"maximum", 99}}}}},
                       {"required", {"name", "age"}},
                       {"additionalProperties", false}};
  Json body = {{"prompt", {int('z')}},
               {"max_tokens", 300},
               {"temperature", 2},
               {"n", 4},
               {"response_format",
                {{"type", "json_schema"},
                 {"json_schema", {{"name", "person"}, {"strict", true}, {"schema", schema}}}}}};
  const Json j = rig.complete(body).json();
  ASSERT_EQ(j["choices"].size(), 4u) << j;
  for (const Json& c : j["choices"]) {
    EXPECT_EQ(c["finish_reason"], "stop");
    const Json v = Json::parse(c["text"].get<std::string>());
    EXPECT_TRUE(v["name"].is_string() && v["age"] >= 0 && v["age"] <= 99) << v;
  }
  body["response_format"] = {{"type", "regex"}, {"pattern", "[0-9]{3}-[xy]"}};
  const std::string t = rig.complete(body).json()["choices"][0]["text"];
  EXPECT_EQ(t.size(), 5u) << t;
  body["response_format"] = {{"type", "json_schema"},
                             {"json_schema", {{"schema", {{"type", "array"}, {"uniqueItems", true}}}}}};
  const Reply bad = rig.complete(body);
  EXPECT_EQ(bad.status, 400);
  EXPECT_NE(bad.error().find("uniqueItems"), std::string::npos) << bad.body;
  rig.expect_alive();
}

TEST(Serve, TokenizerRoutesAndModels) {
  ServeRig rig(letters());
  EXPECT_EQ(post(rig.port(), "/tokenize", {{"prompt", "ABCx<|end|>"}}).json()["tokens"],
            Json({rig.token("ABC"), 'x', rig.end}));
  EXPECT_EQ(post(rig.port(), "/tokenize", {{"prompt", "<|end|>"}, {"parse_special", false}}).json()["count"],
            7);
  EXPECT_EQ(post(rig.port(), "/detokenize", {{"tokens", {rig.token("ABC"), 'x'}}}).json()["prompt"], "ABCx");
  EXPECT_EQ(get(rig.port(), "/tokenizer_info").json()["eos_token"], "<|end|>");
  const Json models = get(rig.port(), "/v1/models").json();
  EXPECT_EQ(models["data"][0]["id"], "script");
  EXPECT_EQ(get(rig.port(), "/v1/models/script").json()["object"], "model");
  EXPECT_EQ(post(rig.port(), "/v1/completions", {{"model", "other"}, {"prompt", "a"}}).status, 404);
  EXPECT_EQ(get(rig.port(), "/nowhere").status, 404);
  EXPECT_EQ(get(rig.port(), "/v1/completions").status, 405);
  const Reply page = get(rig.port(), "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_NE(page.body.find("</html>"), std::string::npos);
  for (const char* outside : {"http://", "https://", "src=", "@import", "url("})
    EXPECT_EQ(page.body.find(outside), std::string::npos) << outside;
}

TEST(Serve, MetricsAreAnExposition) {
  ServeRig rig(letters());
  rig.complete({{"prompt", {int('z')}}, {"max_tokens", 5}});
  rig.complete({{"prompt", ""}, {"nonsense", 1}});
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const Reply m = get(rig.port(), "/metrics");
  EXPECT_EQ(m.status, 200);
  for (const char* line :
       {"\nhysparse_time_to_first_token_seconds_count 1\n", "\nhysparse_generated_tokens_total 5\n",
        "\nhysparse_responses_total{status=\"200\"} 1\n", "\nhysparse_responses_total{status=\"400\"} 1\n",
        "\nhysparse_requests_running 0\n", "hysparse_prefix_cache_misses_total{reason=\"unknown\"}",
        "\nhysparse_time_to_first_token_seconds_bucket{le=\"+Inf\"} 1\n"})
    EXPECT_NE(("\n" + m.body).find(line), std::string::npos) << line << m.body;
}

}  // namespace
}  // namespace hysparse
