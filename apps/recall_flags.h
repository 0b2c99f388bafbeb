// The keys of a made task (eval/recall_task.h) as flags.
#pragma once

#include <map>
#include <string>

#include "eval/recall_task.h"

namespace CLI {
class App;
}

namespace hysparse {

struct RecallFlags {
  std::map<std::string, std::string> values;  // by key; "": not given
  RecallTask task() const;                    // valid, or Error(input)
  int64_t length(int64_t otherwise) const;    // of --length alone
};
void add_recall_flags(CLI::App& command, RecallFlags& flags);

}  // namespace hysparse
