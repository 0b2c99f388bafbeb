// A run: samples made, asked of an engine many at once, scored and kept.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "base/thread_pool.h"
#include "engine/engine.h"
#include "eval/ruler/results.h"
#include "eval/ruler/sample.h"

namespace hysparse::ruler {

struct RunOptions {
  std::vector<const Task*> tasks;
  std::vector<int64_t> lengths;  // tokens of prompt and answer, each at most the engine's context
  int64_t samples = 100;         // a task and length
  uint64_t seed = 42;
  int64_t answer_tokens = 0;  // an answer's budget; 0: each task's own
};

struct Progress {
  int64_t done = 0, total = 0;  // samples, those found at the start included
  int64_t tokens = 0;           // prompt and answer tokens of this run's samples so far
  double seconds = 0;
};

// Greedy answers to what `results` does not have yet. The engine's owner must be the caller. `stop`: ends
// with Error(interrupted) when set; what was answered is kept. Error(input) before anything is computed for a
// length beyond the engine's context or too short for a task; Error(failure) for a sample that the engine
// fails on.
void run(Engine& engine, ThreadPool& pool, const Prompter& prompter, const Materials& materials,
         const RunOptions& options, Results& results,
         const std::function<void(const Progress&)>& progress = {}, const std::atomic<bool>* stop = nullptr);

}  // namespace hysparse::ruler
