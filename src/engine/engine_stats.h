// Figures of a running engine.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string_view>

#include "base/fields.h"

namespace hysparse {

// Why the prefix cache gave a prompt nothing.
enum class CacheMiss {
  disabled,         // the request or the engine says no
  prompt_logprobs,  // every position's logits are asked for
  unknown,          // nothing that begins so is cached
  no_snapshot,      // pages that begin so are cached, but no state of the rings among them
  evicted,          // it was cached and had to make room
  other_identity,   // cached for other weights or settings
};
inline constexpr int kCacheMisses = 6;
template <>
struct EnumNames<CacheMiss> {
  static const std::vector<std::pair<CacheMiss, std::string_view>>& list();
};

// A consistent copy from between two steps.
struct EngineStats {
  // now
  int64_t queued = 0;                 // choices that wait, those moved out included
  int64_t running = 0;                // choices with a place in the cache
  int64_t swapped = 0;                // of queued: moved to host memory
  int64_t page_size = 0;              // tokens
  int64_t pages = 0, pages_used = 0;  // pages_used: by running choices, by the prefix cache, or both
  int64_t pages_cached = 0;           // held by the prefix cache
  int64_t slots = 0;  // rings of all sparse layers for one sequence or one snapshot; 0: the model has none
  int64_t slots_running = 0, slots_snapshots = 0;
  int64_t swap_bytes = 0;  // host memory of those moved out

  // since the start
  int64_t submitted = 0, finished = 0, cancelled = 0, failed = 0;  // requests
  int64_t prompt_tokens = 0;                                       // computed
  int64_t cached_tokens = 0;                                       // taken from the prefix cache instead
  int64_t generated_tokens = 0;                                    // drawn
  int64_t drafted = 0, accepted = 0;
  int64_t cache_hits = 0;
  std::array<int64_t, kCacheMisses> cache_misses{};  // by CacheMiss
  int64_t cache_evictions = 0;                       // snapshots and ends that made room
  int64_t preempted_swap = 0, preempted_recompute = 0;
  int64_t steps = 0;
  double step_seconds = 0;       // all steps together
  double last_step_seconds = 0;  // the last one
  int64_t last_step_tokens = 0;
  // When a step last ended, or the engine last had nothing to do: a health check takes an engine that has
  // work and an old time here for hung.
  std::chrono::steady_clock::time_point last_progress{};
};

}  // namespace hysparse
