#include "base/error.h"

#include <gtest/gtest.h>

namespace hysparse {
namespace {

TEST(Error, KindsAreExitCodes) {
  EXPECT_EQ(Error(ErrorKind::input, "x").exit_code(), 2);
  EXPECT_EQ(Error(ErrorKind::failure, "x").exit_code(), 1);
  EXPECT_EQ(Error(ErrorKind::interrupted, "x").exit_code(), 130);
}

TEST(Error, SaysWhereWhatAndHint) {
  EXPECT_STREQ(input_error("a.json", "is empty").what(), "a.json: is empty");
  EXPECT_STREQ(input_error("a.json", "is empty", "write it").what(), "a.json: is empty (write it)");
  const Error e = expected_error("a.json: n", "an integer", "4.0", "write 4");
  EXPECT_STREQ(e.what(), "a.json: n: expected an integer, got 4.0 (write 4)");
  EXPECT_EQ(e.kind(), ErrorKind::input);
  EXPECT_EQ(failure("disk", "full").kind(), ErrorKind::failure);
}

TEST(Error, CheckThrowsOnlyWhenBroken) {
  const auto check = [](int n) { HYSPARSE_CHECK(n == 1, "n is {}", n); };
  EXPECT_NO_THROW(check(1));
  try {
    check(2);
    FAIL() << "a broken check passed";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::failure);
    EXPECT_NE(std::string(e.what()).find("n is 2"), std::string::npos);
  }
}

}  // namespace
}  // namespace hysparse
