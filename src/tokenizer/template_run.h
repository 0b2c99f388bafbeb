// Internal to the tokenizer: runs the syntax tree of a chat template.
#pragma once

#include <ctime>

#include "tokenizer/template_parse.h"

namespace hysparse::chat {

struct RunLimits {
  int64_t steps = 1'000'000;        // expressions and statements
  size_t bytes = size_t(16) << 20;  // of the text that comes out
};

// `globals`: messages, bos_token, ... Error(input) for what the template raises itself, for values of the
// wrong kind, and past the limits. `now`: what strftime_now tells, in UTC.
Text run_template(const Block& program, Dict globals, std::time_t now, const RunLimits& limits = {});

}  // namespace hysparse::chat
