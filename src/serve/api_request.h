// The bodies that clients send, as plain data: OpenAI's fields, those that vLLM and others added under the
// same names, and nothing else. Any field that is not understood is refused by name.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/sampler.h"
#include "io/json_value.h"

namespace hysparse {

// What is wrong with a request, for its client.
struct ApiError : std::runtime_error {
  ApiError(int http_status, const std::string& message, std::string field = {}, std::string error_code = {})
      : std::runtime_error(message),
        status(http_status),
        param(std::move(field)),
        code(std::move(error_code)) {}
  int status;
  std::string param, code;
};

struct ApiPrompt {
  std::optional<std::string> text;
  std::vector<int32_t> ids;  // where there is no text
};

enum class ResponseFormat { text, json_object, json_schema, regex };

struct CompletionRequest {
  bool chat = false;
  std::string model;
  Json messages = nullptr, template_extra = nullptr;  // chat
  bool add_generation_prompt = true;                  // chat
  std::vector<ApiPrompt> prompts;                     // completions
  bool add_special_tokens = true;                     // BOS before a text, where the tokenizer has one

  SamplerOptions sampling;
  bool seeded = false;
  std::optional<int64_t> max_tokens;
  int64_t n = 1;
  bool stream = false, include_usage = false, echo = false, ignore_eos = false;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  int64_t logprobs = -1;  // as Request::logprobs
  ResponseFormat format = ResponseFormat::text;
  std::string schema;  // or the pattern
  bool cache_prompt = true;
  std::string cache_salt;
};

// Throws ApiError. `vocab`: ids of the model's head.
CompletionRequest parse_completion_request(const Json& body, bool chat, int64_t vocab);

struct TokenizeRequest {
  std::string model;
  std::optional<std::string> prompt;
  Json messages = nullptr, template_extra = nullptr;
  bool add_generation_prompt = true, add_special_tokens = true, parse_special = true;
};
TokenizeRequest parse_tokenize_request(const Json& body);
std::vector<int32_t> parse_detokenize_request(const Json& body, int64_t vocab, std::string& model);

// A body as JSON: a 400 says what is wrong with it.
Json parse_api_body(const std::string& body);

}  // namespace hysparse
