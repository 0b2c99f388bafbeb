#include <gtest/gtest.h>

#include "io/files.h"
#include "small_tokenizer.h"

namespace hysparse::test {
namespace {

const std::vector<std::pair<std::string, std::string>> kMerges = {
    {"t", "h"}, {"th", "e"}, {" ", "the"}, {"i", "n"}, {"in", "g"}, {" ", "a"}, {"e", "r"}, {"o", "u"}};

// A thousand lines with many of the merges in them.
std::vector<std::string> lines() {
  std::vector<std::string> out;
  for (int i = 0; i < 1000; ++i) {
    std::string s = "the singer of line " + std::to_string(i) + " thought about the other things";
    s.insert(static_cast<size_t>(i % 37), i % 2 == 0 ? "ing the" : " out her");
    out.push_back(s);
  }
  return out;
}

// BC-30.
TEST(TokenizerLoad, MergesAsTextsAndAsPairsGiveTheSameIds) {
  Json pairs = tokenizer_json(kMerges), texts = pairs;
  for (Json& m : texts["model"]["merges"]) m = m[0].get<std::string>() + " " + m[1].get<std::string>();
  const Tokenizer a = load(pairs), b = load(texts);
  size_t merged = 0;
  for (const std::string& line : lines()) {
    ASSERT_EQ(a.encode(line), b.encode(line)) << line;
    ASSERT_EQ(a.decode(a.encode(line)), line);
    merged += line.size() - a.encode(line).size();
  }
  EXPECT_GT(merged, 5000u);
  EXPECT_EQ(a.fingerprint(), b.fingerprint());
  EXPECT_EQ(a.encode("the"), std::vector<int32_t>{257});
}

TEST(TokenizerLoad, APairMayHoldATokenWithASpace) {
  Json file = tokenizer_json(kMerges);
  const int32_t eos = file["added_tokens"][0]["id"];
  file["model"]["vocab"]["a b"] = eos + 1;
  file["model"]["vocab"]["a bc"] = eos + 2;
  file["model"]["merges"].push_back(Json::array({"a b", "c"}));
  const Tokenizer t = load(file);
  EXPECT_EQ(t.vocab_size(), eos + 3);
  EXPECT_EQ(t.token_bytes(eos + 2), "a bc");
  EXPECT_EQ(t.encode("a bc the").size(), 5u);
  file["model"]["merges"].back() = "a b c";  // the same as one text cannot be told apart
  EXPECT_HAS(error_of([&] { load(file); }),
             "model.merges[8]: expected two parts with one space between them");
}

TEST(TokenizerLoad, MalformedMergesAreErrorsThatNameThem) {
  const auto with = [](Json merge) {
    Json file = tokenizer_json(kMerges);
    file["model"]["merges"].push_back(std::move(merge));
    return error_of([&] { load(file); });
  };
  EXPECT_HAS(with("t h e"), "model.merges[8]");
  EXPECT_HAS(with("the"), "model.merges[8]");
  EXPECT_HAS(with(Json::array({"t", "h", "e"})), "expected two texts");
  EXPECT_HAS(with(Json::array({"t"})), "expected two texts");
  EXPECT_HAS(with(Json::array({"t", 5})), "expected two texts");
  EXPECT_HAS(with(7), "model.merges[8]");
  EXPECT_HAS(with(Json::array({"", "t"})), "a part is empty");
  EXPECT_HAS(with("zz q"), "\"zz\" is not in the vocabulary");
  EXPECT_HAS(with("q zz"), "\"zz\" is not in the vocabulary");
  EXPECT_HAS(with("x y"), "\"xy\" is not in the vocabulary");
  EXPECT_HAS(with("t h"), "repeats model.merges[0]");
}

TEST(TokenizerLoad, LostMergesAreAnErrorAndAByteTokenizerIsNot) {
  Json file = tokenizer_json(kMerges);
  file["model"]["merges"] = Json::array();
  EXPECT_HAS(error_of([&] { load(file); }), "8 tokens of several bytes could never be used");
  file["model"].erase("merges");
  EXPECT_HAS(error_of([&] { load(file); }), "model.merges: expected a list, got nothing");
  const Tokenizer bytes = load(tokenizer_json());
  EXPECT_EQ(bytes.encode("abc"), (std::vector<int32_t>{'a', 'b', 'c'}));
  EXPECT_EQ(bytes.vocab_size(), 257);
}

TEST(TokenizerLoad, BadVocabulariesAreErrors) {
  const auto with = [](auto change) {
    Json file = tokenizer_json(kMerges);
    change(file);
    return error_of([&] { load(file); });
  };
  EXPECT_HAS(with([](Json& f) { f["model"]["vocab"]["new"] = 5; }), "id 5 is given to both");
  EXPECT_HAS(with([](Json& f) { f["model"]["vocab"]["new"] = -1; }), "expected a token id in [0, ");
  EXPECT_HAS(with([](Json& f) { f["model"]["vocab"]["new"] = 4e9; }), "expected a token id in [0, ");
  EXPECT_HAS(with([](Json& f) { f["model"]["vocab"]["new"] = 4000000000u; }), "expected a token id in [0, ");
  EXPECT_HAS(with([](Json& f) { f["model"]["vocab"]["new"] = "7"; }), "expected a token id in [0, ");
  EXPECT_HAS(with([](Json& f) { f["model"]["vocab"] = Json::object(); }), "model.vocab");
  EXPECT_HAS(with([](Json& f) { f["model"]["vocab"] = 3; }), "model.vocab");
  EXPECT_HAS(with([](Json& f) { f.erase("model"); }), "model: expected an object");
  EXPECT_HAS(with([](Json& f) { f["model"]["unk_token"] = "nope"; }), "model.unk_token");
}

TEST(TokenizerLoad, UnknownBytesBecomeTheUnkToken) {
  Json file = tokenizer_json();
  file["model"]["vocab"].erase("q");
  EXPECT_HAS(error_of([&] { load(file).encode("aq"); }), "0x71");
  file["model"]["unk_token"] = "";
  EXPECT_HAS(error_of([&] { load(file).encode("aq"); }), "0x71");
  file["model"]["unk_token"] = "<|end|>";  // an added token
  EXPECT_EQ(load(file).encode("aqqa"), (std::vector<int32_t>{'a', 256, 256, 'a'}));
  file["model"]["unk_token"] = "b";
  file["model"]["fuse_unk"] = true;
  EXPECT_EQ(load(file).encode("aqqa"), (std::vector<int32_t>{'a', 'b', 'a'}));
}

TEST(TokenizerLoad, BadAddedTokensAreErrors) {
  const auto with = [](Json token) {
    Json file = tokenizer_json(kMerges);
    file["added_tokens"].push_back(std::move(token));
    return error_of([&] { load(file); });
  };
  EXPECT_HAS(with({{"id", 300}, {"content", "<|end|>"}}), "is there twice");
  EXPECT_HAS(with({{"id", 264}, {"content", "<|x|>"}}), "already \"<|end|>\"");
  EXPECT_HAS(with({{"id", 5}, {"content", "<|x|>"}}), "id 5 is \"<|x|>\" here, but already");
  EXPECT_HAS(with({{"id", 300}, {"content", "the"}}), "has id 300 here and 257 in model.vocab");
  EXPECT_HAS(with({{"id", 300}, {"content", ""}}), "an empty text can be found everywhere");
  EXPECT_HAS(with({{"content", "<|x|>"}}), "added_tokens[1].id");
  EXPECT_HAS(with({{"id", 300}}), "added_tokens[1].content");
  EXPECT_HAS(with({{"id", 300}, {"content", "<|x|>"}, {"lstrip", true}}), "lstrip: true is not supported");
  EXPECT_HAS(with({{"id", 300}, {"content", "<|x|>"}, {"special", "yes"}}), "expected true or false");
}

TEST(TokenizerLoad, WhatIsNotSupportedIsNamed) {
  const auto with = [](const char* pointer, Json value) {
    Json file = tokenizer_json(kMerges);
    file[Json::json_pointer(pointer)] = std::move(value);
    return error_of([&] { load(file); });
  };
  EXPECT_HAS(with("/model/type", "WordPiece"), "model.type: \"WordPiece\" is not supported");
  EXPECT_HAS(with("/model/byte_fallback", true), "model.byte_fallback");
  EXPECT_HAS(with("/model/dropout", 0.1), "model.dropout");
  EXPECT_HAS(with("/model/end_of_word_suffix", "</w>"), "model.end_of_word_suffix");
  EXPECT_HAS(with("/normalizer", {{"type", "NFKC"}}), "normalizer.type: \"NFKC\" is not supported");
  EXPECT_HAS(with("/pre_tokenizer", nullptr), "pre_tokenizer: null is not supported");
  EXPECT_HAS(with("/pre_tokenizer", {{"type", "Metaspace"}}), "\"Metaspace\" is not supported");
  EXPECT_HAS(with("/pre_tokenizer", {{"type", "Digits"}, {"individual_digits", true}}), "no ByteLevel step");
  const Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", "x"}}}, {"behavior", "Removed"}, {"invert", false}};
  EXPECT_HAS(with("/pre_tokenizer", split), "behavior: \"Removed\" is not supported");
  const Json late = {{"type", "Sequence"},
                     {"pretokenizers", Json::array({{{"type", "ByteLevel"}}, {{"type", "Digits"}}})}};
  EXPECT_HAS(with("/pre_tokenizer", late), "Digits after ByteLevel");
  EXPECT_HAS(with("/decoder", {{"type", "WordPiece"}}), "decoder.type: \"WordPiece\" is not supported");
  EXPECT_HAS(with("/post_processor", {{"type", "BertProcessing"}}), "post_processor.type");
  const Json eos_after = {
      {"type", "TemplateProcessing"},
      {"single", Json::array({{{"Sequence", {{"id", "A"}}}}, {{"SpecialToken", {{"id", "x"}}}}})}};
  EXPECT_HAS(with("/post_processor", eos_after), "a token after the text is not supported");
  EXPECT_HAS(with("/version", "2.0"), "version: expected \"1.0\"");
}

// The shape of Llama 3's file: BOS by template, merges ignored for pieces that are tokens.
TEST(TokenizerLoad, TemplatesThatOnlyAddBosAndIgnoreMerges) {
  Json file = tokenizer_json(kMerges);
  file["post_processor"] = {
      {"type", "Sequence"},
      {"processors", Json::array({{{"type", "ByteLevel"}, {"trim_offsets", false}},
                                  {{"type", "TemplateProcessing"},
                                   {"single", Json::array({{{"SpecialToken", {{"id", "<|end|>"}}}},
                                                           {{"Sequence", {{"id", "A"}}}}})}}})}};
  const int32_t extra = 265;
  file["model"]["vocab"]["whole"] = extra;
  EXPECT_EQ(load(file).encode("whole").size(), 5u);
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(load(file).encode("whole"), std::vector<int32_t>{extra});
  EXPECT_EQ(load(file).encode("wholes").size(), 6u);
}

// What comes before a text: the template's tokens, unless tokenizer_config.json says whether BOS does.
TEST(TokenizerLoad, WhatComesBeforeEveryText) {
  using Ids = std::vector<int32_t>;
  Json plain = tokenizer_json(kMerges), templated = plain;
  const auto part = [](const char* what, const char* id) {
    return Json({{what, {{"id", id}, {"type_id", 0}}}});
  };
  templated["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", Json::array({part("SpecialToken", "<s>"), part("Sequence", "A")})},
      {"special_tokens",
       {{"<s>", {{"id", "<s>"}, {"ids", Json::array({264, 65})}, {"tokens", {"<|end|>", "A"}}}}}}};
  EXPECT_EQ(load(plain).start_ids(), Ids{});
  EXPECT_EQ(load(plain).encode_from_start("the"), Ids{257});
  const Tokenizer t = load(templated);
  EXPECT_EQ(t.start_ids(), (Ids{264, 65}));
  EXPECT_EQ(t.encode("the"), Ids{257});
  EXPECT_EQ(t.encode_from_start("the"), (Ids{264, 65, 257}));
  EXPECT_EQ(t.encode_from_start(""), (Ids{264, 65}));
  // Not twice where the text has them itself; as plain text they are no tokens.
  EXPECT_EQ(t.encode_from_start("<|end|>Athe", true), (Ids{264, 65, 257}));
  EXPECT_EQ(t.encode_from_start("<|end|>the", true), (Ids{264, 65, 264, 257}));
  EXPECT_EQ(t.encode_from_start("<|end|>Athe").size(), 2 + t.encode("<|end|>Athe").size());
  // An added token needs no table.
  templated["post_processor"]["single"][0]["SpecialToken"]["id"] = "<|end|>";
  EXPECT_EQ(load(templated).start_ids(), Ids{264});
  EXPECT_NE(load(templated).fingerprint(), load(plain).fingerprint());

  EXPECT_EQ(load(templated, {{"bos_token", "<|end|>"}}).start_ids(), Ids{264});
  EXPECT_EQ(load(templated, {{"add_bos_token", false}}).start_ids(), Ids{});
  EXPECT_EQ(load(templated, {{"add_bos_token", nullptr}}).start_ids(), Ids{264});
  EXPECT_EQ(load(plain, {{"add_bos_token", true}, {"bos_token", "A"}}).start_ids(), Ids{65});
  EXPECT_EQ(load(plain, {{"add_bos_token", true}, {"bos_token", {{"content", "<|end|>"}}}}).start_ids(),
            Ids{264});
  EXPECT_EQ(load(plain, {{"add_bos_token", true}, {"bos_token", nullptr}}).start_ids(), Ids{});
  EXPECT_EQ(load(plain, {{"add_bos_token", true}}).start_ids(), Ids{});

  EXPECT_HAS(error_of([&] {
               load(plain, {{"add_bos_token", "yes"}});
             }),
             "add_bos_token: expected true or false");
  EXPECT_HAS(error_of([&] {
               load(plain, {{"add_bos_token", true}, {"bos_token", "<none>"}});
             }),
             "bos_token: \"<none>\" is not a token of tokenizer.json");
  const auto with_id = [&](Json id) {
    Json file = templated;
    file["post_processor"]["single"][0]["SpecialToken"]["id"] = "<s>";
    file["post_processor"]["special_tokens"]["<s>"]["ids"] = std::move(id);
    return error_of([&] { load(file); });
  };
  EXPECT_HAS(with_id(Json::array({-1})), "post_processor.single.ids: expected a token id");
  EXPECT_HAS(with_id(Json::array({"1"})), "expected a token id");
  EXPECT_HAS(with_id(Json::array({300})), "the id 300 that comes before every text is not below");
  EXPECT_HAS(with_id(Json::array()), "\"<s>\" is neither among the special_tokens nor an added token");
}

TEST(TokenizerLoad, EosFromTheFilesBeside) {
  const Json file = tokenizer_json(kMerges);
  EXPECT_EQ(load(file).eos_id(), -1);
  EXPECT_EQ(load(file, {{"eos_token", "<|end|>"}}).eos_id(), 264);
  EXPECT_EQ(load(file, {{"eos_token", {{"content", "<|end|>"}, {"lstrip", false}}}}).eos_id(), 264);
  EXPECT_EQ(load(file, {{"eos_token", nullptr}}).eos_id(), -1);
  EXPECT_HAS(error_of([&] { load(file, {{"eos_token", "<|other|>"}}); }), "is not a token of tokenizer.json");
  EXPECT_HAS(error_of([&] { load(file, {{"eos_token", 5}}); }), "expected a text");
  TempDir dir;
  write(dir / "tokenizer.json", dump_json(file));
  write(dir / "generation_config.json", R"({"eos_token_id": [264, 1]})");
  EXPECT_EQ(Tokenizer::load(dir.path()).eos_id(), 264);
  EXPECT_EQ(Tokenizer::load(dir / "tokenizer.json").eos_id(), 264);
  write(dir / "generation_config.json", R"({"eos_token_id": 265})");
  EXPECT_HAS(error_of([&] { Tokenizer::load(dir.path()); }),
             "end-of-text id 265 is not below the vocabulary's 265");
}

TEST(TokenizerLoad, MissingAndBrokenFiles) {
  TempDir dir;
  EXPECT_HAS(error_of([&] { Tokenizer::load(dir.path()); }), "holds no tokenizer.json");
  EXPECT_HAS(error_of([&] { Tokenizer::load(dir / "nowhere"); }), "nowhere");
  write(dir / "tokenizer.json", "");
  error_of([&] { Tokenizer::load(dir.path()); });
  write(dir / "tokenizer.json", "[]");
  EXPECT_HAS(error_of([&] { Tokenizer::load(dir.path()); }), "expected an object");
  const std::string whole = dump_json(tokenizer_json(kMerges));
  write(dir / "tokenizer.json", whole.substr(0, whole.size() / 2));
  error_of([&] { Tokenizer::load(dir.path()); });
}

TEST(TokenizerLoad, TheFingerprintIsOfAllThatDecidesIds) {
  const Json file = tokenizer_json(kMerges);
  const std::string base = load(file).fingerprint();
  EXPECT_EQ(base.size(), 32u);
  EXPECT_EQ(load(file).fingerprint(), base);
  const auto changed = [&](const char* pointer, Json value) {
    Json other = file;
    other[Json::json_pointer(pointer)] = std::move(value);
    return load(other).fingerprint();
  };
  EXPECT_NE(changed("/pre_tokenizer/use_regex", false), base);
  EXPECT_NE(changed("/pre_tokenizer/add_prefix_space", true), base);
  EXPECT_NE(changed("/normalizer", {{"type", "NFC"}}), base);
  EXPECT_NE(changed("/model/ignore_merges", true), base);
  EXPECT_NE(changed("/added_tokens/0/content", "<|fin|>"), base);
  EXPECT_NE(load(file, {{"eos_token", "<|end|>"}}).fingerprint(), base);
  auto swapped = kMerges;
  std::swap(swapped[0], swapped[3]);
  EXPECT_NE(load(tokenizer_json(swapped)).fingerprint(), base);
}

}  // namespace
}  // namespace hysparse::test
