// The reader of tokenizer.json: what it accepts encodes and decodes anything, or says why not. Text behind
// the first line that is "--text" is encoded.
#include <cstring>

#include "base/error.h"
#include "target.h"
#include "tokenizer/tokenizer.h"

namespace hysparse::fuzz {
namespace {

// Without end-of-text, prefix space or normaliser, for most; each is one way of writing the same thing.
const std::string kHead =
    R"({"version": "1.0", "added_tokens": [{"id": 9, "content": "<|end|>", "special": true},
 {"id": 10, "content": "ab", "special": false, "normalized": true}], "normalizer": null, "decoder": {"type": "ByteLevel"}, )";
const std::string kVocab =
    R"("vocab": {"a": 0, "b": 1, "c": 2, "\u0120": 3, "ab": 10, "\u0120a": 5, "abc": 6, "\u00e9": 7, "?": 8})";
const std::string kByteLevel = R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true})";

}  // namespace

bool run_input(std::string_view input) {
  std::string file(input), text = "abc ab a  cab\n<|end|>\xc3\xa9\xff";
  if (const size_t p = file.find("\n--text\n"); p != std::string::npos) {
    text = file.substr(p + 8);
    file.resize(p);
  }
  try {
    const Tokenizer t = Tokenizer::parse(file, "fuzz");
    require(t.fingerprint().size() == 32, "a fingerprint has 32 digits");
    require(t.vocab_size() > 0, "a tokenizer has tokens");
    for (int32_t id = 0; id < std::min(t.vocab_size(), 300); ++id)
      require(t.decode({id}, true) == t.token_bytes(id), "a token decodes to its bytes");
    for (const bool special : {false, true}) {
      const std::vector<int32_t> ids = t.encode(text, special);
      for (const int32_t id : ids) require(id >= 0 && id < t.vocab_size(), "ids lie inside the vocabulary");
      std::vector<int32_t> streamed;
      t.encode_to(
          text, [&](const int32_t* more, size_t n) { streamed.insert(streamed.end(), more, more + n); },
          special);
      require(streamed == ids, "streamed ids are the same");
      t.decode(ids, true);
      const std::vector<int32_t> whole = t.encode_from_start(text, special), &start = t.start_ids();
      require(whole.size() == ids.size() || whole.size() == start.size() + ids.size(), "start ids come once");
      require(std::equal(start.begin(), start.end(), whole.begin()), "a text begins with them");
      t.decode(whole, true);
    }
    return true;
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::input, "a bad tokenizer is the input's fault");
    require(std::strlen(e.what()) < 4000, "messages are short");
    return false;
  }
}

std::vector<std::string> seeds() {
  return {
      kHead + R"("pre_tokenizer": )" + kByteLevel + R"(, "model": {"type": "BPE", "unk_token": "?", )" +
          kVocab + R"(, "merges": ["a b", "ab c", "\u0120 a"]}})",
      kHead + R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": [
 {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated"},
 {"type": "Digits", "individual_digits": true}, )" +
          kByteLevel +
          R"(]}, "post_processor": {"type": "ByteLevel"}, "model": {"type": "BPE", "ignore_merges": true,
 "unk_token": "?", "fuse_unk": true, )" +
          kVocab + R"(, "merges": [["a", "b"], ["ab", "c"]]}})" +
          "\n--text\nab ab 12345 \n\n <|end|>abcabc\xf0\x9f\x98",
      R"({"normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "ByteLevel"}, "decoder": {"type": "Sequence",
 "decoders": [{"type": "ByteLevel"}]}, "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken":
 {"id": "a"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"a": {"id": "a", "ids": [0, 2]}}}, "model": {"unk_token": "?", )" +
          kVocab + R"(, "merges": ["a b"]}})",
  };
}

std::vector<std::string> dictionary() {
  return {"\"merges\": [\"a b\", \"a b\"]",
          "[\"a\", \"b\", \"c\"]",
          "\"a b c\"",
          "\"\"",
          "[]",
          "{}",
          "null",
          "true",
          "{\"type\": \"Split\", \"pattern\": {\"String\": \" \"}, \"behavior\": \"Isolated\"}, ",
          "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(a+)+$\"}, \"behavior\": \"Isolated\"}, ",
          "(?:",
          "(a*)*",
          "[^",
          "\\\\p{L}",
          "(?=",
          "(?<=a)",
          "{0,65535}",
          "(?R)",
          "\\\\1",
          "(?>",
          "\\\\K",
          "\\\\G",
          "{\"type\": \"NFC\"}",
          "\"add_prefix_space\": true",
          "\"byte_fallback\": true",
          "\"single_word\": true",
          "\"content\": \"\"",
          "\"normalized\": true",
          "\"id\": 16777215",
          "\"id\": 0",
          "\\u0120",
          "\\u0000",
          "\xcc\x81",
          "\n--text\n",
          "<|end|>",
          std::string(200, 'a'),
          std::string(1, '\0'),
          "\xff",
          "\xc3"};
}

}  // namespace hysparse::fuzz
