// Round trips of any bytes through tokenizers of both pre-tokenizer patterns.
#include "base/rng.h"
#include "byte_tokenizer.h"
#include "target.h"

namespace hysparse::fuzz {
namespace {

void round_trip(const Tokenizer& t, const std::string& text) {
  for (const bool special : {false, true}) {
    const std::vector<int32_t> ids = t.encode(text, special);
    require(t.decode(ids, true) == text, "what is encoded decodes to itself");
    std::vector<int32_t> streamed;
    t.encode_to(
        text, [&](const int32_t* more, size_t n) { streamed.insert(streamed.end(), more, more + n); },
        special);
    require(streamed == ids, "streamed ids are the same");
    Utf8Stream bits, whole;
    std::string shown;
    for (const int32_t id : ids) shown += bits.push(t.token_bytes(id));
    shown += bits.flush();
    std::string at_once = whole.push(text);
    at_once += whole.flush();
    require(shown == at_once, "text shown token by token is the text shown at once");
  }
  const std::vector<int32_t> plain = t.encode(text);
  if (text.size() < 2) return;
  const size_t cut = t.next_cut(text, 1 + Rng(text.size()).below(text.size() - 1));
  std::vector<int32_t> parts = t.encode(text.substr(0, cut));
  const std::vector<int32_t> rest = t.encode(text.substr(cut));
  parts.insert(parts.end(), rest.begin(), rest.end());
  require(parts == plain, "a text cut where it may be gives the same ids");
}

}  // namespace

bool run_input(std::string_view input) {
  static const Tokenizer own = byte_tokenizer(kOwnPattern), gpt2 = byte_tokenizer(kGpt2Pattern);
  const std::string text(input);
  round_trip(own, text);
  round_trip(gpt2, text);
  // "Accepted" is valid UTF-8 here, so that a plain run sees both kinds.
  Utf8Stream stream;
  return stream.push(text) + stream.flush() == text;
}

std::vector<std::string> seeds() {
  return {
      "the thing's  end\r\n\r\n  in 12345 rings, the\tcaf\xc3\xa9 \xf0\x9f\x98\x80\n",
      "\xe4\xba\xba\xe4\xb9\x8b\xe5\x88\x9d\xef\xbc\x8c\xe6\x80\xa7\xe6\x9c\xac\xe5\x96\x84\xe3\x80\x82\n",
      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa<|end|><tool>                        a",
      "e\xcc\x81\xcc\xa7 I'LL we'Re \xc2\xa0\xe2\x80\xa8\xe3\x80\x80x \xd9\xa1\xd9\xa2\xd9\xa3", "the"};
}

std::vector<std::string> dictionary() {
  return {" the",
          "\r\n",
          "\n\n",
          "   ",
          "'s",
          "'S",
          "<|end|>",
          "<|end",
          "<tool>",
          "123",
          "\xc3",
          "\xa9",
          "\xf0\x9f\x98",
          "\xff",
          "\xed\xa0\x80",
          "\xc0\x80",
          "\xf4\x90\x80\x80",
          std::string(1, '\0'),
          "\xe2\x80\xa8",
          "\xc2\x85",
          "\xcc\x81",
          "\xef\xbb\xbf",
          "\xc2\xa0",
          std::string(64, 'a'),
          std::string(64, ' ')};
}

}  // namespace hysparse::fuzz
