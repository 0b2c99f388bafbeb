#include "comm/comm.h"

#include "base/error.h"

namespace hysparse {
namespace {

void same(const TensorView& in, const TensorView& out) {
  HYSPARSE_CHECK(in.data == out.data, "one process has nothing to move, and these tensors are two");
}

// A piece is the whole; callers hand in the same memory, so nothing moves and no kind of memory is asked for.
class SelfComm final : public Comm {
 public:
  std::string name() const override { return "self"; }
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_reduce(const TensorView& x, Reduce) override { check_reduce(x); }
  void reduce_scatter(const TensorView& in, const TensorView& out) override {
    check_pieces(in, out, 1);
    same(in, out);
  }
  void all_gather(const TensorView& in, const TensorView& out) override {
    check_pieces(out, in, 1);
    same(in, out);
  }
  void all_to_all(const TensorView& in, const TensorView& out) override {
    check_pieces(in, out, 1);
    same(in, out);
  }
  void broadcast(const TensorView& x, int root) override {
    check_reduce(x);
    HYSPARSE_CHECK(root == 0, "broadcast from rank {} of 1", root);
  }
  void barrier() override {}
  Comm& host() override { return *this; }
};

}  // namespace

void Comm::all_reduce_values(std::span<double> values, Reduce op) {
  if (size() == 1 || values.empty()) return;
  host().all_reduce(TensorView(values.data(), DType::f64, {std::ssize(values)}), op);
}

bool Comm::any(bool here) {
  double value = here ? 1.0 : 0.0;
  all_reduce_values(std::span(&value, 1), Reduce::max);
  return value != 0.0;
}

Comm& self_comm() {
  static SelfComm comm;
  return comm;
}

void check_reduce(const TensorView& x) {
  HYSPARSE_CHECK(x.contiguous(), "ranks share contiguous tensors, not {}", x.describe());
  HYSPARSE_CHECK(
      x.dtype == DType::f64 || x.dtype == DType::f32 || x.dtype == DType::bf16 || x.dtype == DType::i64,
      "ranks share f64, f32, bf16 or i64, not {}", x.describe());
}

void check_pieces(const TensorView& whole, const TensorView& piece, int size) {
  check_reduce(whole);
  check_reduce(piece);
  HYSPARSE_CHECK(whole.dtype == piece.dtype && whole.numel() == piece.numel() * size, "{} is not {} times {}",
                 whole.describe(), size, piece.describe());
}

}  // namespace hysparse
