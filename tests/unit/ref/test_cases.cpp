// The handed cases on the reference itself.
#include "parity/kernels/cases.h"

namespace hysparse::test {
namespace {

TEST(RefCases, Bc01WindowBound) {
  window_bound(ref_backend());
}
TEST(RefCases, Bc02PaddingBeforeABlock) {
  padding_before_a_block(ref_backend());
}
TEST(RefCases, Bc02NothingButPadding) {
  nothing_but_padding(ref_backend());
}
TEST(RefCases, Bc02HugeRawDots) {
  huge_raw_dots(ref_backend());
}
TEST(RefCases, Bc03LengthsAndStrays) {
  lengths_and_strays(ref_backend());
}
TEST(RefCases, Bc04HeadShapesAndGradients) {
  head_shapes_and_gradients(ref_backend());
}
TEST(RefCases, Bc38PackedDocuments) {
  packed_documents(ref_backend());
}

}  // namespace
}  // namespace hysparse::test
