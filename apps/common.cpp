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

namespace hysparse {
namespace {

std::atomic<bool> interrupted{false};

void on_signal(int) {
  if (!signal_is_echo() && interrupted.exchange(true)) _exit(130);
}

DeviceFlags with_forced_level(const DeviceFlags& flags) {
  const char* level = std::getenv("HYSPARSE_CPU_LEVEL");
  if (level && flags.dtype != "f64") force_cpu_dispatch_level(level);
  return flags;
}

}  // namespace

void add_device_flags(CLI::App& command, DeviceFlags& flags) {
  command.add_option("--device", flags.device, "cpu or cuda")->capture_default_str();
  command.add_option("--threads", flags.threads, "worker threads; 0 = all CPUs this process may use")
      ->check(CLI::Range(0, Machine::kMaxThreads))
      ->capture_default_str();
  command.add_flag("--deterministic", flags.deterministic,
                   "on a GPU: equal inputs give equal bits, at some cost in speed (the CPU always does)");
  command.add_option("--dtype", flags.dtype, "compute dtype: f32, bf16, or f64 (the slow float64 reference)")
      ->capture_default_str();
}

void add_model_flag(CLI::App& command, std::string& model) {
  command.add_option("--model", model,
                     "model directory; default: the small model that ships with the program");
}

void add_weights_flag(CLI::App& command, std::string& format) {
  command
      .add_option(
          "--weights", format,
          "what matrices are kept in: dtype (as --dtype); int8: half the memory of bf16 and faster text, "
          "a little less exact (CPU); fp8: the experts of a mixture in 8 bits (CPU and GPU)")
      ->capture_default_str();
}

void add_kv_dtype_flag(CLI::App& command, std::string& format) {
  command
      .add_option(
          "--kv-cache-dtype", format,
          "what the KV cache of full layers is kept in: auto (as --dtype), int8 or fp8 (8 bits: twice "
          "the tokens of bf16)")
      ->check(CLI::IsMember({"auto", "int8", "fp8"}))
      ->capture_default_str();
}

CommandMachine::CommandMachine(const DeviceFlags& flags) : Machine(with_forced_level(flags), stderr_log()) {}

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

void exit_when_interrupted() {
  struct sigaction action {};
  action.sa_handler = [](int) {
    constexpr char kText[] = "interrupted\n";
    [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, kText, sizeof kText - 1);
    _exit(130);
  };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool stdout_is_terminal() {
  return isatty(STDOUT_FILENO) != 0;
}
bool stderr_is_terminal() {
  return isatty(STDERR_FILENO) != 0;
}

}  // namespace hysparse
