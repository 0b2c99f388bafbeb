#include "train/prepare.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "base/error.h"
#include "io/files.h"
#include "io/json_value.h"
#include "io/text_lines.h"
#include "model/checkpoint.h"
#include "tokenizer/tokenizer.h"
#include "train/chat_data.h"
#include "train/token_file.h"

namespace hysparse {
namespace {

namespace fs = std::filesystem;

constexpr size_t kChunkBytes = size_t(1) << 20;  // of text a task
constexpr size_t kBatchBytes = size_t(4) << 20;  // of text a thread between two writes
constexpr size_t kStreamedBytes = size_t(64)
                                  << 20;  // a chunk that cannot be cut below this is written as it comes
constexpr double kWholeDocuments = 5;

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// Which part of which document is held out.
class HoldOut {
 public:
  HoldOut(double fraction, int64_t documents)
      : fraction_(fraction), whole_(fraction * static_cast<double>(documents) >= kWholeDocuments) {}

  bool whole_documents() const { return whole_; }
  // Where the held-out tail of document i begins: 0 for all of it, text.size() for nothing.
  size_t tail(std::string_view text, int64_t i) const {
    if (fraction_ == 0) return text.size();
    if (whole_) {
      const auto before = [&](int64_t k) { return std::floor(static_cast<double>(k) * fraction_); };
      return before(i + 1) > before(i) ? 0 : text.size();
    }
    const size_t from = text.size() - static_cast<size_t>(static_cast<double>(text.size()) * fraction_);
    if (from >= text.size()) return text.size();
    if (text[from - 1] == '\n') return from;
    const size_t line = text.find('\n', from);
    if (line != std::string_view::npos && line + 1 < text.size()) return line + 1;
    size_t character = from;
    while (character < text.size() && (static_cast<uint8_t>(text[character]) & 0xC0) == 0x80) ++character;
    return character;
  }

 private:
  double fraction_;
  bool whole_;
};

// A task's result: ids for a split, and the end of a document where it ends.
struct Encoded {
  int split;
  std::vector<int32_t> ids;
  int64_t document_bytes = -1;   // >= 0: the document ends here and had so much text
  std::vector<int32_t> flags{};  // of a conversation's tokens
};

ChatTemplate chat_template_of(const PrepareOptions& options, const fs::path& tokenizer_dir) {
  const std::string& name = options.chat_template;
  if (name == "plain" || name == "chatml") return ChatTemplate::builtin(name);
  if (!name.empty()) return ChatTemplate::parse(read_file(name), name);
  if (std::optional<ChatTemplate> own = ChatTemplate::load(tokenizer_dir)) return std::move(*own);
  throw input_error(tokenizer_dir.string(), "the tokenizer has no chat template",
                    "--chat-template names a file, plain or chatml");
}

// Work that any thread can do: a chunk of a document that lies in a mapped file, or a line of JSON.
struct Task {
  std::string_view text;
  int split = 0;
  int64_t document_bytes = -1;
  const std::string* file = nullptr;  // JSON: its name, with the line's number and the document's
  int64_t line = 0, document = 0;
};

class Preparation {
 public:
  Preparation(const fs::path& tokenizer_dir, const std::vector<fs::path>& inputs,
              const PrepareOptions& options, ThreadPool& pool, const Log& log,
              const std::function<void(const PrepareProgress&)>& progress)
      : tokenizer_(Tokenizer::load(tokenizer_dir)),
        tokenizer_dir_(fs::is_directory(tokenizer_dir) ? tokenizer_dir : tokenizer_dir.parent_path()),
        pool_(pool),
        log_(log),
        progress_(progress),
        hold_out_(options.holdout, 0),
        fraction_(options.holdout),
        row_tokens_(options.chat ? options.row_tokens : 0) {
    if (options.chat) {
      if (options.row_tokens < 2)
        throw expected_error("--seq-len", "the train.seq_len that conversations are packed for, at least 2",
                             std::to_string(options.row_tokens));
      chat_.emplace(chat_template_of(options, tokenizer_dir_));
    }
    if (!(options.holdout >= 0 && options.holdout <= 0.5))
      throw expected_error("--holdout", "a fraction in [0, 0.5]", fmt::format("{}", options.holdout));
    if (tokenizer_.eos_id() < 0)
      throw input_error(tokenizer_dir.string(), "the tokenizer names no end-of-text token",
                        "set eos_token in tokenizer_config.json");
    if (inputs.empty()) throw input_error("data prepare", "no input files");
    int64_t documents = 0;
    std::set<fs::path> seen;
    files_.reserve(inputs.size());
    for (const fs::path& path : inputs) {
      if (!seen.insert(fs::weakly_canonical(path)).second)
        throw input_error(path.string(), "given twice: its text would be in the data twice");
      files_.push_back({path.string(), MappedFile(path), path.extension() == ".jsonl"});
      const std::string_view text = text_of(files_.back().map);
      bytes_total_ += static_cast<int64_t>(text.size());
      if (options.chat && !files_.back().json)
        throw expected_error(path.string(), "a *.jsonl file of conversations", "another one",
                             "{\"messages\": [...]} a line");
      if (files_.back().json)
        for_each_line(text, [&](std::string_view, int64_t) { ++documents; });
      else if (!text.empty())
        ++documents;
    }
    hold_out_ = HoldOut(options.holdout, documents);
  }

  PrepareReport run(const fs::path& dir) {
    TokenFileHeader header;
    header.vocab_size = tokenizer_.vocab_size();
    header.eos_id = tokenizer_.eos_id();
    header.fingerprint = tokenizer_.fingerprint();
    header.row_tokens = row_tokens_;
    writers_[0].emplace(dir / "train.tokens", header);
    writers_[1].emplace(dir / "holdout.tokens", header);
    if (chat_) {
      encoder_.emplace(tokenizer_, *chat_, std::time(nullptr));
      header.vocab_size = 1 + (kLearned | kDocumentEnd);
      header.eos_id = kDocumentEnd;
      for (int split = 0; split < 2; ++split) {
        flags_[split].emplace(dir / (split == 0 ? "train.flags.tokens" : "holdout.flags.tokens"), header);
        packers_.emplace_back(
            row_tokens_, tokenizer_.eos_id(),
            [this, split](const std::vector<int32_t>& ids, const std::vector<int32_t>& flags) {
              writers_[split]->add_tokens(ids.data(), ids.size());
              flags_[split]->add_tokens(flags.data(), flags.size());
              if (split == 0)
                report_.answer_tokens +=
                    std::count_if(flags.begin(), flags.end(), [](int32_t f) { return f & kLearned; });
            });
      }
    }
    for (const File& f : files_) {
      const std::string_view text = text_of(f.map);
      if (f.json)
        for_each_line(text, [&](std::string_view line, int64_t number) {
          Task task;
          task.text = line;
          task.file = &f.name;
          task.line = number;
          task.document = document_++;
          add(task);
        });
      else
        add_document(text, f.name);
    }
    work();
    tell(static_cast<size_t>(bytes_total_ - bytes_done_));  // blank lines and line ends were no work
    return finish(dir);
  }

 private:
  struct File {
    std::string name;
    MappedFile map;
    bool json;
  };

  void add_document(std::string_view text, const std::string& name) {
    if (text.empty()) {
      ++report_.empty_documents;
      log(log_, LogLevel::warning, name + ": empty, skipped");
      return;
    }
    const size_t tail = hold_out_.tail(text, document_++);
    add_part(text.substr(0, tail), 0);
    add_part(text.substr(tail), 1);
  }

  void add_part(std::string_view text, int split) {
    const auto bytes = static_cast<int64_t>(text.size());
    while (!text.empty()) {
      const size_t end = text.size() <= kChunkBytes ? text.size() : tokenizer_.next_cut(text, kChunkBytes);
      Task task;
      task.text = text.substr(0, end);
      task.split = split;
      if (end == text.size()) task.document_bytes = bytes;
      add(task);
      text.remove_prefix(end);
    }
  }

  void add(const Task& task) {
    if (task.file == nullptr && task.text.size() > kStreamedBytes) {
      work();  // what came before it
      tokenizer_.encode_to(task.text, [&](const int32_t* ids, size_t n) { add_tokens(task.split, ids, n); });
      end_document(task.split, task.document_bytes);
      tell(task.text.size());
      return;
    }
    tasks_.push_back(task);
    waiting_ += task.text.size();
    if (waiting_ >= kBatchBytes * static_cast<size_t>(pool_.threads())) work();
  }

  // A document begins with what the tokenizer puts before every text.
  void add_tokens(int split, const int32_t* ids, size_t count) {
    const std::vector<int32_t>& start = tokenizer_.start_ids();
    if (!inside_[split]) writers_[split]->add_tokens(start.data(), start.size());
    inside_[split] = true;
    writers_[split]->add_tokens(ids, count);
  }
  void end_document(int split, int64_t bytes) {
    if (bytes < 0) return;
    writers_[split]->end_document(bytes);
    inside_[split] = false;
  }

  static std::string place(const Task& task) { return fmt::format("{}:{}", *task.file, task.line); }

  std::string json_text(const Task& task) const {
    const std::string where = place(task);
    const Json line = parse_json(task.text, where);
    if (!line.is_object()) throw expected_error(where, "an object with \"text\"", line.type_name());
    const auto text = line.find("text");
    if (text == line.end()) throw input_error(where, "no \"text\" in it");
    if (!text->is_string()) throw expected_error(where + ": text", "a text", text->type_name());
    return text->get<std::string>();
  }

  std::vector<Encoded> encode(const Task& task) const {
    std::vector<Encoded> out;
    const auto part = [&](std::string_view text, int split, int64_t document_bytes) {
      if (!text.empty()) out.push_back({split, tokenizer_.encode(text), document_bytes});
    };
    if (task.file == nullptr) {
      part(task.text, task.split, task.document_bytes);
    } else if (chat_) {
      const int split = hold_out_.whole_documents() && hold_out_.tail(" ", task.document) == 0 ? 1 : 0;
      for (ChatDocument& d : encoder_->encode(parse_json(task.text, place(task)), place(task)))
        out.push_back({split, std::move(d.ids), d.answer_bytes, std::move(d.flags)});
    } else {
      const std::string text = json_text(task);
      const size_t tail = hold_out_.tail(text, task.document);
      part(std::string_view(text).substr(0, tail), 0, static_cast<int64_t>(tail));
      part(std::string_view(text).substr(tail), 1, static_cast<int64_t>(text.size() - tail));
    }
    return out;
  }

  void work() {
    std::vector<std::vector<Encoded>> results(tasks_.size());
    pool_.parallel_for(static_cast<int64_t>(tasks_.size()), [&](int64_t i, int) {
      results[static_cast<size_t>(i)] = encode(tasks_[static_cast<size_t>(i)]);
    });
    for (const std::vector<Encoded>& result : results) {
      if (result.empty()) ++report_.empty_documents;
      for (const Encoded& e : result) {
        if (chat_) {
          writers_[e.split]->count_document(e.document_bytes);
          flags_[e.split]->count_document(e.document_bytes);
          packers_[static_cast<size_t>(e.split)].add({e.ids, e.flags, e.document_bytes});
          continue;
        }
        add_tokens(e.split, e.ids.data(), e.ids.size());
        end_document(e.split, e.document_bytes);
      }
    }
    tasks_.clear();
    tell(std::exchange(waiting_, 0));
  }

  void tell(size_t bytes) {
    bytes_done_ += static_cast<int64_t>(bytes);
    if (progress_)
      progress_({bytes_done_, bytes_total_, writers_[0]->header().tokens + writers_[1]->header().tokens});
  }

  static PreparedSplit split_of(const TokenFileHeader& h) { return {h.tokens, h.text_bytes, h.documents}; }

  PrepareReport finish(const fs::path& dir) {
    for (size_t split = 0; split < packers_.size(); ++split) {
      if (writers_[split]->header().documents > 0) packers_[split].finish();
      report_.shortened_documents += packers_[split].shortened();
      report_.dropped_documents += packers_[split].dropped();
    }
    for (auto& w : writers_) w->finish();
    for (auto& w : flags_)
      if (w) w->finish();
    if (report_.shortened_documents > 0)
      log(log_, LogLevel::warning,
          fmt::format("{} conversations are longer than a row of {} tokens and lose their end; {} of them "
                      "have no answer left and are dropped",
                      report_.shortened_documents, row_tokens_, report_.dropped_documents));
    report_.train = split_of(writers_[0]->header());
    report_.holdout = split_of(writers_[1]->header());
    if (report_.empty_documents > 0)
      log(log_, LogLevel::info, fmt::format("{} empty documents skipped", report_.empty_documents));
    if (report_.train.tokens == 0 || (chat_ && report_.answer_tokens == 0))
      throw input_error("data prepare",
                        fmt::format("the {} input files hold no text for training", files_.size()));
    if (report_.holdout.tokens == 0) {
      fs::remove(writers_[1]->path());
      if (flags_[1]) fs::remove(flags_[1]->path());
      if (fraction_ > 0)
        log(log_, LogLevel::warning,
            fmt::format("nothing is held out: a fraction of {} of this little text is nothing", fraction_));
    }
    copy_tokenizer_files(tokenizer_dir_, dir);
    if (chat_) write_file_atomic(dir / "chat_template.jinja", chat_->source());
    write_file_atomic(dir / "meta.json", dump_json(meta()));
    return report_;
  }

  Json meta() const {
    Json m;
    m["format"] = "hysparse-token-data";
    m["version"] = kTokenFileVersion;
    m["vocab_size"] = tokenizer_.vocab_size();
    m["eos_token_id"] = tokenizer_.eos_id();
    m["tokenizer_fingerprint"] = tokenizer_.fingerprint();
    m["dtype"] = writers_[0]->header().bytes_per_token == 2 ? "u16" : "u32";
    m["holdout"]["fraction"] = fraction_;
    m["holdout"]["rule"] = hold_out_.whole_documents() ? "whole documents" : "tail of each document";
    if (chat_) {
      m["chat"]["row_tokens"] = row_tokens_;
      m["chat"]["template"] = chat_->name();
      m["chat"]["answer_tokens"] = report_.answer_tokens;
      m["chat"]["shortened_documents"] = report_.shortened_documents;
    }
    const auto add_split = [&](const char* name, const PreparedSplit& s) {
      Json& j = m["splits"][name];
      j["file"] = std::string(name) + ".tokens";
      j["tokens"] = s.tokens;
      j["text_bytes"] = s.text_bytes;
      j["documents"] = s.documents;
    };
    add_split("train", report_.train);
    if (report_.holdout.tokens > 0) add_split("holdout", report_.holdout);
    m["inputs"] = Json::array();
    for (const File& f : files_) {
      Json j;
      j["file"] = fs::path(f.name).filename().string();
      j["bytes"] = f.map.bytes().size();
      m["inputs"].push_back(std::move(j));
    }
    return m;
  }

  Tokenizer tokenizer_;
  fs::path tokenizer_dir_;
  ThreadPool& pool_;
  const Log& log_;
  const std::function<void(const PrepareProgress&)>& progress_;
  HoldOut hold_out_;
  double fraction_;
  int64_t row_tokens_;
  std::optional<ChatTemplate> chat_;
  std::optional<ChatEncoder> encoder_;
  std::vector<RowPacker> packers_;                        // chat: train, holdout
  std::optional<TokenFileWriter> writers_[2], flags_[2];  // train, holdout
  std::vector<File> files_;
  bool inside_[2] = {false, false};  // a document
  std::vector<Task> tasks_;
  size_t waiting_ = 0;
  int64_t document_ = 0, bytes_total_ = 0, bytes_done_ = 0;
  PrepareReport report_;
};

}  // namespace

PrepareReport prepare_data(const fs::path& tokenizer, const std::vector<fs::path>& inputs,
                           const fs::path& out, const PrepareOptions& options, ThreadPool& pool,
                           const Log& log, const std::function<void(const PrepareProgress&)>& progress) {
  Preparation preparation(tokenizer, inputs, options, pool, log, progress);
  PrepareReport report;
  std::error_code error;  // what is wrong with it, publish_directory() says
  fs::create_directories(fs::absolute(out).parent_path(), error);
  publish_directory(out, [&](const fs::path& dir) { report = preparation.run(dir); });
  return report;
}

}  // namespace hysparse
