#include "tokenizer/tokenizer_json.h"

#include <nlohmann/json.hpp>

#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "io/files.h"
#include "io/json.h"
#include "io/json_value.h"

namespace hysparse {
namespace {

constexpr int64_t kMaxId = int64_t(1) << 24;
const Json kNull;

class Reader {
 public:
  Reader(const Json& file, const std::string& where) : file_(file), where_(where) {}

  TokenizerSpec read() {
    if (!file_.is_object()) throw expected_error(where_, "an object", file_.type_name());
    const Json& version = member(file_, "version");
    if (!version.is_null() && version != "1.0")
      throw expected_error(at("version"), "\"1.0\"", version.dump());
    const Json& model = member(file_, "model");
    if (!model.is_object()) throw expected_error(at("model"), "an object", model.type_name());
    read_model_flags(model);
    read_vocab(model);
    read_merges(model);
    read_added();
    read_unk(model);
    read_normalizer(member(file_, "normalizer"), "normalizer");
    read_pre_tokenizer(member(file_, "pre_tokenizer"), "pre_tokenizer");
    if (!byte_level_)
      refuse("pre_tokenizer", "no ByteLevel step", "only byte-level tokenizers are supported");
    read_decoder(member(file_, "decoder"), "decoder");
    read_post_processor(member(file_, "post_processor"), "post_processor");
    return std::move(spec_);
  }

 private:
  std::string at(const std::string& field) const { return where_ + ": " + field; }
  [[noreturn]] void refuse(const std::string& field, const std::string& what,
                           const std::string& hint = {}) const {
    throw input_error(at(field), what + " is not supported", hint);
  }

  static const Json& member(const Json& object, std::string_view key) {
    if (object.is_object())
      for (const auto& item : object.items())
        if (item.key() == key) return item.value();
    return kNull;
  }
  std::string text(const Json& object, std::string_view key, const std::string& field) const {
    const Json& v = member(object, key);
    if (!v.is_string())
      throw expected_error(at(field + "." + std::string(key)), "a text", v.is_null() ? "nothing" : v.dump());
    return v.get<std::string>();
  }
  bool flag(const Json& object, std::string_view key, bool otherwise, const std::string& field) const {
    const Json& v = member(object, key);
    if (v.is_null()) return otherwise;
    if (!v.is_boolean()) throw expected_error(at(field + "." + std::string(key)), "true or false", v.dump());
    return v.get<bool>();
  }
  int32_t id(const Json& v, const std::string& field) const {
    if (!v.is_number_integer() || v.get<int64_t>() < 0 || v.get<int64_t>() >= kMaxId ||
        (v.is_number_unsigned() && v.get<uint64_t>() >= uint64_t(kMaxId)))
      throw expected_error(at(field), fmt::format("a token id in [0, {})", kMaxId),
                           v.is_null() ? "nothing" : v.dump());
    return v.get<int32_t>();
  }

  void read_model_flags(const Json& model) {
    const Json& type = member(model, "type");
    if (!type.is_null() && type != "BPE") refuse("model.type", type.dump(), "only BPE models are");
    if (flag(model, "byte_fallback", false, "model"))
      refuse("model.byte_fallback", "true", "a SentencePiece-style tokenizer; only byte-level ones are");
    const Json& dropout = member(model, "dropout");
    if (!dropout.is_null() && dropout != 0.0) refuse("model.dropout", dropout.dump());
    for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& v = member(model, affix);
      if (!v.is_null() && v != "") refuse("model." + std::string(affix), v.dump());
    }
    spec_.ignore_merges = flag(model, "ignore_merges", false, "model");
    spec_.fuse_unk = flag(model, "fuse_unk", false, "model");
  }

  void read_vocab(const Json& model) {
    const Json& vocab = member(model, "vocab");
    if (!vocab.is_object() || vocab.empty())
      throw expected_error(at("model.vocab"), "an object of token: id",
                           vocab.is_null() ? "nothing" : vocab.type_name());
    std::unordered_map<int32_t, std::string_view> seen;
    spec_.vocab.reserve(vocab.size());
    ids_.reserve(vocab.size());
    for (const auto& item : vocab.items()) {
      const std::string& token = item.key();
      const int32_t value = id(item.value(), "model.vocab." + quote_text(token));
      if (const auto [it, fresh] = seen.emplace(value, token); !fresh)
        throw input_error(at("model.vocab"), fmt::format("id {} is given to both {} and {}", value,
                                                         quote_text(it->second), quote_text(token)));
      spec_.vocab.emplace_back(token, value);
      ids_.emplace(token, value);
    }
  }

  // One merge: "left right", or ["left", "right"] where the tokens themselves may hold spaces.
  std::pair<std::string, std::string> parts(const Json& merge, size_t i) const {
    const std::string field = fmt::format("model.merges[{}]", i);
    if (merge.is_array()) {
      if (merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string())
        throw expected_error(at(field), "two texts", quote_text(merge.dump()));
      return {merge[0].get<std::string>(), merge[1].get<std::string>()};
    }
    if (!merge.is_string())
      throw expected_error(at(field), "\"left right\" or [\"left\", \"right\"]", quote_text(merge.dump()));
    const std::string& s = merge.get_ref<const std::string&>();
    const size_t space = s.find(' ');
    if (space == std::string::npos || s.find(' ', space + 1) != std::string::npos)
      throw expected_error(at(field), "two parts with one space between them", quote_text(s),
                           "tokens that hold spaces need the form [\"left\", \"right\"]");
    return {s.substr(0, space), s.substr(space + 1)};
  }

  void read_merges(const Json& model) {
    const Json& merges = member(model, "merges");
    if (!merges.is_array())
      throw expected_error(at("model.merges"), "a list", merges.is_null() ? "nothing" : merges.type_name());
    PairTable<uint32_t> seen(merges.size());
    size_t i = 0;
    for (const Json& merge : merges) {
      const auto [left, right] = parts(merge, i);
      const std::string field = fmt::format("model.merges[{}]", i);
      if (left.empty() || right.empty()) throw input_error(at(field), "a part is empty");
      int32_t found[3];
      const std::string* names[3] = {&left, &right, nullptr};
      const std::string joined = left + right;
      names[2] = &joined;
      for (int k = 0; k < 3; ++k) {
        const auto it = ids_.find(*names[k]);
        if (it == ids_.end())
          throw input_error(at(field),
                            fmt::format("merges {} and {}, but {} is not in the vocabulary", quote_text(left),
                                        quote_text(right), quote_text(*names[k])));
        found[k] = it->second;
      }
      bool fresh = false;
      uint32_t& first = seen.get(pair_key(found[0], found[1]), fresh);
      if (!fresh) throw input_error(at(field), fmt::format("repeats model.merges[{}]", first));
      first = static_cast<uint32_t>(i++);
      spec_.merges.push_back({found[0], found[1], found[2]});
    }
  }

  void read_added() {
    const Json& list = member(file_, "added_tokens");
    if (list.is_null()) return;
    if (!list.is_array()) throw expected_error(at("added_tokens"), "a list", list.type_name());
    std::unordered_map<int32_t, std::string> of_id;
    std::unordered_set<std::string> contents;
    for (const auto& [token, value] : spec_.vocab) of_id.emplace(value, token);
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string field = fmt::format("added_tokens[{}]", i);
      AddedToken t;
      t.id = id(member(list[i], "id"), field + ".id");
      t.content = text(list[i], "content", field);
      t.special = flag(list[i], "special", false, field);
      t.normalized = flag(list[i], "normalized", !t.special, field);
      if (t.content.empty())
        throw input_error(at(field + ".content"), "an empty text can be found everywhere");
      for (const char* unsupported : {"single_word", "lstrip", "rstrip"})
        if (flag(list[i], unsupported, false, field))
          refuse(fmt::format("{}.{}", field, unsupported), "true");
      if (!contents.insert(t.content).second)
        throw input_error(at(field), quote_text(t.content) + " is there twice");
      const auto in_vocab = ids_.find(t.content);
      if (in_vocab != ids_.end() && in_vocab->second != t.id)
        throw input_error(at(field), fmt::format("{} has id {} here and {} in model.vocab",
                                                 quote_text(t.content), t.id, in_vocab->second));
      if (const auto [it, fresh] = of_id.emplace(t.id, t.content); !fresh && it->second != t.content)
        throw input_error(at(field), fmt::format("id {} is {} here, but already {}", t.id,
                                                 quote_text(t.content), quote_text(it->second)));
      spec_.added.push_back(std::move(t));
    }
  }

  // "" is how GPT-2's file says none.
  void read_unk(const Json& model) {
    const Json& unk = member(model, "unk_token");
    if (unk.is_null() || unk == "") return;
    if (!unk.is_string()) throw expected_error(at("model.unk_token"), "a text or null", unk.dump());
    const std::string& content = unk.get_ref<const std::string&>();
    for (const AddedToken& t : spec_.added)
      if (t.content == content) spec_.unk_id = t.id;
    if (const auto it = ids_.find(content); it != ids_.end()) spec_.unk_id = it->second;
    if (spec_.unk_id < 0) throw input_error(at("model.unk_token"), unk.dump() + " is not in the vocabulary");
  }

  void read_normalizer(const Json& v, const std::string& field) {
    if (v.is_null()) return;
    const std::string type = text(v, "type", field);
    if (type == "NFC") {
      spec_.nfc = true;
    } else if (type == "Sequence") {
      for (const Json& step : member(v, "normalizers")) read_normalizer(step, field + ".normalizers");
    } else {
      refuse(field + ".type", quote_text(type), "NFC and null are");
    }
  }

  void read_pre_tokenizer(const Json& v, const std::string& field) {
    if (v.is_null()) refuse(field, "null", "only byte-level tokenizers are supported");
    const std::string type = text(v, "type", field);
    if (type == "Sequence") {
      const Json& steps = member(v, "pretokenizers");
      if (!steps.is_array()) throw expected_error(at(field + ".pretokenizers"), "a list", steps.type_name());
      for (size_t i = 0; i < steps.size(); ++i)
        read_pre_tokenizer(steps[i], fmt::format("{}.pretokenizers[{}]", field, i));
      return;
    }
    if (byte_level_) refuse(field, type + " after ByteLevel", "ByteLevel must be the last step");
    if (type == "ByteLevel") {
      byte_level_ = true;
      spec_.rules.add_prefix_space = flag(v, "add_prefix_space", true, field);
      if (flag(v, "use_regex", true, field)) spec_.rules.last_split = SplitRule{std::string(kGpt2Pattern)};
    } else if (type == "Split") {
      const Json& pattern = member(v, "pattern");
      SplitRule rule;
      rule.literal = !member(pattern, "String").is_null();
      rule.pattern = text(pattern, rule.literal ? "String" : "Regex", field + ".pattern");
      if (const std::string behavior = text(v, "behavior", field); behavior != "Isolated")
        refuse(field + ".behavior", quote_text(behavior), "Isolated is");
      if (flag(v, "invert", false, field)) refuse(field + ".invert", "true");
      if (!rule.pattern.empty()) spec_.rules.splits.push_back(std::move(rule));
    } else if (type == "Digits") {
      spec_.rules.splits.push_back({flag(v, "individual_digits", false, field) ? R"(\p{N})" : R"(\p{N}+)"});
    } else {
      refuse(field + ".type", quote_text(type), "Split, Digits and ByteLevel are");
    }
  }

  void read_decoder(const Json& v, const std::string& field) const {
    if (v.is_null()) refuse(field, "null", "ByteLevel is");
    const std::string type = text(v, "type", field);
    if (type == "ByteLevel") return;
    const Json& steps = member(v, "decoders");
    if (type != "Sequence" || !steps.is_array() || steps.size() != 1)
      refuse(field + ".type", quote_text(type), "ByteLevel is");
    read_decoder(steps[0], field + ".decoders[0]");
  }

  // The ids that a template's token stands for.
  void add_start(const Json& token, const Json& table, const std::string& field) {
    const std::string name = text(token, "id", field);
    const Json& ids = member(member(table, name), "ids");
    if (ids.is_array() && !ids.empty()) {
      for (const Json& i : ids) spec_.start.push_back(id(i, field + ".ids"));
      return;
    }
    for (const AddedToken& t : spec_.added)
      if (t.content == name) return spec_.start.push_back(t.id);
    throw input_error(at(field),
                      quote_text(name) + " is neither among the special_tokens nor an added token");
  }

  // ByteLevel only trims offsets; a template may put tokens before the text.
  void read_post_processor(const Json& v, const std::string& field) {
    if (v.is_null()) return;
    const std::string type = text(v, "type", field);
    if (type == "ByteLevel") return;
    if (type == "Sequence") {
      const Json& steps = member(v, "processors");
      if (!steps.is_array()) throw expected_error(at(field + ".processors"), "a list", steps.type_name());
      for (size_t i = 0; i < steps.size(); ++i)
        read_post_processor(steps[i], fmt::format("{}.processors[{}]", field, i));
      return;
    }
    if (type != "TemplateProcessing")
      refuse(field + ".type", quote_text(type), "ByteLevel and TemplateProcessing are");
    bool after_text = false;
    for (const Json& part : member(v, "single")) {
      if (part.contains("Sequence")) after_text = true;
      if (part.contains("SpecialToken") && after_text)
        refuse(field + ".single", "a token after the text", "only templates that put tokens before it are");
      if (part.contains("SpecialToken"))
        add_start(part["SpecialToken"], member(v, "special_tokens"), field + ".single");
    }
  }

  const Json& file_;
  const std::string& where_;
  TokenizerSpec spec_;
  std::unordered_map<std::string, int32_t> ids_;
  bool byte_level_ = false;
};

const Json& find_key(const Json& object, std::string_view key) {
  if (object.is_object())
    for (const auto& item : object.items())
      if (item.key() == key) return item.value();
  return kNull;
}

// The id of a role's token, a text or an added token's object in the files beside tokenizer.json; -1 for
// null.
int32_t named_token(const Json& file, const char* role, const std::string& path, const TokenizerSpec& spec) {
  const std::string where = fmt::format("{}: {}", path, role);
  const Json* token = &find_key(file, role);
  if (token->is_object()) token = &find_key(*token, "content");
  if (token->is_null()) return -1;
  if (!token->is_string()) throw expected_error(where, "a text or an object with \"content\"", token->dump());
  const std::string& content = token->get_ref<const std::string&>();
  for (const AddedToken& t : spec.added)
    if (t.content == content) return t.id;
  for (const auto& [text, id] : spec.vocab)
    if (text == content) return id;
  throw input_error(where, quote_text(content) + " is not a token of tokenizer.json");
}

}  // namespace

TokenizerSpec parse_tokenizer_json(const Json& json, const std::string& where) {
  return Reader(json, where).read();
}

TokenizerSpec parse_tokenizer_json(std::string_view text, const std::string& where) {
  return parse_tokenizer_json(parse_json(text, where), where);
}

TokenizerSpec read_tokenizer_json(const std::filesystem::path& file) {
  const std::string text = read_file(file);
  return parse_tokenizer_json(std::string_view(text), file.string());
}

int32_t find_eos(const std::filesystem::path& dir, const TokenizerSpec& spec) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    if (!file_exists(dir / name)) continue;
    const int32_t eos = named_token(read_json_file(dir / name), "eos_token", (dir / name).string(), spec);
    if (eos >= 0) return eos;
  }
  for (const char* name : {"generation_config.json", "config.json"}) {
    if (!file_exists(dir / name)) continue;
    const Json file = read_json_file(dir / name);
    const Json* eos = &find_key(file, "eos_token_id");
    if (eos->is_array() && !eos->empty()) eos = &eos->front();
    if (eos->is_null()) continue;
    if (!eos->is_number_integer() || eos->get<int64_t>() < 0 || eos->get<int64_t>() >= kMaxId)
      throw expected_error((dir / name).string() + ": eos_token_id", "a token id", eos->dump());
    return eos->get<int32_t>();
  }
  return -1;
}

std::vector<int32_t> find_start(const std::filesystem::path& dir, const TokenizerSpec& spec) {
  const std::filesystem::path path = dir / "tokenizer_config.json";
  if (!file_exists(path)) return spec.start;
  const Json file = read_json_file(path);
  const Json& adds = find_key(file, "add_bos_token");
  if (adds.is_null()) return spec.start;
  if (!adds.is_boolean())
    throw expected_error(path.string() + ": add_bos_token", "true or false", adds.dump());
  const int32_t bos = adds.get<bool>() ? named_token(file, "bos_token", path.string(), spec) : -1;
  return bos < 0 ? std::vector<int32_t>{} : std::vector<int32_t>{bos};
}

}  // namespace hysparse
