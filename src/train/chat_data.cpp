#include "train/chat_data.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"

namespace hysparse {
namespace {

constexpr size_t kOpenRows = 64;

const Json& messages_of(const Json& line, const std::string& where) {
  if (!line.is_object()) throw expected_error(where, "an object with \"messages\"", line.type_name());
  const auto messages = line.find("messages");
  if (messages == line.end()) throw input_error(where, "no \"messages\" in it");
  if (!messages->is_array() || messages->empty())
    throw expected_error(where + ": messages", "a list of messages",
                         messages->is_array() ? "an empty one" : messages->type_name());
  for (size_t i = 0; i < messages->size(); ++i) {
    const Json& m = (*messages)[i];
    const std::string at = fmt::format("{}: messages[{}]", where, i);
    if (!m.is_object() || !m.contains("role") || !m["role"].is_string())
      throw expected_error(at, "an object with a \"role\"", m.type_name());
    if (!m.contains("content") && !m.contains("tool_calls"))
      throw input_error(at, "has neither \"content\" nor \"tool_calls\"");
  }
  return *messages;
}

bool is_answer(const Json& message) {
  return message["role"] == "assistant";
}

// Marked text from byte `begin` to `end`.
MarkedText slice(const MarkedText& t, size_t begin, size_t end) {
  return {t.text.substr(begin, end - begin), t.trusted.substr(begin, end - begin)};
}

bool begins_with(const MarkedText& whole, const MarkedText& part) {
  return whole.text.starts_with(part.text);
}

}  // namespace

bool ChatDocument::has_answer() const {
  return std::any_of(flags.begin(), flags.end(), [](int32_t f) { return f & kLearned; });
}

std::vector<ChatDocument> ChatEncoder::encode(const Json& line, const std::string& where) const {
  const Json& messages = messages_of(line, where);
  const Json none;
  const Json& tools = line.contains("tools") ? line["tools"] : none;
  Json extra = Json::object();
  for (const auto& [key, value] : line.items())
    if (key != "messages" && key != "tools") extra[key] = value;
  const auto render = [&](size_t count, bool prompt) {
    try {
      const Json first(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(count));
      return template_.render(first, tools, extra, {.add_generation_prompt = prompt, .now = now_});
    } catch (const Error& e) {
      throw Error(ErrorKind::input, fmt::format("{}: {}", where, e.what()));
    }
  };
  // What stands in front of an answer, and with it.
  struct Turn {
    MarkedText before, with;
  };
  std::vector<Turn> turns;
  const MarkedText whole = render(messages.size(), false);
  bool one_document = true;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!is_answer(messages[i])) continue;
    turns.push_back({render(i, true), render(i + 1, false)});
    if (!begins_with(turns.back().with, turns.back().before))
      throw input_error(fmt::format("{}: messages[{}]", where, i),
                        "the chat template does not write this answer behind the prompt that it makes for it",
                        template_.name());
    one_document &= begins_with(whole, turns.back().with);
  }
  if (turns.empty()) throw input_error(where, "no message of role \"assistant\": there is nothing to learn");

  const auto add = [&](ChatDocument& d, const MarkedText& t, bool answer) {
    const std::vector<int32_t> ids = tokenizer_.encode_marked(t.text, t.trusted);
    // An answer ends with its last special token, if only white space follows.
    size_t end = ids.size();
    while (end > 0 && !tokenizer_.is_special(ids[end - 1]) &&
           tokenizer_.token_bytes(ids[end - 1]).find_first_not_of(" \t\r\n") == std::string_view::npos)
      --end;
    if (end == 0 || !tokenizer_.is_special(ids[end - 1])) end = ids.size();
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool learned = answer && i < end;
      d.ids.push_back(ids[i]);
      d.flags.push_back(learned ? kLearned : 0);
      if (learned && !tokenizer_.is_special(ids[i]))
        d.answer_bytes += static_cast<int64_t>(tokenizer_.token_bytes(ids[i]).size());
    }
  };
  const auto finish = [&](ChatDocument& d) {
    const auto last = std::find_if(d.flags.rbegin(), d.flags.rend(), [](int32_t f) { return f & kLearned; });
    const bool ended = last != d.flags.rend() &&
                       tokenizer_.is_special(d.ids[static_cast<size_t>(d.flags.rend() - last) - 1]);
    if (!ended && last == d.flags.rbegin()) {
      d.ids.push_back(tokenizer_.eos_id());
      d.flags.push_back(kLearned);
    }
    d.flags.back() |= kDocumentEnd;
  };
  std::vector<ChatDocument> out;
  if (one_document) {
    ChatDocument& d = out.emplace_back();
    size_t at = 0;
    for (const Turn& t : turns) {
      add(d, slice(whole, at, t.before.text.size()), false);
      add(d, slice(whole, t.before.text.size(), t.with.text.size()), true);
      at = t.with.text.size();
    }
    add(d, slice(whole, at, whole.text.size()), false);
    finish(d);
    return out;
  }
  for (const Turn& t : turns) {
    ChatDocument& d = out.emplace_back();
    add(d, t.before, false);
    add(d, slice(t.with, t.before.text.size(), t.with.text.size()), true);
    finish(d);
  }
  return out;
}

void RowPacker::add(ChatDocument d) {
  if (d.ids.size() > row_tokens_) {
    d.ids.resize(row_tokens_);
    d.flags.resize(row_tokens_);
    d.flags.back() |= kDocumentEnd;
    ++shortened_;
  }
  if (!d.has_answer()) {
    ++dropped_;
    return;
  }
  size_t best = open_.size();
  for (size_t r = 0; r < open_.size(); ++r)
    if (open_[r].ids.size() + d.ids.size() <= row_tokens_ &&
        (best == open_.size() || open_[r].ids.size() > open_[best].ids.size()))
      best = r;
  if (best == open_.size()) open_.emplace_back();
  Row& row = open_[best];
  row.ids.insert(row.ids.end(), d.ids.begin(), d.ids.end());
  row.flags.insert(row.flags.end(), d.flags.begin(), d.flags.end());
  if (row.ids.size() == row_tokens_)
    close(best);
  else if (open_.size() > kOpenRows)
    close(static_cast<size_t>(
        std::max_element(open_.begin(), open_.end(),
                         [](const Row& a, const Row& b) { return a.ids.size() < b.ids.size(); }) -
        open_.begin()));
}

void RowPacker::close(size_t at) {
  Row row = std::move(open_[at]);
  open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(at));
  row.ids.resize(row_tokens_, eos_);
  row.flags.resize(row_tokens_, 0);
  row.flags.back() |= kDocumentEnd;
  sink_(row.ids, row.flags);
}

void RowPacker::finish() {
  while (!open_.empty()) close(0);
  sink_({eos_}, {kDocumentEnd});
}

}  // namespace hysparse
