// Conversations as training reads them: the text of the chat template, of which only the answers are learned.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "io/json_value.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace hysparse {

// Of every token of prepared conversations (SPLIT.flags.tokens).
inline constexpr int32_t kLearned = 1;      // counts as a label
inline constexpr int32_t kDocumentEnd = 2;  // the next token belongs to another conversation

struct ChatDocument {
  std::vector<int32_t> ids, flags;
  int64_t answer_bytes = 0;
  bool has_answer() const;  // whether anything is learned
};

class ChatEncoder {
 public:
  // Keeps the references. `now`: what the template takes for today.
  ChatEncoder(const Tokenizer& tokenizer, const ChatTemplate& chat, std::time_t now)
      : tokenizer_(tokenizer), template_(chat), now_(now) {}

  // `line`: {"messages": [{"role", "content", ...}, ...], "tools": [...] (optional)}. Tokens are cut where an
  // answer begins and ends, as they are when a model is asked and answers. Learned of each message of role
  // "assistant": its text and the token that ends it (where that is not a special one, EOS behind the last
  // answer). One document a conversation; where the template writes earlier answers otherwise once others
  // follow, one an answer. Error(input) naming `where`.
  std::vector<ChatDocument> encode(const Json& line, const std::string& where) const;

 private:
  const Tokenizer& tokenizer_;
  const ChatTemplate& template_;
  std::time_t now_;
};

// Puts documents whole into rows of the same length, the fullest row first that has room; what is left of a
// row is filled with EOS as a document of its own that nobody learns. A longer document loses its end.
class RowPacker {
 public:
  using Sink = std::function<void(const std::vector<int32_t>& ids, const std::vector<int32_t>& flags)>;
  RowPacker(int64_t row_tokens, int32_t eos, Sink sink)
      : row_tokens_(static_cast<size_t>(row_tokens)), eos_(eos), sink_(std::move(sink)) {}

  void add(ChatDocument document);
  // Hands over what is still open, and one more token: the label behind the last row.
  void finish();
  int64_t shortened() const { return shortened_; }  // documents
  int64_t dropped() const { return dropped_; }      // without an answer in what was left of them

 private:
  struct Row {
    std::vector<int32_t> ids, flags;
  };
  void close(size_t row);

  size_t row_tokens_;
  int32_t eos_;
  Sink sink_;
  std::vector<Row> open_;
  int64_t shortened_ = 0, dropped_ = 0;
};

}  // namespace hysparse
