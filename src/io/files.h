// Files as a user sees them: whole reads with clear errors, atomic publication by temp + fsync + rename.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "base/error.h"

namespace hysparse {

std::string read_file(const std::filesystem::path& path);  // Error(input) when missing, a folder, unreadable
// Writes to a temporary beside `path`, fsyncs it, renames it over `path`, fsyncs the folder. On failure the
// old file stays.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);

// Streams a file of any size with the same guarantee.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();  // removes the temporary unless committed
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(const void* data, size_t bytes);
  void commit();

 private:
  std::filesystem::path path_, temp_;
  int fd_ = -1;
};

// Publishes a whole directory as a set: fill(temp_dir) writes the files, each is fsynced, then the directory
// is renamed to `path` (an existing one is swapped away atomically and removed after). A crash leaves either
// the old set or the new one.
void publish_directory(const std::filesystem::path& path,
                       const std::function<void(const std::filesystem::path&)>& fill);

// Read-only memory map of a whole file; empty files map to an empty span.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& o) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace hysparse
