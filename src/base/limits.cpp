#include "base/limits.h"

#include <sched.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>

#include "base/thread_pool.h"

namespace hysparse {
namespace limits_detail {
namespace {

// The path of our group: of the v1 hierarchy with `controller`, or of v2 where that is "".
std::string own_group(const CgroupPlace& place, const std::string& controller) {
  std::ifstream file(place.self);
  for (std::string line; std::getline(file, line);) {
    const size_t a = line.find(':');
    const size_t b = a == std::string::npos ? a : line.find(':', a + 1);
    if (b == std::string::npos) continue;
    const std::string names = line.substr(a + 1, b - a - 1);
    if (controller.empty() ? names.empty()
                           : ("," + names + ",").find("," + controller + ",") != std::string::npos)
      return line.substr(b + 1);
  }
  return {};
}

// The smallest of what read(group) says, 0 = nothing, from `group` up.
template <class Number, class Read>
Number smallest_up(std::string group, Read read) {
  Number best = 0;
  while (true) {
    if (const Number n = read(group); n > 0) best = best == 0 ? n : std::min(best, n);
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos || group == "/") return best;
    group.erase(slash);
  }
}

template <class Number>
Number smaller_limit(Number a, Number b) {
  return a > 0 && b > 0 ? std::min(a, b) : std::max(a, b);
}

// CPUs granted by a quota/period pair, rounded up.
int quota_cpus(double quota, double period) {
  return quota > 0 && period > 0 && quota / period < 1e6
             ? std::max(1, static_cast<int>(std::ceil(quota / period)))
             : 0;
}

// A number, or "max" for none.
double read_number(const std::string& path) {
  std::ifstream file(path);
  double value = 0;
  return file >> value && std::isfinite(value) && value > 0 ? value : 0;
}

// v1 says "none" with the largest multiple of a page that 63 bits hold.
int64_t read_bytes(const std::string& path) {
  const double bytes = read_number(path);
  return bytes < 0x1p62 ? static_cast<int64_t>(bytes) : 0;
}

}  // namespace

int cgroup_cpus(const CgroupPlace& place) {
  const int v2 = smallest_up<int>(own_group(place, ""), [&](const std::string& group) {
    std::ifstream file(place.root + group + "/cpu.max");
    double quota = 0, period = 0;
    return file >> quota >> period ? quota_cpus(quota, period) : 0;
  });
  const int v1 = smallest_up<int>(own_group(place, "cpu"), [&](const std::string& group) {
    const std::string folder = place.root + "/cpu" + group;
    return quota_cpus(read_number(folder + "/cpu.cfs_quota_us"), read_number(folder + "/cpu.cfs_period_us"));
  });
  return smaller_limit(v1, v2);
}

int64_t cgroup_memory(const CgroupPlace& place) {
  const auto v2 = smallest_up<int64_t>(own_group(place, ""), [&](const std::string& group) {
    return read_bytes(place.root + group + "/memory.max");
  });
  const auto v1 = smallest_up<int64_t>(own_group(place, "memory"), [&](const std::string& group) {
    return read_bytes(place.root + "/memory" + group + "/memory.limit_in_bytes");
  });
  return smaller_limit(v1, v2);
}

int64_t cgroup_memory_left(const CgroupPlace& place) {
  const auto left = [](const std::string& limit, const std::string& used) -> int64_t {
    const int64_t bytes = read_bytes(limit);
    return bytes > 0 ? std::max<int64_t>(1, bytes - read_bytes(used)) : 0;
  };
  const auto v2 = smallest_up<int64_t>(own_group(place, ""), [&](const std::string& group) {
    return left(place.root + group + "/memory.max", place.root + group + "/memory.current");
  });
  const auto v1 = smallest_up<int64_t>(own_group(place, "memory"), [&](const std::string& group) {
    const std::string folder = place.root + "/memory" + group;
    return left(folder + "/memory.limit_in_bytes", folder + "/memory.usage_in_bytes");
  });
  const int64_t n = smaller_limit(v1, v2);
  return n > 0 ? n : -1;
}

}  // namespace limits_detail

int available_cpus() {
  int n = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  // The mask of a machine with more CPUs than cpu_set_t holds needs a larger buffer.
  for (int size = 1024; size <= (1 << 20); size *= 4) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(size));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(size));
    const bool ok = sched_getaffinity(0, bytes, set) == 0;
    if (ok) n = CPU_COUNT_S(bytes, set);
    CPU_FREE(set);
    if (ok) break;
  }
  if (const int limit = limits_detail::cgroup_cpus(); limit > 0) n = std::min(n, limit);
  return std::max(1, n);
}

int64_t memory_available() {
  int64_t bytes = memory_limit();
  std::ifstream file("/proc/meminfo");
  for (std::string key, rest; file >> key; std::getline(file, rest)) {
    int64_t kilobytes = 0;
    if (key == "MemAvailable:" && file >> kilobytes) bytes = std::min(bytes, kilobytes * 1024);
  }
  const int64_t group = limits_detail::cgroup_memory_left();
  return group >= 0 ? std::min(bytes, group) : bytes;
}

int64_t memory_limit() {
  struct sysinfo info {};
  int64_t machine = INT64_MAX;
  if (sysinfo(&info) == 0)
    machine = static_cast<int64_t>(info.totalram + info.totalswap) * static_cast<int64_t>(info.mem_unit);
  const int64_t group = limits_detail::cgroup_memory();
  return group > 0 ? std::min(machine, group) : machine;
}

}  // namespace hysparse
