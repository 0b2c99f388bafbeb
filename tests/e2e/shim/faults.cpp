// Test only, for LD_PRELOAD: makes the n-th call that changes files below a folder the last one of the
// process, or makes it and all later ones fail as a full disk, a read-only mount, revoked permissions or a
// bad disk would.
//   FAULT_BELOW=DIR      only calls on paths below DIR count
//   FAULT_AT=N           which call, from 1; 0: none
//   FAULT_DO=kill | full | readonly | denied | bad
//   FAULT_REPORT=FILE    gets the number of calls, then a line for every rename of data that was not synced
// A kill inside a write leaves half of its bytes behind.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

namespace {

enum class Call { create, write, sync, rename, remove };

struct Plan {
  std::string below, report, unsynced;
  long at = 0, count = 0;
  const char* what = "";
  std::set<std::string> dirty;  // written since they were last synced
  std::mutex mutex;
};

// Never destroyed: the program writes until its very end.
Plan& plan() {
  static Plan* const p = [] {
    auto* made = new Plan;
    const auto env = [](const char* name) {
      const char* value = std::getenv(name);
      return value ? value : "";
    };
    made->below = env("FAULT_BELOW");
    made->report = env("FAULT_REPORT");
    made->at = std::atol(env("FAULT_AT"));
    made->what = env("FAULT_DO");
    return made;
  }();
  return *p;
}

std::string absolute(const char* path, int folder = AT_FDCWD) {
  if (path[0] == '/') return path;
  char base[4096] = "";
  if (folder == AT_FDCWD) {
    if (!getcwd(base, sizeof base)) return path;
  } else {
    const ssize_t n = readlink(("/proc/self/fd/" + std::to_string(folder)).c_str(), base, sizeof base - 1);
    if (n > 0) base[n] = '\0';
  }
  return std::string(base) + "/" + path;
}
std::string path_of(int fd) {
  return absolute("", fd);
}
std::string trimmed(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}
bool is_below(const std::string& path, const std::string& folder) {
  return !folder.empty() && path.compare(0, folder.size(), folder) == 0 &&
         (path.size() == folder.size() || path[folder.size()] == '/');
}

// 0: go on; else the errno to fail with. `torn` is done before a kill.
template <class Torn>
int fault(Call call, const std::string& path, Torn torn) {
  Plan& p = plan();
  const std::lock_guard lock(p.mutex);
  if (!is_below(path, p.below)) return 0;
  const long n = ++p.count;
  if (p.at <= 0 || n < p.at) return 0;
  const std::string what = p.what;
  if (what == "kill") {
    torn();
    kill(getpid(), SIGKILL);
  }
  if (what == "full") return call == Call::create || call == Call::write ? ENOSPC : 0;
  if (what == "readonly") return call == Call::sync ? 0 : EROFS;
  if (what == "denied") return call == Call::sync || call == Call::write ? 0 : EACCES;
  if (what == "bad") return call == Call::write || call == Call::sync ? EIO : 0;
  return 0;
}
int fault(Call call, const std::string& path) {
  return fault(call, path, [] {});
}
int refuse(int error) {
  errno = error;
  return -1;
}

template <class F>
F real(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}
#define REAL(name) real<decltype(&::name)>(#name)

void mark_written(const std::string& path) {
  Plan& p = plan();
  if (p.report.empty() || !is_below(path, p.below)) return;
  const std::lock_guard lock(p.mutex);
  p.dirty.insert(path);
}
void mark_synced(const std::string& path) {
  const std::lock_guard lock(plan().mutex);
  plan().dirty.erase(path);
}
void mark_renamed(const std::string& from, const std::string& to) {
  Plan& p = plan();
  const std::lock_guard lock(p.mutex);
  for (const std::string& path : p.dirty)
    if (is_below(path, trimmed(from)))
      p.unsynced += path + " was not synced before it became part of " + to + "\n";
}

int opened(const char* name, const char* path, int flags, mode_t mode) {
  if (flags & (O_CREAT | O_TRUNC))
    if (const int error = fault(Call::create, absolute(path))) return refuse(error);
  return real<int (*)(const char*, int, ...)>(name)(path, flags, mode);
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return opened("open", path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return opened("open64", path, flags, mode);
}
ssize_t write(int fd, const void* data, size_t bytes) {
  const auto next = REAL(write);
  const std::string path = path_of(fd);
  const int error = fault(Call::write, trimmed(path),
                          [&] { [[maybe_unused]] const ssize_t half = next(fd, data, bytes / 2); });
  if (error) return refuse(error);
  mark_written(trimmed(path));
  return next(fd, data, bytes);
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  const auto next = REAL(pwrite);
  const std::string path = trimmed(path_of(fd));
  const int error = fault(Call::write, path,
                          [&] { [[maybe_unused]] const ssize_t half = next(fd, data, bytes / 2, offset); });
  if (error) return refuse(error);
  mark_written(path);
  return next(fd, data, bytes, offset);
}
int fsync(int fd) {
  const std::string path = trimmed(path_of(fd));
  if (const int error = fault(Call::sync, path)) return refuse(error);
  mark_synced(path);
  return REAL(fsync)(fd);
}
int rename(const char* from, const char* to) {
  if (const int error = fault(Call::rename, absolute(to))) return refuse(error);
  mark_renamed(absolute(from), absolute(to));
  return REAL(rename)(from, to);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  if (const int error = fault(Call::rename, absolute(to, to_folder))) return refuse(error);
  mark_renamed(absolute(from, from_folder), absolute(to, to_folder));
  return REAL(renameat2)(from_folder, from, to_folder, to, flags);
}
int link(const char* from, const char* to) {
  if (const int error = fault(Call::create, absolute(to))) return refuse(error);
  return REAL(link)(from, to);
}
int mkdir(const char* path, mode_t mode) {
  if (const int error = fault(Call::create, absolute(path))) return refuse(error);
  return REAL(mkdir)(path, mode);
}
int unlink(const char* path) {
  if (const int error = fault(Call::remove, absolute(path))) return refuse(error);
  return REAL(unlink)(path);
}
int unlinkat(int folder, const char* path, int flags) {
  if (const int error = fault(Call::remove, absolute(path, folder))) return refuse(error);
  return REAL(unlinkat)(folder, path, flags);
}
int rmdir(const char* path) {
  if (const int error = fault(Call::remove, absolute(path))) return refuse(error);
  return REAL(rmdir)(path);
}
int remove(const char* path) {
  if (const int error = fault(Call::remove, absolute(path))) return refuse(error);
  return REAL(remove)(path);
}

}  // extern "C"

__attribute__((destructor)) static void report() {
  Plan& p = plan();
  if (p.report.empty()) return;
  FILE* file = std::fopen(p.report.c_str(), "w");
  if (!file) return;
  std::fprintf(file, "%ld\n%s", p.count, p.unsynced.c_str());
  std::fclose(file);
}
