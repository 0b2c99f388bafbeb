// Regular expressions that an answer must match as a whole.
//
// Supported: literals, . (any character but a line feed), classes with ranges and negation, \d \w \s and
// their negations (ASCII), \n \r \t \f \v \0 \xHH \uHHHH and escaped punctuation, groups (capturing, (?:...)
// and named), |, * + ? {n} {n,} {n,m} with or without a lazy mark (what a pattern matches is the same), ^ at
// the beginning and $ at the end of the whole. Anything else (look-around, back-references, \b, \p{..},
// flags, anchors inside) is Error(input) naming it.
#pragma once

#include <string_view>

#include "engine/automaton.h"

namespace hysparse {

enum class PatternUse {
  whole,        // of the answer; anchors at the ends mean what is so anyway
  json_string,  // of the text of a JSON string, without its quotes: characters that JSON escapes are read in
                // their escaped form; without an anchor anything may stand at that end, as JSON Schema has it
};

Fragment build_pattern(AutomatonBuilder& builder, std::string_view pattern, PatternUse use);

// One character of `set` inside a JSON string: as itself, or by its short escape where JSON demands one.
Fragment json_characters(AutomatonBuilder& builder, const CodePointSet& set);

}  // namespace hysparse
