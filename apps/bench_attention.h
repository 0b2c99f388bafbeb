// Timings of the attention operations of a backend, as plain numbers.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/ops.h"

namespace hysparse {

struct AttentionBenchOptions {
  DType dtype = DType::f32;
  int runs = 5;             // timed runs a row, after one that is not; the median counts
  int64_t longest = 32768;  // longest sequence
  int64_t query_heads = 8, kv_heads = 2;
  std::vector<int64_t> head_dims = {64, 128};
};

struct AttentionBenchRow {
  std::string name;    // "attention", "attention + selection", "sparse", "window", "decode attention", ...
  std::string shape;   // "T 8192, heads 8/2, d 64"
  double seconds = 0;  // median
  std::vector<double> runs;       // seconds of each
  double flops = 0;               // of one call
  double gflops = 0;              // useful: causal pairs or selected keys only; backward 2.5x forward
  double gigabytes_a_second = 0;  // decode: keys and values read
  double fraction_of_peak = 0;    // gflops / peak_gflops where both are known
};

// One full layer that selects and three sparse layers (sparse + window + gates), against four full layers.
struct AttentionStackRow {
  std::string name;  // "forward", "backward"
  std::string shape;
  double full_seconds = 0;      // four full layers
  double hysparse_seconds = 0;  // 1 + 3
  double ratio = 0;             // full / hysparse
};

struct AttentionBench {
  double peak_gflops = 0;  // f32 multiply-adds of this machine on these threads; 0 where unknown
  std::vector<AttentionBenchRow> rows;
  std::vector<AttentionStackRow> stacks;
};

// peak_gflops: as measured by the caller, 0 if unknown. `on_row` is told each row as soon as it is known.
AttentionBench bench_attention(Runtime& rt, const AttentionBenchOptions& options, double peak_gflops,
                               const std::function<void(const AttentionBenchRow&)>& on_row);

}  // namespace hysparse
