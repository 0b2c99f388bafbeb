// A tensor that is read a few rows at a time, from wherever it is stored: for conversions that never hold a
// model in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hysparse {

struct TensorSource {
  std::string name;
  std::vector<int64_t> shape;  // rows first; a row of a vector is one element
  // Rows [first, first + count) as f32, rounded once at most.
  std::function<void(int64_t first, int64_t count, float* out)> read;

  int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  int64_t row_size() const {
    int64_t n = 1;
    for (size_t i = 1; i < shape.size(); ++i) n *= shape[i];
    return n;
  }
};

}  // namespace hysparse
