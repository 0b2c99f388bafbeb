#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/rng.h"
#include "io/files.h"
#include "tokenizer/bpe.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/nfc.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/special_matcher.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/utf8.h"
#include "tokenizer/word_cache.h"

namespace hysparse {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFlushIds = 16384;             // how many ids encode_to() hands over at a time, about
constexpr size_t kPartBytes = size_t(1) << 16;  // of a long piece that are merged at a time, about

class Fingerprint {
 public:
  void add(std::string_view text) {
    add(text.size());
    for (size_t i = 0; i < text.size(); i += 8) {
      uint64_t word = 0;
      for (size_t k = 0; k < std::min<size_t>(8, text.size() - i); ++k)
        word |= static_cast<uint64_t>(static_cast<uint8_t>(text[i + k])) << (8 * k);
      add(word);
    }
  }
  void add(uint64_t word) {
    a_ = mix64(a_ ^ word);
    b_ = mix64(b_ + word);
  }
  std::string hex() const { return fmt::format("{:016x}{:016x}", a_, b_); }

 private:
  uint64_t a_ = 0x6a09e667f3bcc908ull, b_ = 0xbb67ae8584caa73bull;
};

std::string fingerprint_of(const TokenizerSpec& spec, int32_t eos, const std::vector<int32_t>& start) {
  Fingerprint f;
  std::vector<std::pair<int32_t, std::string_view>> by_id;
  for (const auto& [token, id] : spec.vocab) by_id.emplace_back(id, token);
  std::sort(by_id.begin(), by_id.end());
  f.add(by_id.size());
  for (const auto& [id, token] : by_id) f.add(static_cast<uint64_t>(id)), f.add(token);
  f.add(spec.merges.size());
  for (const BpeMerge& m : spec.merges)
    f.add(pair_key(m.left, m.right)), f.add(static_cast<uint64_t>(m.result));
  f.add(spec.added.size());
  for (const AddedToken& t : spec.added)
    f.add(static_cast<uint64_t>(t.id)), f.add(t.content),
        f.add((t.special ? 1u : 0u) | (t.normalized ? 2u : 0u));
  f.add(spec.rules.splits.size());
  for (const SplitRule& r : spec.rules.splits) f.add(r.pattern), f.add(r.literal ? 1u : 0u);
  f.add(spec.rules.last_split ? spec.rules.last_split->pattern : "");
  f.add((spec.nfc ? 1u : 0u) | (spec.ignore_merges ? 2u : 0u) | (spec.fuse_unk ? 4u : 0u) |
        (spec.rules.add_prefix_space ? 8u : 0u));
  f.add(static_cast<uint64_t>(static_cast<int64_t>(spec.unk_id)));
  f.add(static_cast<uint64_t>(static_cast<int64_t>(eos)));
  for (const int32_t id : start) f.add(static_cast<uint64_t>(id));
  return f.hex();
}

}  // namespace

struct Tokenizer::Impl {
  std::string bytes;             // of all tokens, one after the other
  std::vector<size_t> begin;     // [vocab + 1]
  std::vector<uint8_t> special;  // [vocab]
  std::unordered_map<std::string, int32_t> added;
  // Added tokens that are looked for before and after normalisation, without and with the special ones.
  SpecialMatcher raw[2], normalised[2];
  bool nfc = false;
  int32_t eos = -1;
  std::vector<int32_t> start;
  std::string fingerprint;
  Bpe bpe;
  PreTokenizer pre;
  bool can_cut = false;

  Impl(TokenizerSpec spec, int32_t eos_id, std::vector<int32_t> start_ids, const std::string& where)
      : nfc(spec.nfc),
        eos(eos_id),
        start(std::move(start_ids)),
        fingerprint(fingerprint_of(spec, eos_id, start)),
        bpe(make_bpe(spec, where)),
        pre(std::move(spec.rules), where) {
    int32_t largest = -1;
    for (const auto& [token, id] : spec.vocab) largest = std::max(largest, id);
    for (const AddedToken& t : spec.added) largest = std::max(largest, t.id);
    if (eos > largest)
      throw input_error(
          where, fmt::format("the end-of-text id {} is not below the vocabulary's {}", eos, largest + 1));
    for (const int32_t id : start)
      if (id > largest)
        throw input_error(where, fmt::format("the id {} that comes before every text is not below the "
                                             "vocabulary's {}",
                                             id, largest + 1));
    // Memory goes with the largest id: a file may leave some out, not nearly all.
    const size_t named = spec.vocab.size() + spec.added.size();
    if (static_cast<size_t>(largest) > 16 * named + 65536)
      throw input_error(where, fmt::format("has a token of id {}, but only {} tokens", largest, named));
    std::vector<std::string> tokens(static_cast<size_t>(largest) + 1);
    special.assign(tokens.size(), 0);
    for (const auto& [token, id] : spec.vocab) {
      std::string& t = tokens[static_cast<size_t>(id)];
      if (!from_alphabet(token, t)) t = token;  // unreachable by encode(), decoded as it is written
    }
    for (const AddedToken& t : spec.added) {
      tokens[static_cast<size_t>(t.id)] = t.content;
      special[static_cast<size_t>(t.id)] = t.special;
      added.emplace(t.content, t.id);
      for (const bool with_special : {false, true}) {
        if (t.special && !with_special) continue;
        if (t.normalized)
          normalised[with_special].add(nfc ? to_nfc(t.content) : t.content, t.id);
        else
          raw[with_special].add(t.content, t.id);
      }
    }
    for (SpecialMatcher* m : {&raw[0], &raw[1], &normalised[0], &normalised[1]}) m->finish();
    can_cut = !raw[0].any_contains('\n') && !normalised[0].any_contains('\n');
    begin.reserve(tokens.size() + 1);
    for (const std::string& t : tokens) {
      begin.push_back(bytes.size());
      bytes += t;
    }
    begin.push_back(bytes.size());
  }

  static Bpe make_bpe(const TokenizerSpec& spec, const std::string& where) {
    Bpe::Tables t;
    t.byte_ids.fill(-1);
    t.merges = spec.merges;
    t.unk_id = spec.unk_id;
    t.fuse_unk = spec.fuse_unk;
    std::unordered_map<int32_t, bool> reachable;  // ids that some merge builds
    for (const BpeMerge& m : spec.merges) reachable.emplace(m.result, true);
    for (const AddedToken& a : spec.added) reachable.emplace(a.id, true);
    size_t unreachable = 0;
    for (const auto& [token, id] : spec.vocab) {
      std::string b;
      if (!from_alphabet(token, b)) continue;
      if (b.size() == 1) t.byte_ids[static_cast<uint8_t>(b[0])] = id;
      if (b.size() > 1 && !reachable.contains(id)) ++unreachable;
      if (spec.ignore_merges && !b.empty()) t.whole_words.emplace(std::move(b), id);
    }
    if (spec.merges.empty() && unreachable > 0 && !spec.ignore_merges)
      throw input_error(where + ": model.merges",
                        fmt::format("empty, so {} tokens of several bytes could never be used", unreachable),
                        "the file has lost its merges");
    return Bpe(std::move(t));
  }

  std::string_view token(int32_t id) const {
    const auto i = static_cast<size_t>(id);
    return std::string_view(bytes).substr(begin[i], begin[i + 1] - begin[i]);
  }
  void check_id(int32_t id) const {
    if (id < 0 || static_cast<size_t>(id) + 1 >= begin.size())
      throw expected_error("token id", fmt::format("a value in [0, {})", begin.size() - 1),
                           std::to_string(id));
  }

  // One call of encode.
  class Run {
   public:
    Run(const Impl& t, bool parse_special, size_t text_bytes, const IdSink* sink)
        : t_(t), special_(parse_special), sink_(sink), state_(t.pre), cache_(text_bytes) {}

    std::vector<int32_t> finish() {
      if (sink_ != nullptr) flush();
      return std::move(out_);
    }

    // Added tokens of the raw text, what is between them normalised, added tokens of that, plain text.
    void raw(std::string_view text) {
      each(t_.raw[special_], text, [&](std::string_view between) {
        if (t_.nfc && !surely_nfc(between)) {
          const std::string nfc = to_nfc(between);
          normalised(nfc);
        } else {
          normalised(between);
        }
      });
    }

    void marked(std::string_view text, std::string_view trusted) {
      size_t at = 0;  // of the text
      each_marked(t_.raw, text, trusted, [&](std::string_view between) {
        at = static_cast<size_t>(between.data() - text.data());
        if (t_.nfc && !surely_nfc(between)) {  // where bytes came from is not followed through normalisation
          const std::string nfc = to_nfc(between);
          each(t_.normalised[0], nfc, [&](std::string_view rest) { plain(rest); });
        } else {
          each_marked(t_.normalised, between, trusted.substr(at, between.size()),
                      [&](std::string_view rest) { plain(rest); });
        }
      });
    }

   private:
    // As each(), with special tokens only where every byte is trusted.
    template <class Between>
    void each_marked(const SpecialMatcher (&tokens)[2], std::string_view text, std::string_view trusted,
                     Between&& between) {
      size_t done = 0;
      for (size_t at = 0; done < text.size();) {
        SpecialMatcher::Match m = tokens[1].find(text, at);
        if (m.length > 0 && t_.special[static_cast<size_t>(m.id)] != 0 &&
            trusted.substr(m.begin, m.length).find('\0') != std::string_view::npos) {
          const SpecialMatcher::Match ordinary = tokens[0].find(text, m.begin);
          if (ordinary.length == 0 || ordinary.begin != m.begin) {
            at = m.begin + 1;
            continue;
          }
          m = ordinary;
        }
        if (m.begin > done) between(text.substr(done, m.begin - done));
        if (m.length > 0) out_.push_back(m.id);
        done = at = m.begin + m.length;
      }
    }
    template <class Between>
    void each(const SpecialMatcher& tokens, std::string_view text, Between&& between) {
      for (size_t at = 0; at < text.size();) {
        const SpecialMatcher::Match m = tokens.find(text, at);
        if (m.begin > at) between(text.substr(at, m.begin - at));
        if (m.length > 0) out_.push_back(m.id);
        at = m.begin + m.length;
      }
    }

    void normalised(std::string_view text) {
      each(t_.normalised[special_], text, [&](std::string_view between) { plain(between); });
    }

    // Bytes that are not UTF-8 are pieces of their own: expressions never see them.
    void plain(std::string_view text) {
      for (size_t at = 0; at < text.size();) {
        const size_t end = utf8_valid_end(text, at);
        if (end > at) t_.pre.run(text.substr(at, end - at), state_, [&](std::string_view p) { piece(p); });
        at = end;
        if (at < text.size()) {
          const size_t bad = utf8_step(text, at).length;
          piece(text.substr(at, bad));
          at += bad;
        }
      }
    }

    void piece(std::string_view p) {
      if (sink_ != nullptr && out_.size() >= kFlushIds) flush();
      if (p.size() > WordCache::kMaxBytes) return long_piece(p);
      bool hit = false;
      WordCache::Entry& e = cache_.look(p, hit);
      if (hit) {
        out_.insert(out_.end(), e.ids, e.ids + e.count);
        return;
      }
      const size_t first = out_.size();
      t_.bpe.encode(p, out_, scratch_);
      WordCache::fill(e, out_.data() + first, out_.size() - first);
    }

    void long_piece(std::string_view p) {
      if (t_.bpe.whole_word(p, out_)) return;
      while (!p.empty()) {
        const std::string_view part = p.substr(0, t_.bpe.part(p, kPartBytes));
        t_.bpe.merge(part, out_, scratch_);
        p.remove_prefix(part.size());
        if (sink_ != nullptr && out_.size() >= kFlushIds) flush();
      }
    }

    void flush() {
      if (!out_.empty()) (*sink_)(out_.data(), out_.size());
      out_.clear();
    }

    const Impl& t_;
    const bool special_;
    const IdSink* sink_;
    PreTokenizer::State state_;
    WordCache cache_;
    Bpe::Scratch scratch_;
    std::vector<int32_t> out_;
  };
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const fs::path& dir) {
  fs::path file = dir;
  std::error_code unreadable;  // what is wrong with the path shows when the file is opened
  if (fs::is_directory(dir, unreadable)) {
    file = dir / "tokenizer.json";
    if (!file_exists(file))
      throw input_error(dir.string(), "holds no tokenizer.json", "make one with `hysparse tokenizer train`");
  }
  const std::string where = file.string();
  TokenizerSpec spec = read_tokenizer_json(file);
  const int32_t eos = find_eos(file.parent_path(), spec);
  std::vector<int32_t> start = find_start(file.parent_path(), spec);
  return Tokenizer(std::make_unique<Impl>(std::move(spec), eos, std::move(start), where));
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& where) {
  TokenizerSpec spec = parse_tokenizer_json(json, where);
  std::vector<int32_t> start = spec.start;
  return Tokenizer(std::make_unique<Impl>(std::move(spec), -1, std::move(start), where));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  Impl::Run run(*impl_, parse_special, text.size(), nullptr);
  run.raw(text);
  return run.finish();
}

std::vector<int32_t> Tokenizer::encode_marked(std::string_view text, std::string_view trusted) const {
  HYSPARSE_CHECK(text.size() == trusted.size(), "{} bytes with {} marks", text.size(), trusted.size());
  Impl::Run run(*impl_, true, text.size(), nullptr);
  run.marked(text, trusted);
  return run.finish();
}

std::vector<int32_t> Tokenizer::encode_from_start(std::string_view text, bool parse_special) const {
  std::vector<int32_t> ids = encode(text, parse_special);
  const std::vector<int32_t>& start = impl_->start;
  const bool there =
      parse_special && ids.size() >= start.size() && std::equal(start.begin(), start.end(), ids.begin());
  if (!there) ids.insert(ids.begin(), start.begin(), start.end());
  return ids;
}

void Tokenizer::encode_to(std::string_view text, const IdSink& sink, bool parse_special) const {
  Impl::Run run(*impl_, parse_special, text.size(), &sink);
  run.raw(text);
  run.finish();
}

size_t Tokenizer::next_cut(std::string_view text, size_t from) const {
  return impl_->can_cut ? impl_->pre.next_cut(text, from) : text.size();
}

std::string Tokenizer::decode(const std::vector<int32_t>& ids, bool keep_special) const {
  std::string out;
  for (const int32_t id : ids) {
    impl_->check_id(id);
    if (keep_special || !impl_->special[static_cast<size_t>(id)]) out += impl_->token(id);
  }
  return out;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  impl_->check_id(id);
  return impl_->token(id);
}
bool Tokenizer::is_special(int32_t id) const {
  impl_->check_id(id);
  return impl_->special[static_cast<size_t>(id)] != 0;
}
int32_t Tokenizer::vocab_size() const {
  return static_cast<int32_t>(impl_->begin.size()) - 1;
}
const std::vector<int32_t>& Tokenizer::start_ids() const {
  return impl_->start;
}
int32_t Tokenizer::eos_id() const {
  return impl_->eos;
}
int32_t Tokenizer::find(std::string_view token_text) const {
  const auto it = impl_->added.find(std::string(token_text));
  return it == impl_->added.end() ? -1 : it->second;
}
const std::string& Tokenizer::fingerprint() const {
  return impl_->fingerprint;
}

}  // namespace hysparse
