#include "serve/api_request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engine/request.h"
#include "io/json.h"

namespace hysparse {
namespace {

constexpr int64_t kMaxPrompts = 1024;
constexpr int64_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 1024;
constexpr int64_t kMaxTopLogprobs = 20;

std::string shown(const Json& j) {
  if (j.is_object()) return "an object";
  if (j.is_array()) return fmt::format("a list of {}", j.size());
  return j.is_string() ? "the text " + quote_text(j.get_ref<const std::string&>(), 40) : j.dump();
}

[[noreturn]] void refuse(const std::string& field, std::string_view expected, const Json& got) {
  throw ApiError(400, fmt::format("{}: expected {}, got {}", field, expected, shown(got)), field);
}

// The fields of a body: each is asked for once, what was never asked for is refused at the end. null is
// absent.
class Fields {
 public:
  explicit Fields(const Json& body) : body_(body) {
    if (!body.is_object()) throw ApiError(400, "expected a JSON object, got " + shown(body));
  }
  const Json* find(const char* name) {
    known_.emplace_back(name);
    const auto it = body_.find(name);
    return it == body_.end() || it->is_null() ? nullptr : &*it;
  }
  std::string text(const char* name, std::string otherwise = {}) {
    const Json* v = find(name);
    if (v == nullptr) return otherwise;
    if (!v->is_string()) refuse(name, "a text", *v);
    return v->get<std::string>();
  }
  bool flag(const char* name, bool otherwise) {
    const Json* v = find(name);
    if (v == nullptr) return otherwise;
    if (!v->is_boolean()) refuse(name, "true or false", *v);
    return v->get<bool>();
  }
  double number(const char* name, double otherwise) {
    const Json* v = find(name);
    if (v == nullptr) return otherwise;
    if (!v->is_number()) refuse(name, "a number", *v);
    return v->get<double>();
  }
  std::optional<int64_t> integer(const char* name, int64_t lo, int64_t hi) {
    const Json* v = find(name);
    if (v == nullptr) return {};
    return check(name, *v, lo, hi);
  }
  static int64_t check(const std::string& name, const Json& v, int64_t lo, int64_t hi) {
    const std::string expected = hi == std::numeric_limits<int64_t>::max()
                                     ? fmt::format("an integer of at least {}", lo)
                                     : fmt::format("an integer in [{}, {}]", lo, hi);
    const bool huge = v.is_number_unsigned() &&
                      v.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (!v.is_number_integer() || huge || v.get<int64_t>() < lo || v.get<int64_t>() > hi)
      refuse(name, expected, v);
    return v.get<int64_t>();
  }
  // A field that means nothing here: whatever a client sends by habit is fine, anything else is not.
  void only(const char* name, std::initializer_list<Json> fine) {
    const Json* v = find(name);
    if (v == nullptr || std::find(fine.begin(), fine.end(), *v) != fine.end()) return;
    throw ApiError(400, fmt::format("{}: {} is not supported", name, shown(*v)), name, "unsupported_value");
  }
  void ignore(const char* name) { find(name); }

  void finish() const {
    for (const auto& [key, unused] : body_.items()) {
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      const std::string near = nearest_name(key, known_);
      throw ApiError(400,
                     fmt::format("the field {} is not supported{}", quote_text(key),
                                 near.empty() ? "" : "; did you mean " + near + "?"),
                     key, "unknown_parameter");
    }
  }

 private:
  const Json& body_;
  std::vector<std::string> known_;
};

std::vector<int32_t> token_ids(const std::string& name, const Json& list, int64_t vocab) {
  std::vector<int32_t> out;
  out.reserve(list.size());
  for (const Json& v : list) out.push_back(static_cast<int32_t>(Fields::check(name, v, 0, vocab - 1)));
  return out;
}

void read_prompts(Fields& f, CompletionRequest& r, int64_t vocab) {
  const Json* p = f.find("prompt");
  if (p == nullptr) throw ApiError(400, "prompt: it is missing", "prompt");
  constexpr const char* kExpected = "a text, a list of texts, token ids, or a list of lists of token ids";
  if (p->is_string()) {
    r.prompts.push_back({p->get<std::string>(), {}});
    return;
  }
  if (!p->is_array() || p->empty()) refuse("prompt", kExpected, *p);
  if (p->front().is_number()) {
    r.prompts.push_back({{}, token_ids("prompt", *p, vocab)});
    return;
  }
  if (p->size() > static_cast<size_t>(kMaxPrompts))
    throw ApiError(400, fmt::format("prompt: {} prompts are more than {}", p->size(), kMaxPrompts), "prompt");
  for (const Json& one : *p) {
    if (one.is_string())
      r.prompts.push_back({one.get<std::string>(), {}});
    else if (one.is_array() && !one.empty())
      r.prompts.push_back({{}, token_ids("prompt", one, vocab)});
    else
      refuse("prompt", kExpected, one);
  }
}

// Content of a message: a text, or parts of which all are texts.
Json message_content(const Json& content) {
  if (content.is_string() || content.is_null()) return content;
  if (!content.is_array()) refuse("messages", "a content that is a text or a list of parts", content);
  std::string text;
  for (const Json& part : content) {
    if (!part.is_object() || part.value("type", Json()) != "text" || !part.contains("text") ||
        !part["text"].is_string())
      throw ApiError(400, "messages: of content parts only {\"type\": \"text\", \"text\": ...} is supported",
                     "messages");
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

Json read_messages(const Json& list) {
  if (!list.is_array() || list.empty()) refuse("messages", "a list of at least one message", list);
  Json out = Json::array();
  for (const Json& m : list) {
    if (!m.is_object()) refuse("messages", "messages that are objects", m);
    if (!m.contains("role") || !m["role"].is_string())
      throw ApiError(400, "messages: a message lacks its role", "messages");
    Json one = Json::object();
    for (const auto& [key, v] : m.items()) {
      static const std::vector<std::string> known = {
          "role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "refusal"};
      if (std::find(known.begin(), known.end(), key) == known.end())
        throw ApiError(400, fmt::format("messages: the field {} is not supported", quote_text(key)),
                       "messages", "unknown_parameter");
      if (!v.is_null() && key != "refusal") one[key] = key == "content" ? message_content(v) : v;
    }
    if (!one.contains("content")) {
      if (!one.contains("tool_calls"))
        throw ApiError(400, "messages: a message lacks its content", "messages");
      one["content"] = "";
    }
    out.push_back(std::move(one));
  }
  return out;
}

Json read_template_extra(Fields& f) {
  const Json* v = f.find("chat_template_kwargs");
  if (v == nullptr) return nullptr;
  if (!v->is_object()) refuse("chat_template_kwargs", "an object", *v);
  for (const auto& [key, unused] : v->items())
    if (key == "messages" || key == "tools" || key == "add_generation_prompt" || key.ends_with("_token"))
      throw ApiError(400, "chat_template_kwargs: " + quote_text(key) + " cannot be set",
                     "chat_template_kwargs");
  return *v;
}

void read_stop(Fields& f, CompletionRequest& r) {
  const auto add = [&](const Json& v) {
    if (!v.is_string() || v.get_ref<const std::string&>().empty())
      refuse("stop", "texts of at least one character", v);
    if (v.get_ref<const std::string&>().size() > kMaxStopBytes)
      throw ApiError(400, fmt::format("stop: a text of more than {} bytes", kMaxStopBytes), "stop");
    r.stop.push_back(v.get<std::string>());
  };
  if (const Json* v = f.find("stop")) {
    if (v->is_array()) {
      if (v->size() > static_cast<size_t>(kMaxStops))
        throw ApiError(400, fmt::format("stop: more than {} texts", kMaxStops), "stop");
      for (const Json& s : *v) add(s);
    } else {
      add(*v);
    }
  }
}

void read_logit_bias(Fields& f, CompletionRequest& r, int64_t vocab) {
  const Json* v = f.find("logit_bias");
  if (v == nullptr) return;
  if (!v->is_object()) refuse("logit_bias", "an object of token ids and numbers", *v);
  for (const auto& [key, bias] : v->items()) {
    size_t end = 0;
    int64_t id = -1;
    try {
      id = std::stoll(key, &end);
    } catch (const std::exception&) {
      end = 0;
    }
    if (end != key.size() || key.empty() || id < 0 || id >= vocab)
      throw ApiError(400,
                     fmt::format("logit_bias: expected token ids in [0, {}), got {}", vocab, quote_text(key)),
                     "logit_bias");
    if (!bias.is_number()) refuse("logit_bias", "numbers in [-100, 100]", bias);
    r.sampling.logit_bias.emplace_back(static_cast<int32_t>(id), bias.get<double>());
  }
}

void read_format(Fields& f, CompletionRequest& r) {
  const Json* v = f.find("response_format");
  if (v == nullptr) return;
  const std::string name = "response_format";
  if (!v->is_object() || !v->contains("type") || !(*v)["type"].is_string())
    refuse(name, "an object with a type", *v);
  const auto type = (*v)["type"].get<std::string>();
  const auto keys = [&](std::initializer_list<const char*> known) {
    for (const auto& [key, unused] : v->items())
      if (std::find(known.begin(), known.end(), key) == known.end())
        throw ApiError(400, fmt::format("{}: the field {} is not supported", name, quote_text(key)), name,
                       "unknown_parameter");
  };
  if (type == "text") {
    keys({"type"});
  } else if (type == "json_object") {
    keys({"type"});
    r.format = ResponseFormat::json_object;
  } else if (type == "regex") {
    keys({"type", "pattern"});
    if (!v->contains("pattern") || !(*v)["pattern"].is_string())
      throw ApiError(400, "response_format: it lacks its pattern", name);
    r.format = ResponseFormat::regex;
    r.schema = (*v)["pattern"].get<std::string>();
  } else if (type == "json_schema") {
    keys({"type", "json_schema"});
    if (!v->contains("json_schema") || !(*v)["json_schema"].is_object() ||
        !(*v)["json_schema"].contains("schema"))
      throw ApiError(400, "response_format: it lacks json_schema.schema", name);
    const Json& js = (*v)["json_schema"];
    for (const auto& [key, unused] : js.items())
      if (key != "schema" && key != "name" && key != "strict" && key != "description")
        throw ApiError(400, fmt::format("{}: the field json_schema.{} is not supported", name, key), name,
                       "unknown_parameter");
    r.format = ResponseFormat::json_schema;
    r.schema = dump_json(js["schema"], -1);
  } else {
    throw ApiError(
        400, "response_format: expected text, json_object, json_schema or regex, got " + quote_text(type),
        name);
  }
}

void read_sampling(Fields& f, CompletionRequest& r) {
  SamplerOptions& s = r.sampling;
  s.temperature = f.number("temperature", 1);
  s.top_p = f.number("top_p", 1);
  s.min_p = f.number("min_p", 0);
  // -1 is how vLLM's clients write "all".
  s.top_k = std::max<int64_t>(0, f.integer("top_k", -1, std::numeric_limits<int64_t>::max()).value_or(0));
  s.repetition_penalty = f.number("repetition_penalty", 1);
  s.frequency_penalty = f.number("frequency_penalty", 0);
  s.presence_penalty = f.number("presence_penalty", 0);
  if (const auto seed =
          f.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max())) {
    s.seed = static_cast<uint64_t>(*seed);
    r.seeded = true;
  }
}

void read_logprobs(Fields& f, CompletionRequest& r) {
  if (!r.chat) {
    r.logprobs = f.integer("logprobs", 0, kMaxTopLogprobs).value_or(-1);
    return;
  }
  const bool wanted = f.flag("logprobs", false);
  const auto top = f.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && *top > 0 && !wanted)
    throw ApiError(400, "top_logprobs: it needs logprobs to be true", "top_logprobs");
  if (wanted) r.logprobs = top.value_or(0);
}

}  // namespace

Json parse_api_body(const std::string& body) {
  try {
    return parse_json(body, "request body");
  } catch (const Error& e) {
    throw ApiError(400, e.what());
  }
}

CompletionRequest parse_completion_request(const Json& body, bool chat, int64_t vocab) {
  CompletionRequest r;
  Fields f(body);
  r.chat = chat;
  r.model = f.text("model");
  constexpr auto kAny = std::numeric_limits<int64_t>::max();
  r.max_tokens = f.integer("max_tokens", 0, kAny);
  if (chat) {
    const Json* messages = f.find("messages");
    if (messages == nullptr) throw ApiError(400, "messages: it is missing", "messages");
    r.messages = read_messages(*messages);
    r.template_extra = read_template_extra(f);
    r.add_generation_prompt = f.flag("add_generation_prompt", true);
    if (const auto most = f.integer("max_completion_tokens", 0, kAny)) {
      if (r.max_tokens && *r.max_tokens != *most)
        throw ApiError(400, "max_tokens and max_completion_tokens differ", "max_completion_tokens");
      r.max_tokens = most;
    }
    f.only("tools", {Json::array()});
    f.only("tool_choice", {"none", "auto"});
    f.only("parallel_tool_calls", {true, false});
    f.only("modalities", {Json::array({"text"})});
    f.only("store", {false});
  } else {
    read_prompts(f, r, vocab);
    r.echo = f.flag("echo", false);
    r.add_special_tokens = f.flag("add_special_tokens", true);
    f.only("suffix", {""});
    if (!r.max_tokens) r.max_tokens = 16;
  }
  r.n = f.integer("n", 1, Request::kMaxChoices).value_or(1);
  f.only("best_of", {r.n});
  r.stream = f.flag("stream", false);
  if (const Json* o = f.find("stream_options")) {
    if (!r.stream) throw ApiError(400, "stream_options: it needs stream to be true", "stream_options");
    Fields of(*o);
    r.include_usage = of.flag("include_usage", false);
    of.only("include_obfuscation", {false});
    of.finish();
  }
  read_sampling(f, r);
  read_stop(f, r);
  read_logit_bias(f, r, vocab);
  read_logprobs(f, r);
  read_format(f, r);
  if (const Json* ids = f.find("stop_token_ids")) {
    if (!ids->is_array() || ids->size() > static_cast<size_t>(kMaxStops))
      refuse("stop_token_ids", fmt::format("a list of at most {} token ids", kMaxStops), *ids);
    r.stop_token_ids = token_ids("stop_token_ids", *ids, vocab);
  }
  r.ignore_eos = f.flag("ignore_eos", false);
  r.cache_prompt = f.flag("cache_prompt", true);
  r.cache_salt = f.text("cache_salt");
  f.ignore("user");
  f.ignore("metadata");
  f.only("service_tier", {"auto", "default"});
  f.finish();
  try {
    r.sampling.check();
  } catch (const Error& e) {
    const std::string message = e.what();
    throw ApiError(400, message, message.substr(0, message.find(':')));
  }
  return r;
}

TokenizeRequest parse_tokenize_request(const Json& body) {
  TokenizeRequest r;
  Fields f(body);
  r.model = f.text("model");
  if (const Json* p = f.find("prompt")) {
    if (!p->is_string()) refuse("prompt", "a text", *p);
    r.prompt = p->get<std::string>();
  }
  if (const Json* m = f.find("messages")) r.messages = read_messages(*m);
  if (r.prompt.has_value() == !r.messages.is_null())
    throw ApiError(400, "give either prompt or messages", "prompt");
  r.template_extra = read_template_extra(f);
  r.add_generation_prompt = f.flag("add_generation_prompt", true);
  r.add_special_tokens = f.flag("add_special_tokens", true);
  r.parse_special = f.flag("parse_special", true);
  f.finish();
  return r;
}

std::vector<int32_t> parse_detokenize_request(const Json& body, int64_t vocab, std::string& model) {
  Fields f(body);
  model = f.text("model");
  const Json* ids = f.find("tokens");
  if (ids == nullptr || !ids->is_array())
    throw ApiError(400, "tokens: expected a list of token ids", "tokens");
  std::vector<int32_t> out = token_ids("tokens", *ids, vocab);
  f.finish();
  return out;
}

}  // namespace hysparse
