// Words that tasks are made of: lists of our own, all lower case, none in two lists.
#pragma once

#include <string_view>
#include <vector>

namespace hysparse::ruler {

const std::vector<std::string_view>& adjectives();
const std::vector<std::string_view>& nouns();
const std::vector<std::string_view>& verbs();

}  // namespace hysparse::ruler
