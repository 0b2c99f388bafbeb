// Which kernel takes which shape: the same conditions as the calls themselves.
#include <cstring>

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/sm90/attention_bwd/instantiate.h"
#include "kernels/cuda/sm90/attention_fwd/instantiate.h"
#include "kernels/cuda/sm90/sparse_bwd/launch.h"
#include "kernels/cuda/sm90/sparse_fwd/instantiate.h"
#include "kernels/cuda/sm90/window_fwd/launch.h"

using namespace hysparse::cuda;

namespace {

constexpr const char* kPlain = "plain (any GPU from 8.0)";

bool block_fits(int block) {
  return block == 16 || block == 32 || block == 64 || block == 128;
}

const char* name_of(const char* op, const hysparse_cuda_shape& s, bool hopper) {
  const auto is = [op](const char* name) { return std::strcmp(op, name) == 0; };
  const int d = s.head_dim, dv = s.v_head_dim, ratio = s.kv_heads > 0 ? s.q_heads / s.kv_heads : 0;
  const bool indexed = block_fits(s.block) && s.entries >= 1 && s.entries <= 64, fast = hopper && s.bf16;
  if (is("attention"))
    return fast && attention_fwd::find_kernel(d, dv, 0).launch ? "Hopper: warp-specialised wgmma" : kPlain;
  if (is("attention_select"))
    return fast && indexed && attention_fwd::find_kernel(d, dv, s.block < 64 ? s.block : 64).launch
               ? "Hopper: warp-specialised wgmma, block maxima in the softmax"
               : kPlain;
  if (is("attention_backward"))
    return fast && attention_bwd::find_kernel(d, dv).launch ? "Hopper: wgmma, dQ by bulk reductions" : kPlain;
  if (is("sparse_attention"))
    return fast && indexed && sparse_fwd::find_kernel(d, dv, s.block < 64 ? s.block : 64)
               ? "Hopper: union tiles, inverted index for scattered ones"
               : kPlain;
  if (is("sparse_attention_backward"))
    return fast && indexed && sparse_bwd::takes(d, dv) ? "Hopper: inverted index" : kPlain;
  if (is("window_attention")) return fast && window_fwd::takes(d, dv) ? "Hopper: wgmma band" : kPlain;
  if (is("window_attention_backward"))
    return fast && sparse_bwd::takes(d, dv) && ratio <= 64 ? "Hopper: inverted index of the band" : kPlain;
  if (is("decode") || is("decode_sparse_layer")) {
    const bool takes = s.bf16 && ratio >= 1 && ratio <= 16 && d % 8 == 0 && dv % 8 == 0 && d <= 256 &&
                       dv <= 256 && (is("decode_sparse_layer") || s.entries == 0 || block_fits(s.block));
    if (!takes) return kPlain;
    return is("decode") ? "split keys over pages, merge, selection" : "one launch: a cluster a KV head";
  }
  return nullptr;
}

}  // namespace

extern "C" {

const char* hysparse_cuda_kernel_name(const char* op, const hysparse_cuda_shape* shape, int32_t capability) {
  if (!op || !shape) return nullptr;
  const int c = capability > 0 ? capability : compute_capability();
  return name_of(op, *shape, c / 10 == 9);
}

}  // extern "C"
