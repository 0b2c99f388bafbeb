// Help for messages about names. JSON itself: io/json_value.h (documents) and io/json_fields.h (settings
// structs); nlohmann-json is included only by the .cpp files that need it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hysparse {

// The valid name nearest to `name` by edit distance (ignoring case), or "" when nothing is near; for "did you
// mean" hints. A dotted name is also tried by its last part, so that "lr" finds "train.lr".
std::string nearest_name(std::string_view name, const std::vector<std::string>& valid);

// `text` in double quotes for a message: control characters and broken UTF-8 escaped, cut after `limit`
// bytes.
std::string quote_text(std::string_view text, size_t limit = 80);

}  // namespace hysparse
