// libFuzzer's entry (clang, -DHYSPARSE_FUZZ=ON). A corpus to start from: `fuzz_NAME --write-seeds DIR` of the
// plain build.
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hysparse::fuzz::run_input({reinterpret_cast<const char*>(data), size});
  return 0;
}
