// Whether an answer says what was asked for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hysparse::ruler {

struct Score {
  // The share of the references that the answer contains, case folded; `any`: 1 where it contains one. What
  // the original computes, so figures compare.
  double share = 0;
  // The same under a rule that wants the reference itself: whole words and numbers (12345 is not found in
  // 123456, 1,234,567 is 1234567), and nothing for saying the question again. Of questions (`any`): after
  // SQuAD's normalisation, without articles and punctuation.
  double strict = 0;
  bool empty = false;          // nothing but white space
  std::vector<uint8_t> found;  // a reference; by the first rule
};
Score score_answer(const std::vector<std::string>& references, bool any, std::string_view question,
                   std::string_view answer);

// Lower case by Unicode's simple mapping; bytes that are no UTF-8 stay.
std::string fold_case(std::string_view text);

}  // namespace hysparse::ruler
