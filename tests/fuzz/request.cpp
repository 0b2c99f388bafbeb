// Bodies that clients send to the server, behind a line that names the endpoint: read, and what they ask for
// made ready (the text of a chat, what answers must match), or refused with a 4xx that any client can read.
#include <nlohmann/json.hpp>

#include "byte_tokenizer.h"
#include "engine/constraint.h"
#include "serve/api_request.h"
#include "serve/http_text.h"
#include "target.h"
#include "tokenizer/chat_template.h"

namespace hysparse::fuzz {
namespace {

constexpr int64_t kVocab = 300;

void check(const CompletionRequest& r) {
  static const Tokenizer tokenizer = byte_tokenizer(kOwnPattern);
  static const auto trie = std::make_shared<const TokenTrie>(tokenizer, std::vector<int64_t>{0});
  static const ChatTemplate plain = ChatTemplate::builtin("plain"), chatml = ChatTemplate::builtin("chatml");
  const auto ids_are_good = [](const std::vector<int32_t>& ids) {
    for (const int32_t id : ids) require(id >= 0 && id < kVocab, "ids lie inside the vocabulary");
  };
  require(r.n >= 1 && r.n <= 1024 && (!r.max_tokens || *r.max_tokens >= 0), "counts are counts");
  for (const ApiPrompt& p : r.prompts) ids_are_good(p.ids);
  ids_are_good(r.stop_token_ids);
  for (const auto& [id, bias] : r.sampling.logit_bias) ids_are_good({id});
  for (const std::string& stop : r.stop) require(!stop.empty(), "no empty stop");
  if (r.chat) {
    for (const ChatTemplate* t : {&plain, &chatml})
      accepted([&] {
        const MarkedText text = t->render(r.messages, nullptr, r.template_extra,
                                          {.add_generation_prompt = r.add_generation_prompt});
        require(text.text.size() == text.trusted.size(), "a mark a byte");
        tokenizer.encode_marked(text.text, text.trusted);
      });
  }
  accepted([&] {
    if (r.format == ResponseFormat::regex) Constraint::regex(r.schema, trie);
    if (r.format == ResponseFormat::json_schema) Constraint::json_schema(r.schema, trie);
  });
}

}  // namespace

bool run_input(std::string_view input) {
  const size_t line = std::min(input.find('\n'), input.size());
  const std::string_view endpoint = input.substr(0, line);
  try {
    const Json body = parse_api_body(std::string(input.substr(std::min(line + 1, input.size()))));
    if (endpoint == "tokenize") {
      const TokenizeRequest r = parse_tokenize_request(body);
      require(r.prompt.has_value() != !r.messages.is_null(), "a prompt or messages");
    } else if (endpoint == "detokenize") {
      std::string model;
      for (const int32_t id : parse_detokenize_request(body, kVocab, model))
        require(id >= 0 && id < kVocab, "ids lie inside the vocabulary");
    } else {
      check(parse_completion_request(body, endpoint == "chat", kVocab));
    }
    return true;
  } catch (const ApiError& e) {
    require(e.status >= 400 && e.status < 500, "a bad body is the client's fault");
    require(std::strlen(e.what()) < 4000, "messages are short");
    const std::string answer = http_error_body(e.status, e.what(), e.param, e.code);
    require(Json::accept(answer), "the refusal is JSON");
    return false;
  }
}

std::vector<std::string> seeds() {
  return {
      R"(chat
{"model": "m", "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text",
 "text": "h\u00e9 \ud83d\ude00"}]}], "temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "stream": true,
 "stream_options": {"include_usage": true}, "stop": ["\n", "END"], "logprobs": true, "top_logprobs": 3, "seed": 4,
 "logit_bias": {"12": -100}, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema":
 {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}, "user": "me"})",
      R"(completions
{"prompt": ["one", [1, 2, 3]], "echo": true, "n": 2, "logprobs": 2, "min_p": 0.1, "top_k": 40, "repetition_penalty": 1.1,
 "frequency_penalty": 0.2, "presence_penalty": -0.2, "ignore_eos": true, "stop_token_ids": [5], "cache_prompt": false,
 "response_format": {"type": "regex", "pattern": "[ab]{1,3}"}})",
      R"(completions
{"prompt": [1, 2, 299], "max_tokens": 0, "best_of": 1, "suffix": "", "cache_salt": "s", "stream": false})",
      "tokenize\n{\"prompt\": \"a b\", \"add_special_tokens\": false, \"parse_special\": false}",
      "tokenize\n{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"chat_template_kwargs\": "
      "{\"x\": [1, {}]}}",
      "detokenize\n{\"tokens\": [1, 2, 3], \"model\": \"m\"}"};
}

std::vector<std::string> dictionary() {
  return {"chat\n",
          "completions\n",
          "\"n\": 128, ",
          "\"max_tokens\": 9223372036854775807, ",
          "\"temperature\": 1e308, ",
          "\"temperature\": -1, ",
          "\"top_k\": -1, ",
          "\"stop\": [], ",
          "\"stop\": [\"\"], ",
          "\"prompt\": [], ",
          "\"prompt\": \"\", ",
          "\"messages\": [], ",
          "\"role\": 1, ",
          "\"content\": null, ",
          "\"tool_calls\": [{}], ",
          "\"name\": \"\", ",
          "\"seed\": -9223372036854775808, ",
          "\"logit_bias\": {\"1e1\": 1}, ",
          "\"logit_bias\": {\"-1\": 1}, ",
          "\"logit_bias\": {\"99999999999999999999\": 1}, ",
          "\"tools\": [], ",
          "\"unknown\": 1, ",
          "\"\xff\"",
          "\"\\ud83d\\ude00\"",
          "\"\\u0000\"",
          "null",
          "true",
          "1.5",
          "[]",
          "{}",
          "18446744073709551615",
          "\"refusal\": null, ",
          std::string(60, '[')};
}

}  // namespace hysparse::fuzz
