// The inference engine: many requests over one model and one cache of bounded size.
//
// Threads: submit(), cancel(), stats() and every Answer may be used from any thread at any time. step() and
// check() belong to one thread at a time, the owner; EngineThread is such an owner. The engine itself starts
// no thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/answer.h"
#include "engine/engine_stats.h"
#include "engine/kv_plan.h"
#include "engine/request.h"
#include "engine/step_model.h"

namespace hysparse {

// How a choice gives its memory to others before it is done.
enum class Preemption {
  swap,       // its pages and rings move to host memory and back
  recompute,  // they are dropped and computed again
};
template <>
struct EnumNames<Preemption> {
  static const std::vector<std::pair<Preemption, std::string_view>>& list();
};

struct EngineOptions {
  int64_t context = 0;  // most tokens of prompt and answer together; 0: max_position_embeddings. Never more
                        // than the pages hold: Engine::context() is what came of it
  KvPlanOptions memory;
  int64_t step_tokens = 512;  // most tokens that go through the model at once; decoding comes first
  // A request that has waited this many steps goes before every priority.
  int64_t starvation_steps = 4096;
  Preemption preemption = Preemption::swap;
  int64_t swap_bytes = -1;  // host memory for those moved out; -1: as much as the pools; when it is used up,
                            // choices are recomputed
  int64_t max_queued = -1;  // choices; submit() refuses more (Error(failure)); -1: no limit
  bool prefix_cache = true;
  int64_t snapshot_interval = 4096;  // tokens between snapshots of the rings within a prompt
  int64_t speculate = 0;             // most tokens that n-gram look-up proposes at once; 0: none
  // A request's tokens and logprobs do not depend on its batch mates, chunk sizes or cache hits. Unset: on
  // the CPU yes, elsewhere no.
  std::optional<bool> batch_invariant;

  std::vector<int64_t> eos;     // any of them ends an answer; it is not part of the text
  int64_t tokenizer_vocab = 0;  // ids from here on are never drawn; 0: all may be
  std::function<std::string_view(int32_t token)> token_bytes;  // empty: no text is made
  std::function<double()> clock;                               // seconds; empty: the steady clock (tests)
  std::optional<double> poison;                                // PagedKvOptions::poison (tests)
#ifdef NDEBUG
  bool check_steps = false;  // check() after every step
#else
  bool check_steps = true;
#endif
};

class Engine {
 public:
  // Takes the memory that options.memory plans, at once. Keeps references. Error(input) where an option is
  // out of range or the budget holds not even one short sequence.
  Engine(Runtime& rt, StepModel& model, const EngineOptions& options = {});
  ~Engine();  // all requests end with `cancelled`
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Checks the request and puts it into the queue. Error(input) at once for what can never be served: an
  // empty prompt or one longer than context() (both numbers named), ids outside the vocabulary, an option out
  // of range, stops without token_bytes. Error(failure) when the queue is full or the engine has failed.
  std::unique_ptr<Answer> submit(Request request);
  // Wherever the request is: queued, in its prompt, decoding, moved out. Unknown and finished ids: nothing
  // happens.
  void cancel(RequestId id);

  // One forward over what is due, or nothing. False when there was nothing to do. A request's own failure
  // ends that request; what breaks the engine (the device, memory) is thrown after all requests have ended
  // with `error`, and so is every later call.
  bool step();
  // Blocks until there is work or the time is over; true when there is.
  bool wait(std::chrono::milliseconds timeout);

  EngineStats stats() const;
  const KvPlan& memory_plan() const;
  int64_t context() const;
  const StepModel& model() const;
  // Throws where the books of pages, rings, cache and choices contradict each other.
  void check() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hysparse
