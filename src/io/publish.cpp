// publish_directory: a set of files that appears at once or not at all.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <set>
#include <system_error>

#include "io/files.h"
#include "io/files_detail.h"

namespace hysparse {
namespace {

namespace fs = std::filesystem;

// The folder to create or replace, free of links and trailing slashes.
fs::path resolve_target(const fs::path& path) {
  if (path.empty()) throw input_error("(empty path)", "expected the name of a folder to write");
  std::error_code error;
  if (!fs::exists(path, error)) return path.has_filename() ? path : path.parent_path();
  if (!fs::is_directory(path)) throw input_error(path.string(), "is a file, expected a folder to write");
  const fs::path target = fs::canonical(path);
  const fs::path here = fs::current_path();
  if (std::mismatch(target.begin(), target.end(), here.begin(), here.end()).first == target.end())
    throw input_error(path.string(), "is the current folder or one above it and would be replaced",
                      "name a folder of its own");
  return target;
}

// The old set is deleted after the swap: never delete what is not of its kind.
void check_replaceable(const fs::path& old_set, const fs::path& new_set) {
  std::set<std::string> names, extensions;
  for (const auto& e : fs::directory_iterator(new_set)) {
    names.insert(e.path().filename().string());
    if (!e.is_directory()) extensions.insert(e.path().extension().string());
  }
  for (const auto& e : fs::directory_iterator(old_set)) {
    const std::string name = e.path().filename().string();
    if (names.count(name) || (!e.is_directory() && extensions.count(e.path().extension().string()))) continue;
    throw input_error(
        old_set.string(),
        fmt::format("would be replaced, but holds {}, which is nothing that is written there", name),
        "choose another folder or empty this one");
  }
}

void sync_tree(const fs::path& root) {
  for (const auto& e : fs::recursive_directory_iterator(root)) {
    if (e.is_symlink()) continue;
    if (e.is_directory() || e.is_regular_file()) files_detail::sync_path(e.path(), e.is_directory());
  }
  files_detail::sync_path(root, true);
}

// Puts `temp` in the place of the folder `target`; afterwards the old set is at the returned path.
fs::path swap_in(const fs::path& temp, const fs::path& target) {
  if (::renameat2(AT_FDCWD, temp.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) return temp;
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) throw io_error(target, "replace", errno);
  // No atomic exchange here (NFS, FUSE): between the two renames the set is missing, but both are complete on
  // disk.
  const fs::path aside = temp.string() + ".old";
  if (::rename(target.c_str(), aside.c_str()) != 0) throw io_error(target, "move aside", errno);
  if (::rename(temp.c_str(), target.c_str()) != 0) {
    const int error = errno;
    ::rename(aside.c_str(), target.c_str());
    throw io_error(target, "replace", error);
  }
  return aside;
}

}  // namespace

void publish_directory(const fs::path& path, const std::function<void(const fs::path&)>& fill) {
  const fs::path target = resolve_target(path);
  files_detail::remove_stale_temps(target);
  fs::path temp;
  for (unsigned attempt = 0;; ++attempt) {
    temp = files_detail::temp_name(target, attempt);
    if (::mkdir(temp.c_str(), 0777) == 0) break;
    if (errno != EEXIST) throw io_error(path, "create", errno);
  }
  fs::path old_set;
  try {
    fill(temp);
    sync_tree(temp);
    std::error_code error;
    if (fs::is_directory(target, error)) {
      check_replaceable(target, temp);
      old_set = swap_in(temp, target);
    } else if (::rename(temp.c_str(), target.c_str()) != 0) {
      throw io_error(path, "rename the finished folder to its name", errno);
    }
    files_detail::sync_path(files_detail::folder_of(target), true);
  } catch (const fs::filesystem_error& e) {
    std::error_code ignored;
    if (old_set.empty()) fs::remove_all(temp, ignored);
    throw io_error(e.path1().empty() ? path : e.path1(), "read the folder", e.code().value());
  } catch (...) {
    std::error_code ignored;
    if (old_set.empty()) fs::remove_all(temp, ignored);
    throw;
  }
  if (old_set.empty()) return;
  std::error_code error;
  fs::remove_all(old_set, error);
  if (error) throw io_error(old_set, "remove the replaced set (the new one is in place)", error.value());
}

}  // namespace hysparse
