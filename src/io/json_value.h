// Free-form JSON under strict rules. Only the type is declared here; a .cpp that looks inside a Json includes
// <nlohmann/json.hpp> itself.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace hysparse {

// Objects keep the order of the file. Looking a key up is linear: walk large objects (a vocabulary) by
// items().
using Json = nlohmann::ordered_json;

inline constexpr int kJsonMaxDepth = 64;

// One JSON document and nothing behind it. Refused with Error(input) naming `where` and the position or key:
// nesting over kJsonMaxDepth, duplicate keys, invalid UTF-8 (lone surrogates too), NUL bytes, NaN, Infinity
// and numbers beyond double. Stack use does not depend on the text.
Json parse_json(std::string_view text, std::string_view where);
Json read_json_file(const std::filesystem::path& path);

// Text ending in a newline when indented; indent < 0: one line without one. Throws Error(failure) for a NaN,
// an infinity or invalid UTF-8 rather than writing what parse_json would refuse.
std::string dump_json(const Json& value, int indent = 2);

}  // namespace hysparse
