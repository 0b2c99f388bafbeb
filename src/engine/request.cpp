#include "engine/request.h"

#include "engine/engine.h"

namespace hysparse {

const std::vector<std::pair<FinishReason, std::string_view>>& EnumNames<FinishReason>::list() {
  static const std::vector<std::pair<FinishReason, std::string_view>> names = {
      {FinishReason::stop, "stop"},
      {FinishReason::eos, "eos"},
      {FinishReason::length, "length"},
      {FinishReason::cancelled, "cancelled"},
      {FinishReason::error, "error"}};
  return names;
}

const std::vector<std::pair<CacheMiss, std::string_view>>& EnumNames<CacheMiss>::list() {
  static const std::vector<std::pair<CacheMiss, std::string_view>> names = {
      {CacheMiss::disabled, "disabled"}, {CacheMiss::prompt_logprobs, "prompt_logprobs"},
      {CacheMiss::unknown, "unknown"},   {CacheMiss::no_snapshot, "no_snapshot"},
      {CacheMiss::evicted, "evicted"},   {CacheMiss::other_identity, "other_identity"}};
  return names;
}

const std::vector<std::pair<Preemption, std::string_view>>& EnumNames<Preemption>::list() {
  static const std::vector<std::pair<Preemption, std::string_view>> names = {
      {Preemption::swap, "swap"}, {Preemption::recompute, "recompute"}};
  return names;
}

}  // namespace hysparse
