#include "kernels/cuda/sm80/decode/launch.h"

#include "kernels/cuda/common/batch.h"
#include "kernels/cuda/sm80/decode/combine.h"
#include "kernels/cuda/sm80/decode/full.cuh"
#include "kernels/cuda/sm80/decode/instantiate.h"
#include "kernels/cuda/sm80/decode/sparse.cuh"

namespace hysparse::cuda::decode {
namespace {

// Dims between the instantiated ones run in the next larger kernel, padded with zeros in shared memory.
template <Code kCode, class Run>
cudaError_t with_dims(int d, int dv, Run run) {
  if (d <= 64 && dv <= 64) return run(Kernels<kCode, 64, 64>{});
  if (d <= 128 && dv <= 128) return run(Kernels<kCode, 128, 128>{});
  if constexpr (kCode == Code::bf16)
    if (d > 192 || dv > 128) return run(Kernels<kCode, 256, 256>{});
  return run(Kernels<kCode, 192, 128>{});  // api_decode.cu lets no larger dims of codes through
}
template <class Run>
cudaError_t with_kernels(int32_t code, int d, int dv, Run run) {
  if (code == HYSPARSE_CODE_INT8) return with_dims<Code::int8>(d, dv, run);
  if (code == HYSPARSE_CODE_FP8) return with_dims<Code::fp8>(d, dv, run);
  return with_dims<Code::bf16>(d, dv, run);
}

bool scored(const hysparse_cuda_decode_full_params& p) {
  return p.entries > 0 || p.block_scores;
}

struct Layout {
  int64_t splits, blocks;
  size_t part_o, part, raw, total;  // bytes: part_o at 0, part behind it, then raw
};

Layout layout(const hysparse_cuda_decode_full_params& p) {
  Layout l{};
  const auto aligned = [](size_t n) { return (n + 255) / 256 * 256; };
  l.splits = most_splits(p.max_kv_len);
  l.blocks = scored(p) ? (int64_t(p.max_kv_len) + p.block - 1) / p.block : 0;
  const size_t heads = size_t(p.batch) * size_t(p.q_heads);
  l.part_o = 0;
  l.part = aligned(heads * size_t(l.splits) * size_t(p.v_head_dim) * sizeof(float));
  l.raw = l.part + aligned(heads * size_t(l.splits) * sizeof(float2));
  l.total = l.raw + aligned(heads * size_t(l.blocks) * sizeof(float));
  return l;
}

}  // namespace

int64_t most_blocks() {
  return 50 << 10;  // keys in the shared memory of one CTA
}

size_t workspace(const hysparse_cuda_decode_full_params& p) {
  return layout(p).total;
}

int run(const hysparse_cuda_decode_full_params& p, cudaStream_t stream) {
  const Layout l = layout(p);
  char* memory = static_cast<char*>(p.workspace);
  FullParams f{};
  f.kv_len = p.kv_len;
  f.q_heads = p.q_heads;
  f.kv_heads = p.kv_heads;
  f.dim = p.head_dim;
  f.v_dim = p.v_head_dim;
  f.q = static_cast<const __nv_bfloat16*>(p.q.data);
  f.q_row = p.q.stride_row;
  f.q_head = p.q.stride_head;
  f.kv = p.kv;
  f.pages = page_math(p.kv.page_size);
  f.scale_log2 = p.scale * kLog2e;
  f.block = p.block;
  f.raw = scored(p) ? reinterpret_cast<float*>(memory + l.raw) : nullptr;
  f.blocks = l.blocks;
  f.part_o = reinterpret_cast<float*>(memory + l.part_o);
  f.part = reinterpret_cast<float2*>(memory + l.part);
  f.splits = int(l.splits);
  const cudaError_t e = with_kernels(p.kv.code, p.head_dim, p.v_head_dim,
                                     [&](auto kernels) { return kernels.full(f, p.batch, stream); });
  if (int code = check_cuda(e, "decode of a full layer")) return code;

  CombineParams c{};
  c.kv_len = p.kv_len;
  c.q_heads = p.q_heads;
  c.kv_heads = p.kv_heads;
  c.v_dim = p.v_head_dim;
  c.part_o = f.part_o;
  c.part = f.part;
  c.splits = f.splits;
  c.raw = f.raw;
  c.blocks = l.blocks;
  c.o = static_cast<__nv_bfloat16*>(p.o.data);
  c.o_row = p.o.stride_row;
  c.o_head = p.o.stride_head;
  c.lse = p.lse;
  c.block = p.block;
  c.entries = p.entries;
  c.force_first = p.force_first != 0;
  c.force_diagonal = p.force_diagonal != 0;
  c.idx = p.idx;
  c.block_scores = p.block_scores;
  c.score_stride = p.score_stride;
  return check_cuda(combine(c, p.batch, stream), "decode of a full layer, merge");
}

int run(const hysparse_cuda_decode_sparse_params& p, cudaStream_t stream) {
  SparseParams s{};
  s.kv_len = p.kv_len;
  s.q_heads = p.q_heads;
  s.kv_heads = p.kv_heads;
  s.dim = p.head_dim;
  s.v_dim = p.v_head_dim;
  s.q = static_cast<const __nv_bfloat16*>(p.q.data);
  s.q_row = p.q.stride_row;
  s.q_head = p.q.stride_head;
  s.scale_log2 = p.scale * kLog2e;
  s.kv = p.kv;
  s.pages = page_math(p.kv.page_size > 0 ? p.kv.page_size : 1);
  s.block = p.block > 0 ? p.block : 1;
  s.blocks = page_math(s.block);
  s.entries = p.entries;
  s.idx = p.idx;
  s.sparse_sinks = p.sparse_sinks;
  s.window_sinks = p.window_sinks;
  s.window = p.window;
  s.shared_window = p.shared_window != 0;
  s.ring = p.ring;
  s.gate_sparse = p.gate_sparse;
  s.gate_window = p.gate_window;
  s.gate_stride = p.gate_stride;
  s.gate_channels = p.gate_channels != 0;
  s.out = static_cast<__nv_bfloat16*>(p.out.data);
  s.out_row = p.out.stride_row;
  s.out_head = p.out.stride_head;
  const cudaError_t e = with_kernels(p.kv.code, p.head_dim, p.v_head_dim,
                                     [&](auto kernels) { return kernels.sparse(s, p.batch, stream); });
  return check_cuda(e, "decode of a sparse layer");
}

}  // namespace hysparse::cuda::decode
