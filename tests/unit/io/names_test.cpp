#include <gtest/gtest.h>

#include "io/json.h"

namespace hysparse {
namespace {

TEST(NearestName, FindsTypingErrors) {
  const std::vector<std::string> valid = {"hidden_size", "head_dim",     "v_head_dim",
                                          "train.lr",    "train.min_lr", "n"};
  EXPECT_EQ(nearest_name("hiden_size", valid), "hidden_size");
  EXPECT_EQ(nearest_name("hidden_szie", valid), "hidden_size");
  EXPECT_EQ(nearest_name("HIDDEN_SIZE", valid), "hidden_size");
  EXPECT_EQ(nearest_name("head_dim", valid), "head_dim");
  EXPECT_EQ(nearest_name("head_dims", valid), "head_dim");
  EXPECT_EQ(nearest_name("v_headdim", valid), "v_head_dim");
  EXPECT_EQ(nearest_name("lr", valid), "train.lr");
  EXPECT_EQ(nearest_name("min_lr", valid), "train.min_lr");
  EXPECT_EQ(nearest_name("train.lrr", valid), "train.lr");
}

TEST(NearestName, SaysNothingWhenNothingIsNear) {
  EXPECT_EQ(nearest_name("completely_else", {"hidden_size", "n"}), "");
  EXPECT_EQ(nearest_name("x", {"n", "m"}), "");
  EXPECT_EQ(nearest_name("", {"n"}), "");
  EXPECT_EQ(nearest_name("abc", {}), "");
  EXPECT_EQ(nearest_name(std::string(50'000'000, 'a'), {"hidden_size", "n"}), "");  // at once, however long
}

TEST(QuoteText, IsSafeToPrint) {
  EXPECT_EQ(quote_text("plain \xc3\xa9"), "\"plain \xc3\xa9\"");
  EXPECT_EQ(quote_text("a\nb\x1b[0m\x7f"), "\"a\\x0ab\\x1b[0m\\x7f\"");
  EXPECT_EQ(quote_text("\xff\xc3"), "\"\\xff\\xc3\"");
  EXPECT_EQ(quote_text("\xed\xa0\x80"), "\"\\xed\\xa0\\x80\"");
  EXPECT_EQ(quote_text("\xe2\x82\xac\xf0\x9f\x98\x80"), "\"\xe2\x82\xac\xf0\x9f\x98\x80\"");
  EXPECT_EQ(quote_text(""), "\"\"");
  const std::string cut = quote_text(std::string(1000, 'x'), 10);
  EXPECT_LT(cut.size(), 20u);
  EXPECT_NE(cut.find("..."), std::string::npos);
}

}  // namespace
}  // namespace hysparse
