// How attention reads keys and values, wherever they live. Non-owning.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/batch.h"
#include "tensor/tensor.h"

namespace hysparse {

// Key position p of sequence s, for 0 <= p < batch.kv_len(s), lies at
//   contiguous: row cu_kv[s] + p of k/v [rows, Hkv, d|dv]
//   paged:      page page_table[s * page_table_stride + p / page_size], row p % page_size
//               of k/v [pages, page_size, Hkv, d|dv]
//   ring:       p <  past_len[s]: row p % ring_len of ring slot[s] of k/v [slots, ring_len, Hkv, d|dv];
//               only the last min(ring_len, past_len[s]) committed positions are there
//               p >= past_len[s]: row cu_q[s] + (p - past_len[s]) of fresh_k/fresh_v [tokens, Hkv, d|dv]
// Everything past kv_len is undefined memory (NaN in tests) and must not influence any result.
// The innermost dimension is dense; the others are read through strides.
// Pages may be in 8 bits (i8 or f8, k and v alike): an element is code * scale, each row of a head has two
// scales, of k and of v (kernels/quantise.h). Whoever reads such a view reads the new rows in 8 bits, too.
struct KvView {
  enum class Kind : uint8_t { contiguous, paged, ring };
  Kind kind = Kind::contiguous;
  TensorView k, v;
  const int64_t* cu_kv = nullptr;       // contiguous: [S + 1]
  const int32_t* page_table = nullptr;  // paged: [S, page_table_stride]
  int64_t page_table_stride = 0;
  int64_t page_size = 0;  // a multiple of the selection block
  TensorView scales;      // pages in 8 bits: [pages, page_size, Hkv, 2] bf16
  // Of pages in 8 bits, optional: this object and no other as long as the rows of the view are the same, so
  // that a backend may keep what it has made of them.
  std::shared_ptr<const void> version;
  TensorView fresh_k, fresh_v;    // ring
  const int32_t* slot = nullptr;  // ring: [S]
  int64_t ring_len = 0;           // ring: >= window

  explicit operator bool() const { return bool(k); }
  bool in_8_bits() const { return bool(scales); }
  int64_t heads() const { return k.dim(k.rank - 2); }
  int64_t head_dim() const { return k.dim(k.rank - 1); }
  int64_t v_head_dim() const { return v.dim(v.rank - 1); }

  // Element offset of head 0 at (s, p) and the tensor it lies in. Host views only.
  struct Row {
    const TensorView* k;
    const TensorView* v;
    int64_t k_offset, v_offset;
    int64_t k_head_stride, v_head_stride;
  };
  Row row(const RaggedBatch& b, int64_t s, int64_t p) const {
    auto make = [](const TensorView& kk, const TensorView& vv, int64_t outer, int64_t inner) {
      Row r{&kk, &vv, 0, 0, kk.stride[size_t(kk.rank) - 2], vv.stride[size_t(vv.rank) - 2]};
      if (kk.rank == 4) {
        r.k_offset = outer * kk.stride[0] + inner * kk.stride[1];
        r.v_offset = outer * vv.stride[0] + inner * vv.stride[1];
      } else {
        r.k_offset = inner * kk.stride[0];
        r.v_offset = inner * vv.stride[0];
      }
      return r;
    };
    switch (kind) {
      case Kind::contiguous:
        return make(k, v, 0, cu_kv[s] + p);
      case Kind::paged:
        return make(k, v, page_table[s * page_table_stride + p / page_size], p % page_size);
      case Kind::ring:
        break;
    }
    const int64_t past = b.past_len[size_t(s)];
    if (p < past) return make(k, v, slot[s], p % ring_len);
    return make(fresh_k, fresh_v, 0, b.cu_q[size_t(s)] + (p - past));
  }
  // Number of positions from p on, at most `limit`, that follow row(s, p) at the constant row stride
  // k_row_stride().
  int64_t run_length(const RaggedBatch& b, int64_t s, int64_t p, int64_t limit) const {
    if (kind == Kind::contiguous) return limit;
    if (kind == Kind::paged) return std::min(limit, page_size - p % page_size);
    const int64_t past = b.past_len[size_t(s)];
    if (p >= past) return limit;
    return std::min({limit, ring_len - p % ring_len, past - p});
  }
  // Elements between neighbouring positions inside one run.
  static int64_t row_stride(const TensorView& t) { return t.stride[size_t(t.rank) - 3]; }
};

// What a backend makes of a selection's indices, kept for all the layers and passes that read them.
struct PreparedSelection {
  std::shared_ptr<void> data;
};

// The blocks of the past that matter to each token: `idx` [tokens, Hkv, entries] i32, ascending, padded with
// -1, counted within the sequence. Made by attention_select (or handed in), read by sparse attention.
struct Selection {
  TensorView idx;
  int64_t block = 0;
  std::shared_ptr<PreparedSelection> prepared;  // optional; whoever writes idx anew brings a new one
  int64_t entries() const { return idx.dim(2); }
  explicit operator bool() const { return bool(idx); }
};

}  // namespace hysparse
