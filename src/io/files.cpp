#include "io/files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>
#include <vector>

#include "io/files_detail.h"

namespace hysparse {

using files_detail::Fd;

Error io_error(const std::filesystem::path& path, std::string_view action, int error_number) {
  std::string hint;
  ErrorKind kind = ErrorKind::failure;
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      hint = "free some space or choose another place; what was there before is untouched";
      break;
    case EROFS:
      hint = "the file system is mounted read-only; choose another place";
      break;
    case EACCES:
    case EPERM:
      hint = "check the permissions of the file and of its folder";
      break;
    case ENOENT:
    case ENOTDIR: {
      kind = ErrorKind::input;
      std::error_code ignored;
      const std::filesystem::path folder = files_detail::folder_of(path);
      if (!std::filesystem::is_directory(folder, ignored)) hint = "there is no folder " + folder.string();
      break;
    }
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
      kind = ErrorKind::input;
      break;
    default:
      break;
  }
  const std::string shown = path.empty() ? "(empty path)" : path.string();
  const std::string text = std::error_code(error_number, std::generic_category()).message();
  return Error(kind, fmt::format("{}: could not {}: {}", shown, action, text), hint);
}

bool file_exists(const std::filesystem::path& path) {
  std::error_code error;
  const bool there = std::filesystem::exists(path, error);
  if (error) throw io_error(path, "look", error.value());
  return there;
}

namespace files_detail {

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

namespace {

// What the names of all temporaries of `path` begin with.
std::string temp_prefix(const std::filesystem::path& path) {
  return fmt::format(".{}.tmp-", path.filename().string().substr(0, 180));  // file names end at 255 bytes
}

}  // namespace

std::filesystem::path temp_name(const std::filesystem::path& path, unsigned attempt) {
  return folder_of(path) / fmt::format("{}{}-{}", temp_prefix(path), ::getpid(), attempt);
}

void remove_stale_temps(const std::filesystem::path& path) noexcept {
  try {
    const std::string prefix = temp_prefix(path);
    std::vector<std::filesystem::path> stale;
    std::error_code error;
    bool only_copy = false;
    for (std::filesystem::directory_iterator it(folder_of(path), error), end; !error && it != end;
         it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (name.rfind(prefix, 0) != 0) continue;
      char* rest = nullptr;
      const long pid = std::strtol(name.c_str() + prefix.size(), &rest, 10);
      if (pid <= 0 || pid > INT32_MAX || *rest != '-') continue;
      if (::kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH) continue;
      only_copy |= name.size() > 4 && name.compare(name.size() - 4, 4, ".old") == 0;
      stale.push_back(it->path());
    }
    // Died between the two renames that stand for an exchange: these are the old set and the new one.
    if (only_copy && !std::filesystem::exists(path, error)) return;
    for (const std::filesystem::path& p : stale) std::filesystem::remove_all(p, error);
  } catch (...) {  // out of memory: they stay for the next time
  }
}

void sync_path(const std::filesystem::path& path, bool folder) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | (folder ? O_DIRECTORY : 0)));
  if (fd.get() < 0) throw io_error(path, "open to sync", errno);
  // Some file systems have no fsync for folders and say EINVAL.
  if (::fsync(fd.get()) != 0 && !(folder && errno == EINVAL)) throw io_error(path, "sync", errno);
}

}  // namespace files_detail

namespace {

// Opens for reading; on return `info` is what fstat says. Folders and missing files are the user's mistake,
// and so is a file that they may not read.
int open_to_read(const std::filesystem::path& path, struct stat& info) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  int error = errno;
  if (fd < 0) {
    const Error e = io_error(path, "open", error);
    throw error == EACCES || error == EPERM ? Error(ErrorKind::input, e.what()) : e;
  }
  const bool known = ::fstat(fd, &info) == 0;
  error = errno;
  if (known && !S_ISDIR(info.st_mode)) return fd;
  ::close(fd);
  if (!known) throw io_error(path, "examine", error);
  throw input_error(path.string(), "is a folder, expected a file");
}

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  struct stat info {};
  const Fd fd(open_to_read(path, info));
  std::string content;
  try {
    size_t used = 0;
    // One byte more than announced, so that the usual file ends in the second read without growing.
    content.resize(S_ISREG(info.st_mode) && info.st_size > 0 ? static_cast<size_t>(info.st_size) + 1 : 65536);
    while (true) {
      if (used == content.size()) content.resize(content.size() * 2);
      const ssize_t n =
          ::read(fd.get(), content.data() + used, std::min<size_t>(content.size() - used, 1u << 30));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw io_error(path, "read", errno);
      if (n == 0) break;
      used += static_cast<size_t>(n);
    }
    content.resize(used);
  } catch (const std::bad_alloc&) {
    throw failure(path.string(), "does not fit into memory");
  } catch (const std::length_error&) {
    throw failure(path.string(), "does not fit into memory");
  }
  return content;
}

void write_file_atomic(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code ignored;
  if (!path_.has_filename() || std::filesystem::is_directory(path_, ignored))
    throw input_error(path_.empty() ? "(empty path)" : path_.string(),
                      "is a folder, expected the name of a file to write");
  // A link stays one: what it points to is replaced. A device or pipe is written to as it is.
  if (std::filesystem::is_symlink(path_, ignored)) {
    const std::filesystem::path target = std::filesystem::canonical(path_, ignored);
    if (!target.empty()) path_ = target;
  }
  if (std::filesystem::exists(path_, ignored) && !std::filesystem::is_regular_file(path_, ignored)) {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd_ < 0) throw io_error(path_, "open", errno);
    return;
  }
  files_detail::remove_stale_temps(path_);
  for (unsigned attempt = 0; fd_ < 0; ++attempt) {
    temp_ = files_detail::temp_name(path_, attempt);
    fd_ = ::open(temp_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0 && errno != EEXIST) throw io_error(path_, "create", errno);
  }
}

AtomicFile::~AtomicFile() {
  discard();
}

void AtomicFile::discard() noexcept {
  if (fd_ < 0) return;
  ::close(fd_);
  if (!temp_.empty()) ::unlink(temp_.c_str());
  fd_ = -1;
}

void AtomicFile::write(const void* data, size_t bytes) {
  HYSPARSE_CHECK(fd_ >= 0, "{}: written to after commit or a failure", path_.string());
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, p, std::min<size_t>(bytes, 1u << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      discard();
      throw io_error(path_, "write", error);
    }
    p += n;
    bytes -= static_cast<size_t>(n);
  }
}

void AtomicFile::commit() {
  HYSPARSE_CHECK(fd_ >= 0, "{}: committed twice or after a failure", path_.string());
  if (temp_.empty()) {  // a device or pipe
    const int closed = ::close(std::exchange(fd_, -1));
    if (closed != 0) throw io_error(path_, "close", errno);
    return;
  }
  int synced;
  do synced = ::fsync(fd_);
  while (synced != 0 && errno == EINTR);
  const bool ok = synced == 0 && ::rename(temp_.c_str(), path_.c_str()) == 0;
  if (!ok) {
    const int error = errno;
    discard();
    throw io_error(path_, synced == 0 ? "rename the finished file to its name" : "sync", error);
  }
  ::close(fd_);  // synced already: nothing is left that could fail
  fd_ = -1;
  files_detail::sync_path(files_detail::folder_of(path_), true);
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  struct stat info {};
  const Fd fd(open_to_read(path, info));
  if (!S_ISREG(info.st_mode))
    throw input_error(path.string(), "is a pipe or device, expected a regular file");
  if (info.st_size == 0) return;
  const auto size = static_cast<size_t>(info.st_size);
  void* p = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (p == MAP_FAILED) throw io_error(path, "map", errno);
  data_ = static_cast<const std::byte*>(p);
  size_ = size;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& o) noexcept
    : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}

}  // namespace hysparse
