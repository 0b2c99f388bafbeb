// What commands that read or write text share, beside the model itself.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "engine/text_model.h"

namespace hysparse {

// `log` without what a reader of results does not need to know.
Log warnings_only(const Log& log);

// Token ids out of "1 2 3", "1,2,3" or "[1, 2, 3]"; Error(input) naming `where`.
std::vector<int32_t> parse_ids(std::string_view text, const std::string& where);

}  // namespace hysparse
