#include "io/text_lines.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace hysparse {
namespace {

using Lines = std::vector<std::pair<std::string, int64_t>>;

Lines lines_of(std::string_view text) {
  Lines out;
  for_each_line(text, [&](std::string_view line, int64_t number) { out.emplace_back(line, number); });
  return out;
}

TEST(TextLines, BlankOnesAreCountedAndLeftOut) {
  EXPECT_EQ(lines_of(""), Lines());
  EXPECT_EQ(lines_of("\n \t\r\n"), Lines());
  EXPECT_EQ(lines_of("a\n\n  b\r\nc"), (Lines{{"a", 1}, {"  b\r", 3}, {"c", 4}}));
  EXPECT_EQ(lines_of("a\n"), (Lines{{"a", 1}}));
}

TEST(TextLines, FalseEndsIt) {
  int64_t seen = 0;
  for_each_line("a\nb\nc", [&](std::string_view, int64_t number) {
    seen = number;
    return number < 2;
  });
  EXPECT_EQ(seen, 2);
}

}  // namespace
}  // namespace hysparse
