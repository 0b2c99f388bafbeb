// Limits of a container, read from cgroup files as kernels of both kinds show them.
#include "base/limits.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "tensor/tensor.h"

namespace hysparse {
namespace {

namespace fs = std::filesystem;
using limits_detail::cgroup_cpus;
using limits_detail::cgroup_memory;
using limits_detail::CgroupPlace;

class Limits : public testing::Test {
 protected:
  Limits() {
    std::string pattern = (fs::temp_directory_path() / "hysparse-limits-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
    place_ = {(root_ / "self").string(), (root_ / "cgroup").string()};
  }
  ~Limits() override { fs::remove_all(root_); }
  void self(const std::string& text) { std::ofstream(place_.self) << text; }
  void put(const std::string& file, const std::string& text) {
    const fs::path path = place_.root + "/" + file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }

  fs::path root_;
  CgroupPlace place_;
};

TEST_F(Limits, NoFilesAreNoLimit) {
  EXPECT_EQ(cgroup_cpus(place_), 0);
  EXPECT_EQ(cgroup_memory(place_), 0);
  self("garbage\n0::\n::::\n\n");
  EXPECT_EQ(cgroup_cpus(place_), 0);
}

TEST_F(Limits, WhatTheLimitsLeave) {
  EXPECT_EQ(limits_detail::cgroup_memory_left(place_), -1);
  self("0::/a/b\n");
  put("a/b/memory.max", "max");
  put("a/b/memory.current", "500");
  EXPECT_EQ(limits_detail::cgroup_memory_left(place_), -1);
  put("a/memory.max", "2000");
  put("a/memory.current", "600");
  EXPECT_EQ(limits_detail::cgroup_memory_left(place_), 1400);
  put("a/b/memory.max", "1000");
  EXPECT_EQ(limits_detail::cgroup_memory_left(place_), 500);
  put("a/b/memory.current", "1000");
  EXPECT_EQ(limits_detail::cgroup_memory_left(place_), 1);  // nothing, which is not "no limit"
  self("4:memory:/c\n");
  put("memory/c/memory.limit_in_bytes", "3000");
  put("memory/c/memory.usage_in_bytes", "100");
  EXPECT_EQ(limits_detail::cgroup_memory_left(place_), 2900);
}

TEST(Available, IsNoMoreThanTheLimit) {
  EXPECT_GT(memory_available(), 0);
  EXPECT_LE(memory_available(), memory_limit());
}

TEST_F(Limits, VersionTwoTakesTheSmallestOnTheWayUp) {
  self("0::/user.slice/job\n");
  put("user.slice/job/cpu.max", "max 100000");
  put("user.slice/job/memory.max", "max");
  EXPECT_EQ(cgroup_cpus(place_), 0);
  EXPECT_EQ(cgroup_memory(place_), 0);
  put("user.slice/cpu.max", "250000 100000");
  put("user.slice/memory.max", "2147483648");
  EXPECT_EQ(cgroup_cpus(place_), 3);  // 2.5, rounded up
  EXPECT_EQ(cgroup_memory(place_), int64_t(2) << 30);
  put("user.slice/job/cpu.max", "150000 100000");
  put("user.slice/job/memory.max", "1073741824");
  EXPECT_EQ(cgroup_cpus(place_), 2);
  EXPECT_EQ(cgroup_memory(place_), int64_t(1) << 30);
  put("user.slice/job/cpu.max", "10000 100000");
  EXPECT_EQ(cgroup_cpus(place_), 1);  // never none
}

TEST_F(Limits, VersionOneHasAFolderAController) {
  self("8:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n");
  put("cpu/docker/abc/cpu.cfs_quota_us", "-1");
  put("cpu/docker/abc/cpu.cfs_period_us", "100000");
  put("memory/docker/abc/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_EQ(cgroup_cpus(place_), 0);
  EXPECT_EQ(cgroup_memory(place_), 0);
  put("cpu/docker/abc/cpu.cfs_quota_us", "200000");
  put("memory/docker/abc/memory.limit_in_bytes", "536870912");
  EXPECT_EQ(cgroup_cpus(place_), 2);
  EXPECT_EQ(cgroup_memory(place_), 512 << 20);
}

// Inside a container the group's path is the host's, and only the root of the mount is ours.
TEST_F(Limits, AGroupOutsideTheMountReadsItsRoot) {
  self("0::/../../somewhere/else\n");
  put("cpu.max", "100000 100000");
  put("memory.max", "1048576");
  EXPECT_EQ(cgroup_cpus(place_), 1);
  EXPECT_EQ(cgroup_memory(place_), 1 << 20);
}

TEST_F(Limits, OddContentIsNoLimit) {
  self("0::/\n");
  for (const char* text :
       {"", "max", "x 100000", "100000 0", "0 100000", "-5 100000", "1e300 1", "nan 1", "100000"}) {
    put("cpu.max", text);
    EXPECT_EQ(cgroup_cpus(place_), 0) << text;
  }
  for (const char* text : {"", "x", "-1", "0", "nan", "1e300"}) {
    put("memory.max", text);
    EXPECT_EQ(cgroup_memory(place_), 0) << text;
  }
}

TEST(MemoryLimit, WhatCannotFitIsRefusedBeforeItIsTouched) {
  const int64_t limit = memory_limit();
  ASSERT_GT(limit, int64_t(64) << 20);
  try {
    const Tensor t(DType::u8, {limit + 1});
    ADD_FAILURE() << "was allocated";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::failure);
    EXPECT_NE(std::string(e.what()).find(std::to_string(limit)), std::string::npos) << e.what();
  }
  const Tensor fits(DType::u8, {1024});
  EXPECT_THROW(Tensor(DType::u8, {limit - 512}), Error);
}

}  // namespace
}  // namespace hysparse
