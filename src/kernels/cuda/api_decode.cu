// The C ABI of decode attention: argument checks, then the kernels.
#include <string>

#include "kernels/cuda/common/batch.h"
#include "kernels/cuda/common/device.h"
#include "kernels/cuda/sm80/decode/launch.h"

using namespace hysparse::cuda;

namespace {

int bad(const std::string& what, const std::string& why) {
  return fail(HYSPARSE_BAD_ARGUMENT, what + ": " + why);
}

template <class Params>
int check_heads(const char* what, const Params& p) {
  if (p.batch < 1 || p.batch > 65535) return bad(what, "batch must be 1 to 65535");
  if (p.q_heads < 1 || p.kv_heads < 1 || p.q_heads % p.kv_heads != 0)
    return bad(what, std::to_string(p.q_heads) + " query heads do not divide over " +
                         std::to_string(p.kv_heads) + " KV heads");
  if (p.q_heads / p.kv_heads > 16)
    return fail(HYSPARSE_UNSUPPORTED, std::string(what) + ": more than 16 query heads a KV head");
  const auto dim = [](int d) { return d >= 8 && d <= 256 && d % 8 == 0; };
  if (!dim(p.head_dim) || !dim(p.v_head_dim))
    return bad(what, "head dims " + std::to_string(p.head_dim) + "/" + std::to_string(p.v_head_dim) +
                         " are not multiples of 8 up to 256");
  if (!p.kv_len || !p.q.data) return bad(what, "kv_len or q is null");
  return HYSPARSE_OK;
}

int check_pages(const char* what, const hysparse_cuda_pages& kv, int dim, int v_dim) {
  if (!kv.k.data || !kv.v.data || !kv.page_table) return bad(what, "k, v or the page table is null");
  if (kv.page_size < 1) return bad(what, "page_size must be at least 1");
  if (kv.code == HYSPARSE_CODE_NONE) return HYSPARSE_OK;
  if (kv.code != HYSPARSE_CODE_INT8 && kv.code != HYSPARSE_CODE_FP8)
    return bad(what, "unknown code of pages");
  if (!kv.scales) return bad(what, "pages in 8 bits without scales");
  if (dim % 16 != 0 || v_dim % 16 != 0 || dim > 192 || v_dim > 128)
    return fail(HYSPARSE_UNSUPPORTED, std::string(what) +
                                          ": of pages in 8 bits head dims are multiples of 16, "
                                          "at most 192/128");
  return HYSPARSE_OK;
}

int check_full(const hysparse_cuda_decode_full_params* p) {
  constexpr const char* what = "decode of a full layer";
  if (!p) return bad(what, "no parameters");
  if (int e = check_heads(what, *p)) return e;
  if (int e = check_pages(what, p->kv, p->head_dim, p->v_head_dim)) return e;
  if (p->max_kv_len < 1) return bad(what, "max_kv_len must be at least 1");
  if (!p->o.data) return bad(what, "o is null");
  if (p->entries < 0 || p->entries > 2048) return bad(what, "entries must be 0 to 2048");
  if (p->entries > 0 && !p->idx) return bad(what, "entries without idx");
  if (p->entries > 0 || p->block_scores) {
    if (p->block != 16 && p->block != 32 && p->block != 64 && p->block != 128)
      return fail(HYSPARSE_UNSUPPORTED,
                  std::string(what) + ": block " + std::to_string(p->block) + " is not 16, 32, 64 or 128");
    const int64_t blocks = (int64_t(p->max_kv_len) + p->block - 1) / p->block;
    if (p->block_scores && p->score_stride < blocks)
      return bad(what, "score_stride is shorter than the blocks of max_kv_len");
    if (blocks > decode::most_blocks())
      return fail(HYSPARSE_UNSUPPORTED, std::string(what) + ": more than " +
                                            std::to_string(decode::most_blocks()) +
                                            " blocks to rank; take a larger block");
  }
  return HYSPARSE_OK;
}

int check_sparse(const hysparse_cuda_decode_sparse_params* p) {
  constexpr const char* what = "decode of a sparse layer";
  if (!p) return bad(what, "no parameters");
  if (int e = check_heads(what, *p)) return e;
  if (!p->out.data) return bad(what, "out is null");
  if (p->entries < 0 || p->entries > 2048) return bad(what, "entries must be 0 to 2048");
  if (p->entries > 0 && (p->block < 1 || !p->idx))
    return bad(what, "entries need a block of at least 1 and idx");
  if (p->window < 0) return bad(what, "window must not be negative");
  if (p->entries == 0 && p->window == 0) return bad(what, "neither a sparse nor a window branch");
  if (p->entries > 0 || (p->window > 0 && p->shared_window))
    if (int e = check_pages(what, p->kv, p->head_dim, p->v_head_dim)) return e;
  if (p->window > 0 && !p->shared_window) {
    if (!p->ring.k.data || !p->ring.v.data || !p->ring.slot) return bad(what, "ring k, v or slot is null");
    if (p->ring.length < p->window - (p->ring.fresh_k.data ? 1 : 0))
      return bad(what, "the ring is shorter than the window");
    if (!p->ring.fresh_k.data != !p->ring.fresh_v.data) return bad(what, "fresh_k without fresh_v");
  }
  return HYSPARSE_OK;
}

int check_device(const char* what) {
  const int capability = compute_capability();
  if (capability == 0) return fail(HYSPARSE_CUDA_ERROR, std::string(what) + ": no CUDA device");
  if (capability < 80)
    return fail(HYSPARSE_UNSUPPORTED, std::string(what) + ": needs a GPU of compute capability 8.0 or later");
  return HYSPARSE_OK;
}

}  // namespace

extern "C" {

size_t hysparse_cuda_decode_full_workspace(const hysparse_cuda_decode_full_params* p) {
  return check_full(p) == HYSPARSE_OK ? decode::workspace(*p) : 0;
}

int hysparse_cuda_decode_full(const hysparse_cuda_decode_full_params* p, hysparse_stream stream) {
  if (int e = check_full(p)) return e;
  if (int e = check_device("decode of a full layer")) return e;
  if (!p->workspace || p->workspace_bytes < decode::workspace(*p))
    return bad("decode of a full layer", "workspace of " + std::to_string(p->workspace_bytes) +
                                             " bytes, needs " + std::to_string(decode::workspace(*p)));
  return decode::run(*p, stream);
}

int hysparse_cuda_decode_sparse(const hysparse_cuda_decode_sparse_params* p, hysparse_stream stream) {
  if (int e = check_sparse(p)) return e;
  if (int e = check_device("decode of a sparse layer")) return e;
  return decode::run(*p, stream);
}

}  // extern "C"
