#include "tokenizer/tokenizer_gguf.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "io/files.h"
#include "io/json.h"
#include "io/json_value.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/utf8.h"

namespace hysparse {
namespace {

namespace fs = std::filesystem;

enum class Kind { gpt2, digits_gpt2, llama3, qwen2, qwen35 };

// What a name stands for. The first that fits a tokenizer is the one that is written.
struct PreName {
  std::string_view name;
  Kind kind;
  bool ignore_merges = false;
  bool nfc = false;      // as the model's own tokenizer.json has it
  bool add_bos = false;  // unless tokenizer.ggml.add_bos_token says otherwise
};
constexpr PreName kPreNames[] = {
    {"gpt-2", Kind::gpt2},
    {"phi-2", Kind::gpt2},
    {"mpt", Kind::gpt2},
    {"olmo", Kind::gpt2},
    {"jais", Kind::gpt2},
    {"exaone4", Kind::gpt2},
    {"gigachat", Kind::gpt2},
    {"a.x-4.0", Kind::gpt2},
    {"mellum", Kind::gpt2},
    {"trillion", Kind::gpt2},
    {"granite-docling", Kind::gpt2},
    {"smollm", Kind::digits_gpt2},
    {"starcoder", Kind::digits_gpt2},
    {"refact", Kind::digits_gpt2},
    {"command-r", Kind::digits_gpt2},
    {"codeshell", Kind::digits_gpt2},
    {"exaone", Kind::digits_gpt2},
    {"minerva-7b", Kind::digits_gpt2},
    {"llama-bpe", Kind::llama3, true, false, true},
    {"llama3", Kind::llama3, true, false, true},
    {"llama-v3", Kind::llama3, true, false, true},
    {"falcon3", Kind::llama3, true, false, true},
    {"pixtral", Kind::llama3, true, false, true},
    {"lfm2", Kind::llama3, true, false, true},
    {"smaug-bpe", Kind::llama3},
    {"dbrx", Kind::llama3},
    {"chatglm-bpe", Kind::llama3},
    {"glm4", Kind::llama3, true},
    {"qwen2", Kind::qwen2, false, true},
    {"deepseek-r1-qwen", Kind::qwen2, false, true},
    {"megrez", Kind::qwen2},
    {"stablelm2", Kind::qwen2},
    {"hunyuan", Kind::qwen2},
    {"qwen35", Kind::qwen35, false, true},
};

std::string_view pattern_of(Kind kind) {
  switch (kind) {
    case Kind::gpt2:
    case Kind::digits_gpt2:
      return kGpt2Pattern;
    case Kind::llama3:
      return kLlama3Pattern;
    case Kind::qwen2:
      return kQwen2Pattern;
    case Kind::qwen35:
      return kQwen35Pattern;
  }
  return {};
}

// llama.cpp's token types.
enum TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

constexpr const char* kModelKey = "tokenizer.ggml.model";
constexpr const char* kPreKey = "tokenizer.ggml.pre";
constexpr const char* kTokensKey = "tokenizer.ggml.tokens";
constexpr const char* kTypesKey = "tokenizer.ggml.token_type";
constexpr const char* kMergesKey = "tokenizer.ggml.merges";
constexpr const char* kAddBosKey = "tokenizer.ggml.add_bos_token";
constexpr const char* kTemplateKey = "tokenizer.chat_template";

// ---- from GGUF

class GgufReader {
 public:
  explicit GgufReader(const GgufFile& file) : file_(file), where_(file.path().string()) {}

  std::optional<TokenizerFiles> read() {
    const std::string model = file_.text(kModelKey).value_or("none");
    if (model == "none" || model == "no_vocab") return {};
    if (model != "gpt2")
      throw expected_error(at(kModelKey), "\"gpt2\" (byte-level BPE)", quote_text(model), kOtherTokenizer);
    const PreName& pre = pre_name();
    read_tokens();
    TokenizerFiles out;
    const Json json = {{"version", "1.0"},
                       {"truncation", nullptr},
                       {"padding", nullptr},
                       {"added_tokens", added_},
                       {"normalizer", pre.nfc ? Json({{"type", "NFC"}}) : Json()},
                       {"pre_tokenizer", pre_tokenizer(pre.kind)},
                       {"post_processor", post_processor(pre)},
                       {"decoder", byte_level(true)},
                       {"model",
                        {{"type", "BPE"},
                         {"dropout", nullptr},
                         {"unk_token", nullptr},
                         {"continuing_subword_prefix", nullptr},
                         {"end_of_word_suffix", nullptr},
                         {"fuse_unk", false},
                         {"byte_fallback", false},
                         {"ignore_merges", pre.ignore_merges},
                         {"vocab", std::move(vocab_)},
                         {"merges", merges()}}}};
    parse_tokenizer_json(json, where_ + ": tokenizer");
    out.tokenizer = dump_json(json);
    out.config = config(pre);
    out.chat_template = file_.text(kTemplateKey).value_or("");
    return out;
  }

 private:
  static constexpr const char* kOtherTokenizer =
      "--tokenizer DIR takes another one, --no-tokenizer imports the weights alone";

  std::string at(std::string_view key) const { return fmt::format("{}: {}", where_, key); }

  const PreName& pre_name() const {
    const std::optional<std::string> name = file_.text(kPreKey);
    if (!name)
      throw input_error(at(kPreKey), "is not stated, so how text is cut before merging is not known",
                        kOtherTokenizer);
    std::vector<std::string_view> names;
    for (const PreName& p : kPreNames) {
      if (p.name == *name) return p;
      names.push_back(p.name);
    }
    throw expected_error(at(kPreKey), fmt::format("one of {}", fmt::join(names, ", ")), quote_text(*name),
                         kOtherTokenizer);
  }

  const GgufValue& texts(const char* key) const {
    const GgufValue* v = file_.array(key);
    if (!v || v->element != GgufType::text)
      throw expected_error(at(key), "an array of texts", v ? v->describe() : "nothing");
    return *v;
  }

  std::optional<size_t> id(const char* key) const {
    const std::optional<int64_t> n = file_.integer(key);
    if (!n) return {};
    if (*n < 0 || static_cast<size_t>(*n) >= tokens_->count)
      throw expected_error(at(key), fmt::format("a token id below {}", tokens_->count), std::to_string(*n));
    return static_cast<size_t>(*n);
  }
  std::string token(size_t i) const { return std::string(tokens_->texts[i]); }

  void read_tokens() {
    tokens_ = &texts(kTokensKey);
    const GgufValue* types = file_.array(kTypesKey);
    if (types && types->count != tokens_->count)
      throw expected_error(at(kTypesKey), fmt::format("{} entries, one a token", tokens_->count),
                           types->describe());
    for (const char* key : {"bos", "eos", "eot", "eom"})
      if (const auto n = id(fmt::format("tokenizer.ggml.{}_token_id", key).c_str()))
        always_special_.push_back(*n);
    kept_.assign(tokens_->count, false);
    std::unordered_map<std::string_view, size_t> seen;
    for (size_t i = 0; i < tokens_->count; ++i) {
      const std::optional<int64_t> stated = types ? types->integer(i) : std::optional<int64_t>(kNormal);
      if (!stated || *stated < kNormal || *stated > kByte)
        throw expected_error(at(fmt::format("{}[{}]", kTypesKey, i)), "a token type from 1 to 6",
                             stated ? std::to_string(*stated) : types->describe());
      const std::string_view text = tokens_->texts[i];
      const bool special =
          *stated == kControl || *stated == kUnknown ||
          std::find(always_special_.begin(), always_special_.end(), i) != always_special_.end();
      if (text.empty() || (*stated == kUnused && !special)) continue;
      if (utf8_valid_end(text, 0) != text.size())
        throw input_error(at(fmt::format("{}[{}]", kTokensKey, i)), "is not valid UTF-8");
      if (const auto [it, fresh] = seen.emplace(text, i); !fresh)
        throw input_error(at(kTokensKey),
                          fmt::format("{} is both token {} and token {}", quote_text(text), it->second, i));
      kept_[i] = true;
      members().emplace_back(std::string(text), static_cast<int64_t>(i));
      if (special || *stated == kUserDefined)
        added_.push_back({{"id", i},
                          {"content", std::string(text)},
                          {"single_word", false},
                          {"lstrip", false},
                          {"rstrip", false},
                          {"normalized", false},
                          {"special", special}});
    }
  }
  // The vocabulary's entries; appended without looking for the key, which is new.
  Json::object_t::Container& members() {
    return static_cast<Json::object_t::Container&>(vocab_.get_ref<Json::object_t&>());
  }

  Json merges() const {
    const GgufValue& list = texts(kMergesKey);
    Json out = Json::array();
    for (size_t i = 0; i < list.count; ++i) {
      const std::string_view m = list.texts[i];
      const size_t space = m.find(' ', 1);
      if (m.empty() || space == std::string_view::npos || space + 1 == m.size())
        throw expected_error(at(fmt::format("{}[{}]", kMergesKey, i)), "two parts with a space between them",
                             quote_text(m));
      if (m.front() != ' ' && m.find(' ', space + 1) == std::string_view::npos)
        out.push_back(std::string(m));
      else
        out.push_back({std::string(m.substr(0, space)), std::string(m.substr(space + 1))});
    }
    return out;
  }

  static Json byte_level(bool use_regex) {
    return {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
  }
  static Json pre_tokenizer(Kind kind) {
    if (kind == Kind::gpt2) return byte_level(true);
    const Json first = kind == Kind::digits_gpt2
                           ? Json({{"type", "Digits"}, {"individual_digits", true}})
                           : Json({{"type", "Split"},
                                   {"pattern", {{"Regex", std::string(pattern_of(kind))}}},
                                   {"behavior", "Isolated"},
                                   {"invert", false}});
    return {{"type", "Sequence"},
            {"pretokenizers", Json::array({first, byte_level(kind == Kind::digits_gpt2)})}};
  }

  bool adds_bos(const PreName& pre) const { return file_.boolean(kAddBosKey).value_or(pre.add_bos); }
  Json post_processor(const PreName& pre) const {
    const auto bos = id("tokenizer.ggml.bos_token_id");
    if (!bos || !kept_[*bos] || !adds_bos(pre)) return byte_level(true);
    const std::string text = token(*bos);
    const auto sequence = [](const char* which) {
      return Json({{"Sequence", {{"id", which}, {"type_id", 0}}}});
    };
    const Json start = {{"SpecialToken", {{"id", text}, {"type_id", 0}}}};
    return {{"type", "TemplateProcessing"},
            {"single", Json::array({start, sequence("A")})},
            {"pair", Json::array({start, sequence("A"), sequence("B")})},
            {"special_tokens",
             {{text, {{"id", text}, {"ids", Json::array({*bos})}, {"tokens", Json::array({text})}}}}}};
  }

  std::string config(const PreName& pre) const {
    Json out = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
    const std::pair<const char*, const char*> roles[] = {
        {"bos", "bos"}, {"eos", "eos"}, {"pad", "padding"}, {"unk", "unknown"}};
    for (const auto& [ours, theirs] : roles)
      if (const auto n = id(fmt::format("tokenizer.ggml.{}_token_id", theirs).c_str()); n && kept_[*n])
        out[fmt::format("{}_token", ours)] = token(*n);
    out["add_bos_token"] = adds_bos(pre);
    return dump_json(out);
  }

  const GgufFile& file_;
  const std::string where_;
  const GgufValue* tokens_ = nullptr;
  std::vector<bool> kept_;  // tokens that are not unused
  std::vector<size_t> always_special_;
  Json vocab_ = Json::object(), added_ = Json::array();
};

// ---- to GGUF

const PreName& name_for(const TokenizerSpec& spec, const std::string& where, const Log& sink) {
  const PreTokenizerRules& rules = spec.rules;
  const std::string place = where + ": pre_tokenizer";
  constexpr const char* kHint = "--no-tokenizer exports the weights alone";
  if (rules.add_prefix_space)
    throw input_error(place, "add_prefix_space has no counterpart in GGUF's byte-level tokenizers", kHint);
  std::vector<std::string_view> patterns;
  for (const SplitRule& r : rules.splits) patterns.push_back(r.literal ? "" : std::string_view(r.pattern));
  if (rules.last_split) patterns.push_back(rules.last_split->pattern);
  if (patterns.size() == 1 && patterns[0] == kOwnPattern) {
    patterns[0] = kLlama3Pattern;
    log(sink, LogLevel::warning,
        place +
            ": GGUF has no name for its expression; smaug-bpe is written, which cuts letters with combining "
            "marks (\\p{M}) otherwise and is the same for all other text");
  }
  const PreName* found = nullptr;  // llama.cpp never normalises, so a name without NFC will do
  for (const PreName& p : kPreNames) {
    const bool digits = p.kind == Kind::digits_gpt2;
    const bool same = digits
                          ? patterns.size() == 2 && patterns[0] == R"(\p{N})" && patterns[1] == kGpt2Pattern
                          : patterns.size() == 1 && patterns[0] == pattern_of(p.kind);
    if (!same || p.ignore_merges != spec.ignore_merges) continue;
    if (p.nfc == spec.nfc) return p;
    if (!found) found = &p;
  }
  if (found) return *found;
  throw input_error(place,
                    fmt::format("GGUF has no name for {}{}", fmt::join(patterns, " then "),
                                spec.ignore_merges ? " with ignore_merges" : ""),
                    kHint);
}

// The chat template beside a tokenizer.json, empty when there is none.
std::string chat_template(const fs::path& dir) {
  if (file_exists(dir / "chat_template.jinja")) return read_file(dir / "chat_template.jinja");
  if (!file_exists(dir / "tokenizer_config.json")) return {};
  const Json config = read_json_file(dir / "tokenizer_config.json");
  const bool there =
      config.is_object() && config.contains("chat_template") && config["chat_template"].is_string();
  return there ? config["chat_template"].get<std::string>() : std::string();
}

}  // namespace

std::optional<TokenizerFiles> tokenizer_from_gguf(const GgufFile& file) {
  return GgufReader(file).read();
}

void add_tokenizer(GgufWriter& file, const fs::path& dir, int64_t rows, const std::vector<int64_t>& eos,
                   std::optional<int64_t> bos, std::optional<int64_t> pad, const Log& log) {
  if (dir.empty() || !file_exists(dir / "tokenizer.json")) {
    file.add_text(kModelKey, "none");
    return;
  }
  const std::string where = (dir / "tokenizer.json").string();
  const TokenizerSpec spec = read_tokenizer_json(dir / "tokenizer.json");
  const PreName& pre = name_for(spec, where, log);
  const std::vector<int32_t> start = find_start(dir, spec);
  if (start.size() > 1)
    throw input_error(where,
                      fmt::format("it puts {} tokens before every text, and GGUF knows one", start.size()),
                      "--no-tokenizer exports the weights alone");

  std::vector<std::string> tokens(static_cast<size_t>(rows));
  std::vector<int32_t> types(tokens.size(), kUnused);
  const auto place = [&](int32_t id, const std::string& text, TokenType type) {
    if (id >= rows)
      throw expected_error(where, fmt::format("ids below {}, the embedding's rows", rows), std::to_string(id),
                           "it belongs to another model");
    tokens[static_cast<size_t>(id)] = text;
    types[static_cast<size_t>(id)] = static_cast<int32_t>(type);
  };
  for (const auto& [text, id] : spec.vocab) place(id, text, kNormal);
  for (const AddedToken& t : spec.added) place(t.id, t.content, t.special ? kControl : kUserDefined);
  std::vector<std::string> merges;
  for (const BpeMerge& m : spec.merges)
    merges.push_back(tokens[static_cast<size_t>(m.left)] + ' ' + tokens[static_cast<size_t>(m.right)]);
  for (size_t i = 0; i < tokens.size(); ++i)
    if (types[i] == kUnused) tokens[i] = fmt::format("[PAD{}]", i);

  file.add_text(kModelKey, "gpt2");
  file.add_text(kPreKey, pre.name);
  file.add_texts(kTokensKey, tokens);
  file.add_i32s(kTypesKey, types);
  file.add_texts(kMergesKey, merges);
  const auto add_id = [&](const char* key, std::optional<int64_t> id) {
    if (id && *id >= 0) file.add_u32(fmt::format("tokenizer.ggml.{}_token_id", key), *id);
  };
  add_id("eos", eos.empty() ? find_eos(dir, spec) : eos[0]);
  if (eos.size() > 1) add_id("eot", eos[1]);
  if (eos.size() > 2) add_id("eom", eos[2]);
  add_id("bos", start.empty() ? bos : start[0]);
  add_id("padding", pad);
  file.add_bool(kAddBosKey, !start.empty());
  if (const std::string text = chat_template(dir); !text.empty()) file.add_text(kTemplateKey, text);
}

}  // namespace hysparse
