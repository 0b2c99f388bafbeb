#include "tokenizer/bpe_trainer.h"

#include <algorithm>
#include <queue>
#include <unordered_map>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/pair_table.h"

namespace hysparse {
namespace {

class Trainer {
 public:
  Trainer(const std::vector<CountedWord>& words, const std::vector<std::string>& reserved) {
    out_.tokens = reserved;
    std::vector<int> order(256);
    for (int b = 0; b < 256; ++b) order[static_cast<size_t>(b)] = b;
    std::sort(order.begin(), order.end(), [](int a, int b) {
      return alphabet_char(static_cast<uint8_t>(a)) < alphabet_char(static_cast<uint8_t>(b));
    });
    int32_t byte_id[256];
    for (const int b : order) {
      byte_id[b] = static_cast<int32_t>(out_.tokens.size());
      out_.tokens.emplace_back(1, static_cast<char>(b));
    }
    for (size_t id = reserved.size(); id < out_.tokens.size(); ++id)
      id_of_.emplace(out_.tokens[id], static_cast<int32_t>(id));
    for (const std::string& r : reserved) id_of_[r] = kReserved;

    words_.reserve(words.size());
    for (const CountedWord& w : words) {
      words_.push_back({symbols_.size(), static_cast<uint32_t>(w.bytes.size()), w.count});
      for (const char c : w.bytes) symbols_.push_back(byte_id[static_cast<uint8_t>(c)]);
    }
    for (size_t w = 0; w < words_.size(); ++w) {
      const int32_t* s = symbols_.data() + words_[w].begin;
      for (uint32_t i = 0; i + 1 < words_[w].length; ++i) increase(s[i], s[i + 1], static_cast<uint32_t>(w));
    }
    queue_touched();
  }

  TrainedBpe run(size_t vocab_size) {
    while (out_.tokens.size() < vocab_size && !queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      bool fresh = false;
      Pair& pair = pairs_.get(top.key, fresh);
      if (pair.count != top.count) {  // it fell since it was queued
        if (pair.count > 0) queue_.push({pair.count, top.key});
        continue;
      }
      merge(top.key, pair);
    }
    return std::move(out_);
  }

 private:
  static constexpr int32_t kReserved = -1;

  struct Word {
    size_t begin;  // in symbols_
    uint32_t length;
    int64_t count;
  };
  struct Pair {
    int64_t count = 0;
    std::vector<uint32_t> words;  // all that hold it, and some that no longer do
    bool merged = false, touched = false;
  };
  struct Candidate {
    int64_t count;
    uint64_t key;
    bool operator<(const Candidate& o) const { return count != o.count ? count < o.count : key > o.key; }
  };

  void increase(int32_t left, int32_t right, uint32_t word) {
    bool fresh = false;
    const uint64_t key = pair_key(left, right);
    Pair& p = pairs_.get(key, fresh);
    p.count += words_[word].count;
    if (p.words.empty() || p.words.back() != word) p.words.push_back(word);
    if (!p.touched) touched_.push_back(key);
    p.touched = true;
  }
  void decrease(int32_t left, int32_t right, int64_t by) {
    bool fresh = false;
    pairs_.get(pair_key(left, right), fresh).count -= by;
  }
  void queue_touched() {
    for (const uint64_t key : touched_) {
      bool fresh = false;
      Pair& p = pairs_.get(key, fresh);
      p.touched = false;
      if (p.count > 0) queue_.push({p.count, key});
    }
    touched_.clear();
  }

  void merge(uint64_t key, Pair& pair) {
    const auto left = static_cast<int32_t>(key >> 32), right = static_cast<int32_t>(key & 0xFFFFFFFFu);
    const std::string joined =
        out_.tokens[static_cast<size_t>(left)] + out_.tokens[static_cast<size_t>(right)];
    const auto [it, fresh] = id_of_.emplace(joined, static_cast<int32_t>(out_.tokens.size()));
    const int32_t result = it->second;
    if (result == kReserved) {  // plain text must never become a special token
      pair.count = 0;
      return;
    }
    if (fresh) out_.tokens.push_back(joined);
    if (!pair.merged) out_.merges.push_back({left, right, result});
    pair.merged = true;
    pair.count = 0;
    std::vector<uint32_t> words = std::move(pair.words);  // `pair` dies with the first increase()
    pair.words.clear();
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    for (const uint32_t w : words) merge_in(w, left, right, result);
    queue_touched();
  }

  void merge_in(uint32_t w, int32_t left, int32_t right, int32_t result) {
    Word& word = words_[w];
    int32_t* s = symbols_.data() + word.begin;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < word.length;) {
      if (s[i] != left || i + 1 == word.length || s[i + 1] != right) {
        s[kept++] = s[i++];
        continue;
      }
      if (kept > 0) {
        decrease(s[kept - 1], left, word.count);
        increase(s[kept - 1], result, w);
      }
      if (i + 2 < word.length) {
        decrease(right, s[i + 2], word.count);
        increase(result, s[i + 2], w);
      }
      s[kept++] = result;
      i += 2;
    }
    word.length = kept;
  }

  TrainedBpe out_;
  std::unordered_map<std::string, int32_t> id_of_;
  std::vector<int32_t> symbols_;
  std::vector<Word> words_;
  PairTable<Pair> pairs_;
  std::vector<uint64_t> touched_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

TrainedBpe train_bpe(const std::vector<CountedWord>& words, const std::vector<std::string>& reserved,
                     size_t vocab_size) {
  return Trainer(words, reserved).run(vocab_size);
}

}  // namespace hysparse
