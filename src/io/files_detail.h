// Internal to io: what files.cpp and publish.cpp share.
#pragma once

#include <filesystem>

namespace hysparse::files_detail {

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd();
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

std::filesystem::path folder_of(const std::filesystem::path& path);  // "." for a bare name
// A hidden name beside `path`, another one for each attempt.
std::filesystem::path temp_name(const std::filesystem::path& path, unsigned attempt);
// Removes temporaries of `path` that processes which no longer run left behind. Never throws.
void remove_stale_temps(const std::filesystem::path& path) noexcept;
void sync_path(const std::filesystem::path& path, bool folder);

}  // namespace hysparse::files_detail
