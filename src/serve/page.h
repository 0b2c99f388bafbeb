// The chat page: one file without outside assets, part of the program.
#pragma once

#include <string_view>

namespace hysparse {

std::string_view chat_page();

}  // namespace hysparse
