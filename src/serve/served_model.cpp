#include "serve/served_model.h"

#include <algorithm>
#include <ctime>

#include "base/error.h"
#include "io/files.h"
#include "tokenizer/utf8.h"

namespace hysparse {

std::string ServedModel::token_text(int32_t id) const {
  if (!tokenizer || id < 0 || id >= tokenizer->vocab_size()) return fmt::format("token_id:{}", id);
  const std::string_view bytes = tokenizer->token_bytes(id);
  if (utf8_valid_end(bytes, 0) == bytes.size()) return std::string(bytes);
  std::string out = "bytes:";
  for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

std::string ServedModel::text(const std::vector<int32_t>& ids) const {
  std::string bytes;
  for (const int32_t id : ids)
    if (id >= 0 && id < tokenizer->vocab_size()) bytes += tokenizer->token_bytes(id);
  Utf8Stream whole;
  std::string out = whole.push(bytes);
  return out += whole.flush();
}

std::vector<int32_t> ServedModel::encode_chat(const Json& messages, const Json& extra,
                                              bool add_generation_prompt) const {
  if (!chat)
    throw ApiError(
        400,
        "this model has no chat template: start the server with --chat-template plain, chatml or a file");
  try {
    const MarkedText t = chat->render(messages, nullptr, extra, {add_generation_prompt, std::time(nullptr)});
    return tokenizer->encode_marked(t.text, t.trusted);
  } catch (const Error& e) {
    throw ApiError(400, e.what(), "messages");
  }
}

std::vector<int32_t> ServedModel::encode_prompt(const ApiPrompt& prompt, bool add_special_tokens) const {
  std::vector<int32_t> ids = prompt.ids;
  if (prompt.text)
    ids = add_special_tokens ? tokenizer->encode_from_start(*prompt.text, true)
                             : tokenizer->encode(*prompt.text, true);
  if (ids.empty()) ids = start;
  if (ids.empty())
    throw ApiError(400, "prompt: it is empty, and the model names no token that begins a text", "prompt");
  return ids;
}

ServedModel describe_model(const TextModel& model, const std::string& name, const std::string& chat_template,
                           int64_t context) {
  ServedModel out;
  model.text();  // or says what is missing
  out.name = name;
  out.tokenizer = model.tokenizer;
  out.eos = model.eos;
  out.vocab = model.config().vocab_size;
  out.context = context;
  out.created = static_cast<int64_t>(std::time(nullptr));
  if (chat_template.empty())
    out.chat = ChatTemplate::load(model.where);
  else if (chat_template.find_first_of("./") != std::string::npos)
    out.chat = ChatTemplate::parse(read_file(chat_template), chat_template);
  else
    out.chat = ChatTemplate::builtin(chat_template);
  const auto text_of = [&](int64_t id) {
    return id >= 0 && id < out.tokenizer->vocab_size()
               ? std::string(out.tokenizer->token_bytes(static_cast<int32_t>(id)))
               : std::string();
  };
  if (!out.eos.empty())
    out.eos_text = text_of(out.tokenizer->eos_id() >= 0 ? out.tokenizer->eos_id() : out.eos.front());
  if (model.config().bos_token_id) out.bos_text = text_of(*model.config().bos_token_id);
  if (model.config().bos_token_id || !model.eos.empty()) out.start = model.or_start({});
  return out;
}

std::shared_ptr<const Constraint> ConstraintCache::get(ResponseFormat format, const std::string& schema) {
  if (format == ResponseFormat::text) return nullptr;
  const std::string key = static_cast<char>('0' + static_cast<int>(format)) + schema;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = std::find_if(kept_.begin(), kept_.end(), [&](const auto& k) { return k.first == key; });
    if (it != kept_.end()) {
      std::rotate(it, it + 1, kept_.end());
      return kept_.back().second;
    }
  }
  std::shared_ptr<const Constraint> made;
  try {
    made = format == ResponseFormat::json_object ? Constraint::json_object(trie_)
           : format == ResponseFormat::regex     ? Constraint::regex(schema, trie_, "response_format")
                                                 : Constraint::json_schema(schema, trie_, "response_format");
  } catch (const Error& e) {
    throw ApiError(400, e.what(), "response_format");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (kept_.size() >= kKept) kept_.erase(kept_.begin());
  kept_.emplace_back(key, made);
  return made;
}

}  // namespace hysparse
