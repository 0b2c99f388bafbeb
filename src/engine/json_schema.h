// JSON Schema (a subset) as an automaton over the bytes of the answers that are valid under it.
//
// Keywords: type (one or a list), properties, required, additionalProperties (false, true, or a schema where
// there are no properties), items, prefixItems, minItems, maxItems, enum, const, anyOf, allOf of one schema,
// $ref to #/$defs/... or #/definitions/... (not to itself), minLength, maxLength, pattern (the subset of
// engine/pattern.h), format (date, time, date-time, uuid, ipv4), minimum, maximum, exclusiveMinimum and
// exclusiveMaximum of integers, minProperties and maxProperties of maps. Annotations (title, description,
// default, examples, ...) are passed over. Any other keyword is Error(input) naming it and its place: an
// answer is never merely nearly valid.
//
// What is written is narrower than what is valid: properties come in the order of the schema and undeclared
// ones only in maps (additionalProperties alone); a value without a schema nests up to kFreeDepth levels;
// numbers have up to 15 digits before the point, 15 behind it and an exponent of two digits; between tokens
// stands nothing, a space, or a line feed and up to 12 spaces. In maps a key may repeat.
#pragma once

#include "engine/automaton.h"
#include "io/json_value.h"

namespace hysparse {

inline constexpr int kFreeDepth = 4;

Fragment build_json_schema(AutomatonBuilder& builder, const Json& schema);
// Any JSON object, nested up to kFreeDepth levels.
Fragment build_json_object(AutomatonBuilder& builder);

}  // namespace hysparse
