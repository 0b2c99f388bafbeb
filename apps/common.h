// What every model command shares: --device, --threads, --dtype and the Runtime they describe; Ctrl-C;
// messages.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/log.h"
#include "engine/machine.h"

namespace CLI {
class App;
}

namespace hysparse {

using DeviceFlags = MachineOptions;
void add_device_flags(CLI::App& command, DeviceFlags& flags);
// --model of commands that take the model that ships where none is named.
void add_model_flag(CLI::App& command, std::string& model);
// --weights: what matrices are kept in, as weight_format_of reads it.
void add_weights_flag(CLI::App& command, std::string& format);
// --kv-cache-dtype, as parse_kv_dtype reads it.
void add_kv_dtype_flag(CLI::App& command, std::string& format);

// The machine that the flags describe, logging to stderr; HYSPARSE_CPU_LEVEL in the environment forces a SIMD
// level.
class CommandMachine : public Machine {
 public:
  explicit CommandMachine(const DeviceFlags& flags);
};

// Messages for people go to stderr; results to stdout.
Log stderr_log();

// For signal handlers: true when another signal came within the last half second. timeout(1), process groups
// and launchers deliver one request several times; only a later signal is a second request.
bool signal_is_echo();

// Set by the first SIGINT or SIGTERM; a second one ends the process at once. Installed by the first call.
const std::atomic<bool>& interrupt_flag();
// For work of which nothing is kept: from now on the first SIGINT or SIGTERM says so and ends the process at
// once, with exit code 130.
void exit_when_interrupted();

bool stdout_is_terminal();
bool stderr_is_terminal();

}  // namespace hysparse
