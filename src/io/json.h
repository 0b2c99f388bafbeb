// JSON for the rest of the program, behind a narrow adaptor; nlohmann-json appears only in io/*.cpp and where
// a .cpp needs free-form JSON.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/fields.h"

namespace hysparse {

// Parses with limits: depth 64, no duplicate keys, valid UTF-8; NaN/Infinity refused. Errors name `where` and
// the byte or key. (declared with nlohmann types in io/json_value.h; settings structs go through
// io/json_fields.h)

// The valid name nearest to `name` by edit distance, or "" when nothing is near; for "did you mean" hints.
std::string nearest_name(std::string_view name, const std::vector<std::string>& valid);

}  // namespace hysparse
