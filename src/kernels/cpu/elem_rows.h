// Cutting row-wise work into tasks by shape.
#pragma once

#include <algorithm>

#include "kernels/ops.h"

namespace hysparse::elem {

// The compute dtypes of this backend; others are refused.
inline DType simd_type(const char* op, DType t) {
  HYSPARSE_CHECK(t == DType::f32 || t == DType::bf16, "{}: this backend computes in f32 or bf16, not {}", op,
                 name_of(t));
  return t;
}

// Elements of a task: enough that handing it out is not felt, few enough to share work out evenly.
inline constexpr int64_t kTaskElements = 32 << 10;

inline int64_t rows_a_task(int64_t row_elements) {
  return std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, row_elements));
}

// fn(begin, end) over rows [0, rows), in runs of rows_a_task(row_elements).
template <class F>
void for_rows(Runtime& rt, int64_t rows, int64_t row_elements, const F& fn) {
  const int64_t run = rows_a_task(row_elements);
  rt.pool.parallel_for((rows + run - 1) / run,
                       [&](int64_t task, int) { fn(task * run, std::min(rows, (task + 1) * run)); });
}

// A view of rank 1 to 4 as rows along its last dimension; neighbouring dimensions that lie back to back count
// as one, so that dense tensors are a single row.
class Rows {
 public:
  explicit Rows(const TensorView& v) : view_(v), length_(v.rank > 0 ? v.dim(v.rank - 1) : 1) {}
  int64_t count() const { return length_ == 0 ? 0 : view_.numel() / length_; }
  int64_t length() const { return length_; }
  char* at(int64_t row) const {
    int64_t offset = 0;
    for (int i = view_.rank - 2; i >= 0; --i) {
      offset += row % view_.dim(i) * view_.stride[size_t(i)];
      row /= view_.dim(i);
    }
    return static_cast<char*>(view_.data) + offset * static_cast<int64_t>(size_of(view_.dtype));
  }

 private:
  TensorView view_;
  int64_t length_;
};

// Pieces of same-shaped views: fn(row pointers..., elements). Dense views are cut anywhere, others by rows.
template <size_t N, class F>
void for_pieces(Runtime& rt, const std::array<TensorView, N>& views, const F& fn) {
  if (views[0].numel() == 0) return;
  bool dense = true;
  for (const TensorView& v : views) dense = dense && v.contiguous();
  std::array<char*, N> at{};
  if (dense) {
    const int64_t n = views[0].numel();
    rt.pool.parallel_for((n + kTaskElements - 1) / kTaskElements, [&](int64_t task, int) {
      const int64_t begin = task * kTaskElements;
      std::array<char*, N> p = at;
      for (size_t i = 0; i < N; ++i)
        p[i] = static_cast<char*>(views[i].data) + begin * static_cast<int64_t>(size_of(views[i].dtype));
      fn(p, std::min(kTaskElements, n - begin));
    });
    return;
  }
  const Rows shape(views[0]);
  for_rows(rt, shape.count(), shape.length(), [&](int64_t begin, int64_t end) {
    std::array<char*, N> p = at;
    for (int64_t row = begin; row < end; ++row) {
      for (size_t i = 0; i < N; ++i) p[i] = Rows(views[i]).at(row);
      fn(p, shape.length());
    }
  });
}

}  // namespace hysparse::elem
