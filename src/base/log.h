// How library code reports progress: a sink handed in by the caller. No global logger.
#pragma once

#include <functional>
#include <string>

namespace hysparse {

enum class LogLevel { debug, info, warning };

// Must be callable from the thread that called into the library; empty = silent.
using Log = std::function<void(LogLevel, const std::string&)>;

inline void log(const Log& sink, LogLevel level, const std::string& message) {
  if (sink) sink(level, message);
}

}  // namespace hysparse
