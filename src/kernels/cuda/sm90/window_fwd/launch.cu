#include "kernels/cuda/sm90/window_fwd/launch.h"

#include <algorithm>

#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/sm90/window_fwd/band.cuh"

namespace hysparse::cuda::window_fwd {
namespace {

Kernel find_kernel(int head_dim, int v_head_dim) {
  if (head_dim == 192 && v_head_dim == 128) return kernel_192();
  if (head_dim != v_head_dim) return {};
  switch (head_dim) {
    case 64:
      return kernel_64();
    case 96:
      return kernel_96();
    case 128:
      return kernel_128();
    case 256:
      return kernel_256();
    default:
      return {};
  }
}

int run_band(const hysparse_cuda_window_params& p, const BandKernel& kernel, int window,
             cudaStream_t stream) {
  const TileList* tiles = p.batch->tiles(kernel.tokens);
  if (!tiles) return HYSPARSE_CUDA_ERROR;
  if (reinterpret_cast<uintptr_t>(p.o.data) % 16 != 0 || p.o.stride_row % 8 != 0 || p.o.stride_head % 8 != 0)
    return fail(HYSPARSE_BAD_ARGUMENT, "o: address and strides must be multiples of 16 bytes");
  BandParams k{};
  if (int e = make_tensor_map(&k.q, p.q, p.batch->tokens, p.q_heads, p.head_dim, kernel.tokens, "q",
                              p.q_heads / p.kv_heads))
    return e;
  if (int e = make_tensor_map(&k.k, p.k, p.kv_rows, p.kv_heads, p.head_dim, kernel.keys, "k")) return e;
  if (int e = make_tensor_map(&k.v, p.v, p.kv_rows, p.kv_heads, p.v_head_dim, kernel.keys, "v")) return e;
  k.tiles = tiles->device;
  k.kv_heads = p.kv_heads;
  k.window = window;
  k.scale_log2 = p.scale * 1.4426950408889634f;
  k.sinks = p.sinks;
  k.o = static_cast<__nv_bfloat16*>(p.o.data);
  k.o_stride_row = p.o.stride_row;
  k.o_stride_head = p.o.stride_head;
  k.lse = p.lse;
  return check_cuda(kernel.launch(k, int(tiles->host.size()), stream), "window attention forward");
}

}  // namespace

bool takes(int head_dim, int v_head_dim) {
  return find_kernel(head_dim, v_head_dim).launch != nullptr;
}

int run(const hysparse_cuda_window_params& p, cudaStream_t stream) {
  const Kernel kernel = find_kernel(p.head_dim, p.v_head_dim);
  const int window = std::min(p.window, p.batch->max_kv);
  if (const BandKernel band = kernel.band(p.q_heads / p.kv_heads); band.launch && p.window <= band.longest)
    return run_band(p, band, p.window, stream);
  const TileList* tiles = p.batch->tiles(128);
  if (!tiles) return HYSPARSE_CUDA_ERROR;
  attention_fwd::Params k{};
  if (int e = make_tensor_map(&k.q, p.q, p.batch->tokens, p.q_heads, p.head_dim, 128, "q")) return e;
  if (int e = make_tensor_map(&k.k, p.k, p.kv_rows, p.kv_heads, p.head_dim, kernel.n, "k")) return e;
  if (int e = make_tensor_map(&k.v, p.v, p.kv_rows, p.kv_heads, p.v_head_dim, kernel.n, "v")) return e;
  k.tiles = tiles->device;
  k.tile_count = int(tiles->host.size());
  k.heads = k.section_heads = p.q_heads;  // neighbouring CTAs share a tile's K and V
  k.ratio = p.q_heads / p.kv_heads;
  k.scale_log2 = p.scale * 1.4426950408889634f;
  k.o = static_cast<__nv_bfloat16*>(p.o.data);
  k.o_stride_row = p.o.stride_row;
  k.o_stride_head = p.o.stride_head;
  k.lse = p.lse;
  k.window = window;
  k.sinks = p.sinks;
  return check_cuda(kernel.launch(k, stream), "window attention forward");
}

}  // namespace hysparse::cuda::window_fwd
