#include "engine/ngram.h"

#include <algorithm>

#include "base/error.h"

namespace hysparse {

void NgramOptions::check() const {
  if (shortest < 1)
    throw expected_error("speculation: shortest", "at least 1 token", std::to_string(shortest));
  if (longest < shortest)
    throw expected_error("speculation: longest", fmt::format("at least shortest ({})", shortest),
                         std::to_string(longest));
  if (draft < 0) throw expected_error("speculation: draft", "a count >= 0", std::to_string(draft));
}

std::vector<int32_t> propose_ngram(std::span<const int32_t> tokens, const NgramOptions& options) {
  const auto n = static_cast<int64_t>(tokens.size());
  // The longest tail wins, so one pass from the back over all ends of earlier occurrences is enough: `best`
  // is the longest match so far, and only a longer one replaces a later one.
  int64_t best = options.shortest - 1, end = -1;
  for (int64_t e = n - 1; e >= options.shortest && best < options.longest; --e) {  // tokens[.. e) precede
    const int64_t most = std::min(options.longest, e);
    int64_t length = 0;
    while (length < most &&
           tokens[static_cast<size_t>(e - 1 - length)] == tokens[static_cast<size_t>(n - 1 - length)])
      ++length;
    if (length > best) best = length, end = e;
  }
  std::vector<int32_t> out;
  if (end < 0) return out;
  // Past the end of the sequence the draft itself goes on: what was found repeats with its period.
  const int64_t period = n - end;
  for (int64_t i = 0; i < options.draft; ++i)
    out.push_back(end + i < n ? tokens[static_cast<size_t>(end + i)] : out[static_cast<size_t>(i - period)]);
  return out;
}

}  // namespace hysparse
