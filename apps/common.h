// What every model command shares: --device, --threads, --dtype and the Runtime they describe; Ctrl-C;
// messages.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "kernels/ops.h"

namespace CLI {
class App;
}

namespace hysparse {

struct DeviceFlags {
  std::string device = "cpu";
  int threads = 0;            // 0: all CPUs this process may use
  std::string dtype = "f32";  // f32 | bf16 | f64 (the float64 reference)
};
void add_device_flags(CLI::App& command, DeviceFlags& flags);

// Owns what a Runtime points to.
class Machine {
 public:
  explicit Machine(const DeviceFlags& flags);
  Runtime& runtime() { return runtime_; }
  DType compute() const { return compute_; }

 private:
  DType compute_;
  ThreadPool pool_;
  Arena scratch_;
  Runtime runtime_;
};

// Messages for people go to stderr; results to stdout.
Log stderr_log();

// For signal handlers: true when another signal came within the last half second. timeout(1), process groups
// and launchers deliver one request several times; only a later signal is a second request.
bool signal_is_echo();

// Set by the first SIGINT or SIGTERM; a second one ends the process at once. Installed by the first call.
const std::atomic<bool>& interrupt_flag();
// For work of which nothing is kept: throws Error(interrupted) once that flag is set.
void stop_if_interrupted();

bool stdout_is_terminal();
bool stderr_is_terminal();

}  // namespace hysparse
