// The parts of `hysparse bench`.
#pragma once

#include <vector>

#include "bench_report.h"
#include "kernels/ops.h"
#include "model/weights.h"
#include "train/run_config.h"

namespace hysparse {

class Model;
class Session;

struct BenchSettings {
  DType compute = DType::f32;
  WeightFormat weights = WeightFormat::compute;
  KvDtype kv_dtype = KvDtype::compute;
  int repeats = 5;
  double seconds = 0.3;    // at least this long a run of a kernel
  int64_t context = 4096;  // of prefill and decode
  int64_t chunk = 512;
  int64_t attention_tokens = 32768;
  int64_t decode_tokens = 16;                    // a run
  std::vector<int64_t> requests = {1, 2, 4, 8};  // of the engine at once
  std::vector<int64_t> batches;                  // of decode; empty: one sequence, its logits to the host
  int64_t prompt_tokens = 0;                     // of each of them; 0: 128, or a quarter of the context
  int64_t answer_tokens = 0;  // of the engine's requests: from prompt to last token instead of decoding alone
  bool step_profile = false;  // also the time of a step or a prefill by kernel family
};

// A model to measure: random weights of a config.
struct BenchModel {
  std::string name;       // of the config
  std::string attention;  // what it is, or which twin
  RunConfig config;
};

// Prints which kernel each attention operation takes; capability 90: as on a GPU of compute capability 9.0,
// which need not be here; 0: the one that is here.
void list_kernels(const BenchModel& model, const std::string& device, DType compute, int capability);
void bench_kernels(Runtime& rt, const BenchModel& model, const BenchSettings& settings, BenchReport& report);
// The model's products beside oneDNN's own best; needs a build with oneDNN.
void bench_gemm(Runtime& rt, const BenchModel& model, const BenchSettings& settings, BenchReport& report);
// Tokens a second of whole optimiser steps, at the config's row length and batch.
void bench_train(Runtime& rt, const BenchModel& model, const BenchSettings& settings, BenchReport& report);
// Prefill of `context` tokens in chunks, and decode behind them; `prefill`, `decode`: which to report.
void bench_inference(Runtime& rt, const BenchModel& model, const BenchSettings& settings, bool prefill,
                     bool decode, BenchReport& report);

// The decode part of it: behind the session's prompt; or in batches of sequences with `context` tokens each.
// A batch whose cache does not fit is named and left out.
void bench_decode(Runtime& rt, Session& session, Model& model, const BenchSettings& settings,
                  std::vector<std::pair<std::string, std::string>> shape, BenchReport& report);
void bench_batched_decode(Runtime& rt, Model& model, const BenchSettings& settings,
                          const std::vector<std::pair<std::string, std::string>>& shape, BenchReport& report);
std::vector<int32_t> random_tokens(int64_t n, int64_t vocab, uint64_t seed);

// Tokens a second of settings.requests at once, and the first token of a prompt of `context` tokens without
// and with its prefix in the cache.
void bench_engine(Runtime& rt, const BenchModel& model, const BenchSettings& settings, BenchReport& report);

}  // namespace hysparse
