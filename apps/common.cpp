#include "common.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "base/error.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

namespace hysparse {
namespace {

std::atomic<bool> interrupted{false};

void on_signal(int) {
  if (!signal_is_echo() && interrupted.exchange(true)) _exit(130);
}

DType parse_compute(const DeviceFlags& f) {
  if (f.device == "cuda")
    throw input_error("--device", "this version runs models on the CPU only", "use --device cpu");
  if (f.device != "cpu") throw expected_error("--device", "cpu or cuda", f.device);
  if (f.dtype == "f32") return DType::f32;
  if (f.dtype == "bf16") return DType::bf16;
  if (f.dtype == "f64") return DType::f64;
  throw expected_error("--dtype", "f32, bf16 or f64", f.dtype);
}

const Ops& choose_ops(DType compute) {
  if (compute == DType::f64) return ref_ops();
  if (const char* level = std::getenv("HYSPARSE_CPU_LEVEL")) force_cpu_dispatch_level(level);
  return cpu_ops();
}

}  // namespace

void add_device_flags(CLI::App& command, DeviceFlags& flags) {
  command.add_option("--device", flags.device, "cpu or cuda")->capture_default_str();
  command.add_option("--threads", flags.threads, "worker threads; 0 = all CPUs this process may use")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command.add_option("--dtype", flags.dtype, "compute dtype: f32, bf16, or f64 (the slow float64 reference)")
      ->capture_default_str();
}

Machine::Machine(const DeviceFlags& flags)
    : compute_(parse_compute(flags)),
      pool_(flags.threads),
      scratch_(),
      runtime_{pool_, scratch_, choose_ops(compute_), host_memory(), stderr_log()} {}

Log stderr_log() {
  return [](LogLevel level, const std::string& message) {
    if (level == LogLevel::debug) return;
    std::fprintf(stderr, "%s%s\n", level == LogLevel::warning ? "warning: " : "", message.c_str());
  };
}

bool signal_is_echo() {
  static std::atomic<int64_t> last{INT64_MIN / 2};
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t ns = int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
  return ns - last.exchange(ns) < 500'000'000;
}

const std::atomic<bool>& interrupt_flag() {
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_handler = on_signal;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    return true;
  }();
  (void)installed;
  return interrupted;
}

void stop_if_interrupted() {
  if (interrupt_flag().load()) throw Error(ErrorKind::interrupted, "interrupted");
}

bool stdout_is_terminal() {
  return isatty(STDOUT_FILENO) != 0;
}
bool stderr_is_terminal() {
  return isatty(STDERR_FILENO) != 0;
}

}  // namespace hysparse
