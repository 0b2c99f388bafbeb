// How fast memory can be read: the ceiling of decoding, which reads every weight once a token.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/read_speed.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <chrono>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace hysparse {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// All words of [p, p + bytes), or-ed; bytes is a multiple of 1024.
uint64_t ReadAll(const uint64_t* HWY_RESTRICT p, int64_t bytes) {
  const hn::CappedTag<uint64_t, 8> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto a = hn::Zero(d), b = hn::Zero(d), c = hn::Zero(d), e = hn::Zero(d);
  for (int64_t i = 0; i < bytes / 8; i += 4 * lanes) {
    a = hn::Or(a, hn::Load(d, p + i));
    b = hn::Or(b, hn::Load(d, p + i + lanes));
    c = hn::Or(c, hn::Load(d, p + i + 2 * lanes));
    e = hn::Or(e, hn::Load(d, p + i + 3 * lanes));
  }
  HWY_ALIGN uint64_t words[8] = {};
  hn::Store(hn::Or(hn::Or(a, b), hn::Or(c, e)), d, words);
  uint64_t all = 0;
  for (const uint64_t word : words) all |= word;
  return all;
}

}  // namespace HWY_NAMESPACE
}  // namespace hysparse
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hysparse {

HWY_EXPORT(ReadAll);

ReadSpeed::ReadSpeed(ThreadPool& pool) : pool_(pool), buffer_(DType::u8, {kBytes}) {
  // Pages that nothing was written to may all be one.
  for (int64_t i = 0; i < kBytes; i += 4096) buffer_.view().as<uint8_t>()[i] = 1;
}

double ReadSpeed::measure() const {
  constexpr int64_t kPiece = int64_t(1) << 20;
  const auto* data = static_cast<const uint64_t*>(buffer_.view().data);
  std::vector<uint64_t> sums(size_t(kBytes / kPiece));
  const auto start = std::chrono::steady_clock::now();
  pool_.parallel_runs(kBytes / kPiece, [&](int64_t i, int) {
    sums[size_t(i)] = HWY_DYNAMIC_DISPATCH(ReadAll)(data + i * kPiece / 8, kPiece);
  });
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  for (const uint64_t sum : sums) HYSPARSE_CHECK(sum == 1, "memory was not read");
  return double(kBytes) / time.count();
}

}  // namespace hysparse
#endif
