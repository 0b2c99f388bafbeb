// Samples that fit a length exactly as far as their units allow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eval/ruler/task.h"

namespace hysparse::ruler {

struct Sample {
  const Task* task = nullptr;
  int64_t length = 0, index = 0;  // length: what prompt and answer may be together
  Text text;
  std::vector<int32_t> prompt;
  int64_t answer_tokens = 0;  // the answer's budget; prompt.size() + answer_tokens <= length
  int64_t units = 0;          // of the haystack
  bool exhausted = false;     // the materials have no more units: it is shorter than it could be
  std::string form;           // Draft::form
};

// The most units whose prompt leaves room for the answer. answer_tokens 0: the task's; always at least what
// the reference answer takes. Error(input) where not even the least fits, naming the length that would do.
Sample fit_sample(const Task& task, const DraftOptions& options, int64_t answer_tokens = 0);

}  // namespace hysparse::ruler
