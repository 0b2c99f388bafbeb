// What the command line's parser refuses, in this program's words.
#pragma once

#include "base/error.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace hysparse {

// Error(input) that names the flag, what was expected and what came; the hint names the nearest flag or the
// help of the command that was meant.
Error command_line_error(const CLI::App& app, const CLI::ParseError& error);

}  // namespace hysparse
