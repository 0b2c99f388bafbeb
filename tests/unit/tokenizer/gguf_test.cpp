// Tokenizers in GGUF files: the same ids as the tokenizer.json that they stand for, both ways.
#include "tokenizer/tokenizer_gguf.h"

#include "small_tokenizer.h"
#include "support.h"
#include "tokenizer/pretokenizer.h"

namespace hysparse::test {
namespace {

const std::vector<std::pair<std::string, std::string>> kMerges = {
    {"t", "h"},   {"th", "e"},   {" ", "the"},      {"1", "2"},  {"12", "3"},
    {"123", "4"}, {"e", "\xcc"}, {"e\xcc", "\x81"}, {"\n", "\n"}};
const std::string kText =
    "the the 123456 they'LL isn't e\xcc\x81t\xc3\xa9 x\n\n  the\r\n\t12 !? \xe4\xbd\xa0\xe5\xa5\xbd <|end|> "
    "<pad> the";

// What a GGUF file says of a byte-level tokenizer: 256 bytes, the merges, <|end|> (control), <pad> (unused),
// <user> (user-defined).
struct Content {
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
  std::string model = "gpt2", pre = "gpt-2";

  Content() {
    for (int b = 0; b < 256; ++b) tokens.push_back(to_alphabet(std::string(1, static_cast<char>(b))));
    for (const auto& [left, right] : kMerges) {
      tokens.push_back(to_alphabet(left + right));
      merges.push_back(to_alphabet(left) + " " + to_alphabet(right));
    }
    types.assign(tokens.size(), 1);
    tokens.insert(tokens.end(), {"<|end|>", "<pad>", "<user>"});
    types.insert(types.end(), {3, 5, 4});
  }
  GgufWriter writer() const {
    GgufWriter w;
    if (!model.empty()) w.add_text("tokenizer.ggml.model", model);
    if (!pre.empty()) w.add_text("tokenizer.ggml.pre", pre);
    w.add_texts("tokenizer.ggml.tokens", tokens);
    w.add_i32s("tokenizer.ggml.token_type", types);
    w.add_texts("tokenizer.ggml.merges", merges);
    return w;
  }
};

std::optional<TokenizerFiles> read(const GgufWriter& w, const TempDir& dir) {
  w.write(dir / "t.gguf");
  return tokenizer_from_gguf(GgufFile(dir / "t.gguf"));
}
Tokenizer tokenizer(const TokenizerFiles& files, const TempDir& dir) {
  write(dir / "out/tokenizer.json", files.tokenizer);
  write(dir / "out/tokenizer_config.json", files.config);
  return Tokenizer::load(dir / "out");
}

Json split(std::string_view pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", std::string(pattern)}}}, {"behavior", "Isolated"}};
}
Json sequence(const Json& first, bool use_regex) {
  return {
      {"type", "Sequence"},
      {"pretokenizers",
       Json::array({first, {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", use_regex}}})}};
}

TEST(GgufTokenizer, NamesStandForTheirExpressions) {
  const std::pair<const char*, Json> cases[] = {
      {"gpt-2", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"smollm", sequence({{"type", "Digits"}, {"individual_digits", true}}, true)},
      {"llama-bpe", sequence(split(kLlama3Pattern), false)},
      {"smaug-bpe", sequence(split(kLlama3Pattern), false)},
      {"qwen2", sequence(split(kQwen2Pattern), false)},
      {"qwen35", sequence(split(kQwen35Pattern), false)}};
  std::vector<std::vector<int32_t>> all;
  for (const auto& [name, pre_tokenizer] : cases) {
    Content c;
    c.pre = name;
    const TempDir dir;
    const Tokenizer got = tokenizer(*read(c.writer(), dir), dir);
    Json file = tokenizer_json(kMerges);
    file["pre_tokenizer"] = pre_tokenizer;
    file["normalizer"] = std::string(name).starts_with("qwen") ? Json({{"type", "NFC"}}) : Json();
    file["added_tokens"] =
        Json::array({{{"id", 265}, {"content", "<|end|>"}, {"special", true}},
                     {{"id", 267}, {"content", "<user>"}, {"special", false}, {"normalized", false}}});
    const Tokenizer truth = load(file);
    for (const bool special : {false, true})
      EXPECT_EQ(got.encode(kText, special), truth.encode(kText, special)) << name;
    EXPECT_EQ(got.decode(got.encode("the <user>12", true)), "the <user>12");
    EXPECT_TRUE(got.is_special(265));
    EXPECT_FALSE(got.is_special(267));
    EXPECT_EQ(got.token_bytes(266), "");
    EXPECT_EQ(got.vocab_size(), 268);
    all.push_back(got.encode(kText));
  }
  EXPECT_NE(all[0], all[1]);  // the text tells the expressions apart
  EXPECT_NE(all[0], all[2]);
  EXPECT_NE(all[2], all[4]);
}

TEST(GgufTokenizer, RolesAndTemplate) {
  Content c;
  c.pre = "llama-bpe";
  GgufWriter w = c.writer();
  w.add_u32("tokenizer.ggml.bos_token_id", 265);
  w.add_u32("tokenizer.ggml.eos_token_id", 266);  // an unused one becomes special
  w.add_text("tokenizer.chat_template", "{{ x }}");
  const TempDir dir;
  const TokenizerFiles files = *read(w, dir);
  const Tokenizer t = tokenizer(files, dir);
  EXPECT_EQ(files.chat_template, "{{ x }}");
  EXPECT_EQ(t.eos_id(), 266);
  EXPECT_TRUE(t.is_special(266));
  const Json json = parse_json(files.tokenizer, "t"), config = parse_json(files.config, "c");
  EXPECT_EQ(config.at("bos_token"), "<|end|>");
  EXPECT_EQ(config.at("add_bos_token"), true);
  EXPECT_EQ(json.at("post_processor").at("type"), "TemplateProcessing");
  EXPECT_EQ(t.start_ids(), std::vector<int32_t>{265});
  {  // and out again, with every end id that GGUF has a name for
    GgufWriter again;
    add_tokenizer(again, dir / "out", 268, {1, 2, 3}, 4, {}, {});
    again.write(dir / "again.gguf");
    const GgufFile file(dir / "again.gguf");
    EXPECT_EQ(file.integer("tokenizer.ggml.bos_token_id"), 265);
    EXPECT_EQ(file.boolean("tokenizer.ggml.add_bos_token"), true);
    EXPECT_EQ(file.integer("tokenizer.ggml.eos_token_id"), 1);
    EXPECT_EQ(file.integer("tokenizer.ggml.eot_token_id"), 2);
    EXPECT_EQ(file.integer("tokenizer.ggml.eom_token_id"), 3);
  }
  w.add_bool("tokenizer.ggml.add_bos_token", false);
  const TempDir other;
  EXPECT_EQ(parse_json(read(w, other)->tokenizer, "t").at("post_processor").at("type"), "ByteLevel");
}

TEST(GgufTokenizer, NoneIsNone) {
  const TempDir dir;
  EXPECT_FALSE(read(GgufWriter(), dir));
  GgufWriter w;
  w.add_text("tokenizer.ggml.model", "none");
  EXPECT_FALSE(read(w, dir));
}

TEST(GgufTokenizer, WhatCannotBeServedIsRefused) {
  const auto refusal = [](
                           const std::function<void(Content&)>& change,
                           const std::function<void(GgufWriter&)>& more = [](GgufWriter&) {}) {
    Content c;
    change(c);
    GgufWriter w = c.writer();
    more(w);
    const TempDir dir;
    return error_of([&] { read(w, dir); });
  };
  const auto same = [](Content&) {};
  EXPECT_HAS(refusal([](Content& c) { c.model = std::string("llama"); }),
             "tokenizer.ggml.model: expected \"gpt2\" (byte-level BPE), got \"llama\"");
  EXPECT_HAS(refusal([](Content& c) { c.model = std::string("llama"); }), "--no-tokenizer");
  EXPECT_HAS(refusal([](Content& c) { c.pre.clear(); }), "tokenizer.ggml.pre: is not stated");
  EXPECT_HAS(refusal([](Content& c) { c.pre = std::string("tekken"); }), "got \"tekken\"");
  EXPECT_HAS(refusal([](Content& c) { c.types.pop_back(); }), "expected 268 entries, one a token");
  EXPECT_HAS(refusal([](Content& c) { c.types[5] = 7; }),
             "token_type[5]: expected a token type from 1 to 6, got 7");
  EXPECT_HAS(refusal([](Content& c) { c.tokens[7] = c.tokens[9]; }), "is both token 7 and token 9");
  EXPECT_HAS(refusal([](Content& c) { c.merges[1] = std::string("x"); }), "merges[1]: expected two parts");
  EXPECT_HAS(refusal([](Content& c) { c.merges[1] = std::string("qq z"); }), "is not in the vocabulary");
  EXPECT_HAS(refusal([](Content& c) { c.merges[1] = c.merges[0]; }), "repeats model.merges[0]");
  EXPECT_HAS(refusal([](Content& c) { c.tokens[265] = std::string("\xff"); }),
             "tokens[265]: is not valid UTF-8");
  EXPECT_HAS(refusal([](Content& c) { c.tokens[3] = std::string("\xff"); }), "tokens[3]: is not valid UTF-8");
  EXPECT_HAS(refusal(same, [](GgufWriter& w) { w.add_u32("tokenizer.ggml.eos_token_id", 268); }),
             "expected a token id below 268, got 268");
  GgufWriter w;
  w.add_text("tokenizer.ggml.model", "gpt2");
  w.add_text("tokenizer.ggml.pre", "gpt-2");
  const TempDir dir;
  EXPECT_HAS(error_of([&] { read(w, dir); }),
             "tokenizer.ggml.tokens: expected an array of texts, got nothing");
}

// From a model directory to GGUF and back.
TEST(GgufTokenizer, ThereAndBackAgain) {
  for (const auto& [name, pre_tokenizer] :
       {std::pair<std::string, Json>{
            "gpt-2", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
        {"smollm", sequence({{"type", "Digits"}, {"individual_digits", true}}, true)},
        {"qwen2", sequence(split(kQwen2Pattern), false)},
        {"megrez", sequence(split(kQwen2Pattern), false)},
        {"smaug-bpe", sequence(split(kLlama3Pattern), false)}}) {
    const TempDir dir;
    Json file = tokenizer_json(kMerges);
    file["pre_tokenizer"] = pre_tokenizer;
    if (name == "qwen2") file["normalizer"] = {{"type", "NFC"}};
    write(dir / "tokenizer.json", dump_json(file));
    write(dir / "tokenizer_config.json", R"({"eos_token": "<|end|>", "chat_template": "{{ y }}"})");
    GgufWriter w;
    add_tokenizer(w, dir.path(), 270, {}, 4, std::nullopt, {});
    w.write(dir / "t.gguf");
    const GgufFile gguf(dir / "t.gguf");
    EXPECT_EQ(gguf.text("tokenizer.ggml.pre"), name);
    EXPECT_EQ(gguf.integer("tokenizer.ggml.eos_token_id"), 265);
    EXPECT_EQ(gguf.integer("tokenizer.ggml.bos_token_id"), 4);
    EXPECT_EQ(gguf.boolean("tokenizer.ggml.add_bos_token"), false);
    EXPECT_EQ(gguf.array("tokenizer.ggml.tokens")->count, 270u);
    EXPECT_EQ(gguf.array("tokenizer.ggml.tokens")->texts[269], "[PAD269]");
    const TokenizerFiles files = *tokenizer_from_gguf(gguf);
    EXPECT_EQ(files.chat_template, "{{ y }}");
    const Tokenizer got = tokenizer(files, dir), truth = Tokenizer::load(dir.path());
    EXPECT_EQ(got.encode(kText, true), truth.encode(kText, true)) << name;
    EXPECT_EQ(got.eos_id(), truth.eos_id());
    EXPECT_EQ(got.vocab_size(), truth.vocab_size());
  }
}

TEST(GgufTokenizer, OurOwnExpressionIsWrittenAsTheNearestWithAWarning) {
  const TempDir dir;
  Json file = tokenizer_json(kMerges);
  file["pre_tokenizer"] = sequence(split(kOwnPattern), false);
  write(dir / "tokenizer.json", dump_json(file));
  std::string said;
  GgufWriter w;
  add_tokenizer(w, dir.path(), 266, {0}, {}, {}, [&](LogLevel level, const std::string& line) {
    EXPECT_EQ(level, LogLevel::warning);
    said += line;
  });
  EXPECT_HAS(said, "combining marks");
  const Tokenizer got = tokenizer(*read(w, dir), dir), truth = load(file);
  const std::string plain =
      "the the 123456 they'LL isn't \xc3\xa9 x\n\n  the\r\n\t12 !? \xe4\xbd\xa0\xe5\xa5\xbd";
  EXPECT_EQ(got.encode(plain), truth.encode(plain));
  EXPECT_NE(got.encode(kText), truth.encode(kText));  // e and a combining acute accent
}

TEST(GgufTokenizer, WhatGgufHasNoNameForIsNotExported) {
  const auto refusal = [](const std::function<void(Json&)>& change, int64_t rows = 266) {
    const TempDir dir;
    Json file = tokenizer_json(kMerges);
    change(file);
    write(dir / "tokenizer.json", dump_json(file));
    GgufWriter w;
    return error_of([&] { add_tokenizer(w, dir.path(), rows, {}, {}, {}, {}); });
  };
  EXPECT_HAS(refusal([](Json& f) { f["pre_tokenizer"]["add_prefix_space"] = true; }), "add_prefix_space");
  EXPECT_HAS(refusal([](Json& f) { f["pre_tokenizer"] = sequence(split("x+"), false); }),
             "GGUF has no name for x+");
  EXPECT_HAS(refusal([](Json& f) { f["model"]["ignore_merges"] = true; }), "with ignore_merges");
  EXPECT_HAS(refusal([](Json&) {}, 265), "expected ids below 265, the embedding's rows, got 265");
}

}  // namespace
}  // namespace hysparse::test
