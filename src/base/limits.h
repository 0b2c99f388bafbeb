// What this process may use of the machine: memory, and (available_cpus() of base/thread_pool.h) CPUs, as the
// affinity mask and cgroups (v1, v2) allow.
#pragma once

#include <cstdint>
#include <string>

namespace hysparse {

// Bytes this process may use: the machine's memory and swap, or the smallest cgroup memory limit where that
// is less.
int64_t memory_limit();
// Bytes of that which nobody uses now, as far as the system says: what it calls available, or what the cgroup
// limits leave where that is less.
int64_t memory_available();

namespace limits_detail {

// Where the system shows cgroups; tests have their own.
struct CgroupPlace {
  std::string self = "/proc/self/cgroup";
  std::string root = "/sys/fs/cgroup";
};

// The smallest limit on the way from our group to the root of the hierarchy; 0 = none. Inside a container the
// group's path may not exist below the mount: then only what exists counts.
int cgroup_cpus(const CgroupPlace& place = {});
int64_t cgroup_memory(const CgroupPlace& place = {});
// The least that any limit on that way leaves; -1 = no limit. Memory of the page cache counts as used.
int64_t cgroup_memory_left(const CgroupPlace& place = {});

}  // namespace limits_detail
}  // namespace hysparse
