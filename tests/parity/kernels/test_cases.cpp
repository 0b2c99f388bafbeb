// The handed cases on every backend.
#include "parity/kernels/cases.h"

namespace hysparse::test {
namespace {

class Cases : public KernelTest {};

TEST_P(Cases, Bc01WindowBound) {
  window_bound(GetParam());
}
TEST_P(Cases, Bc02PaddingBeforeABlock) {
  padding_before_a_block(GetParam());
}
TEST_P(Cases, Bc02NothingButPadding) {
  nothing_but_padding(GetParam());
}
TEST_P(Cases, Bc02HugeRawDots) {
  huge_raw_dots(GetParam());
}
TEST_P(Cases, Bc03LengthsAndStrays) {
  lengths_and_strays(GetParam());
}
TEST_P(Cases, Bc04HeadShapesAndGradients) {
  head_shapes_and_gradients(GetParam());
}
TEST_P(Cases, Bc38PackedDocuments) {
  packed_documents(GetParam());
}

HYSPARSE_MAIN_KERNEL_SUITE(Cases);

}  // namespace
}  // namespace hysparse::test
