// From text files to the token files that training reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/thread_pool.h"

namespace hysparse {

struct PrepareOptions {
  // How much is held out, in [0, 0.5]. Where that makes at least 5 documents, whole documents are held out,
  // evenly spread: document i if floor((i + 1) f) > floor(i f). Otherwise the tail of every document is: from
  // the first line start at or behind byte (1 - f) of its text (where the tail has no line end: from that
  // byte, moved on to a character's start). Both parts then count as documents of their own.
  double holdout = 0.02;
  // Conversations: *.jsonl files with {"messages": [...]} a line, of which only the answers are learned
  // (train/chat_data.h). Whole documents are held out, or none.
  bool chat = false;
  int64_t row_tokens = 0;     // chat: the train.seq_len that conversations are packed for
  std::string chat_template;  // chat: a file, "plain" or "chatml"; empty: the tokenizer's own
};

struct PreparedSplit {
  int64_t tokens = 0, text_bytes = 0, documents = 0;
};
struct PrepareReport {
  PreparedSplit train, holdout;
  int64_t empty_documents = 0;
  int64_t answer_tokens = 0;  // chat: tokens that are learned, of the training part
  int64_t shortened_documents = 0,
          dropped_documents = 0;  // chat: longer than a row; nothing to learn was left
};
struct PrepareProgress {
  int64_t bytes_done, bytes_total;  // of input
  int64_t tokens;
};

// Inputs: *.jsonl files hold a document a line, {"text": "..."}; every other file is one document. Each
// document is encoded by itself, as text alone (no special tokens are looked for), and ended by EOS; there is
// no BOS. Empty documents are skipped with a note. `out` is published as a set: train.tokens, holdout.tokens
// (if anything is held out), meta.json and the tokenizer's files. The result does not depend on the number of
// threads (a chat template may write the day's date); memory use does not grow with the size of the inputs
// (but a JSON line is held in memory).
PrepareReport prepare_data(const std::filesystem::path& tokenizer,
                           const std::vector<std::filesystem::path>& inputs, const std::filesystem::path& out,
                           const PrepareOptions& options, ThreadPool& pool, const Log& log,
                           const std::function<void(const PrepareProgress&)>& progress = {});

}  // namespace hysparse
