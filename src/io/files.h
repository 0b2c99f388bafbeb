// Files as a user sees them: whole reads with clear errors, atomic publication by temp + fsync + rename.
// A path that cannot be right (missing, a folder where a file belongs, no such parent folder) is
// Error(input); whatever the machine refuses (disk full, read-only, permissions, I/O errors) on writing is
// Error(failure). Both name the path and what the system said.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace hysparse {

// The whole content; pipes and devices are read to their end. Error(input) when missing, a folder,
// unreadable.
std::string read_file(const std::filesystem::path& path);

// Whether something is there; Error where the machine does not say (no permission, a name too long, I/O
// errors).
bool file_exists(const std::filesystem::path& path);

// Writes to a temporary beside `path`, fsyncs it, renames it over `path`, fsyncs the folder. On failure the
// old file stays.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);

// Streams a file of any size with the same guarantee. A link's target is replaced, not the link; an existing
// device or pipe (/dev/stdout) is written to as it is.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();  // removes the temporary unless committed
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(const void* data, size_t bytes);  // unbuffered: hand over large pieces
  void commit();  // once; after a failed write or commit the file is gone for good

 private:
  void discard() noexcept;
  std::filesystem::path path_, temp_;  // temp_: empty for a device or pipe
  int fd_ = -1;
};

// Publishes a whole directory as a set: fill(temp_dir) writes the files, each is fsynced, then the directory
// is renamed to `path` (an existing one is swapped away atomically and removed after). A crash leaves either
// the old set or the new one, and perhaps a hidden ".<name>.tmp-..." beside it.
// What is replaced is deleted, so an existing `path` must look like an earlier publication: each of its
// entries has the name, or (files) the extension, of a new one; anything else in it, or `path` being the
// current folder or one above it, is Error(input) and nothing changes.
void publish_directory(const std::filesystem::path& path,
                       const std::function<void(const std::filesystem::path&)>& fill);

// Read-only memory map of a whole regular file; empty files map to an empty span. The file must not be
// shortened while it is mapped (files published by rename never are).
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

// The error for a failed system call on `path`: "<path>: could not <action>: <strerror>", with a hint where
// one helps.
Error io_error(const std::filesystem::path& path, std::string_view action, int error_number);

}  // namespace hysparse
