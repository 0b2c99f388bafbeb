#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "io/files.h"
#include "support.h"

namespace hysparse {
namespace {

using namespace testing_io;
namespace fs = std::filesystem;
using Names = std::vector<std::string>;

std::function<void(const fs::path&)> files(std::vector<std::pair<std::string, std::string>> contents) {
  return [contents](const fs::path& dir) {
    for (const auto& [name, content] : contents) {
      fs::create_directories((dir / name).parent_path());
      put(dir / name, content);
    }
  };
}

Names entries(const fs::path& dir) {
  Names out;
  for (const auto& e : fs::recursive_directory_iterator(dir))
    out.push_back(e.path().lexically_relative(dir).string());
  std::sort(out.begin(), out.end());
  return out;
}

TEST(PublishDirectory, CreatesTheSet) {
  const TempDir dir;
  publish_directory(dir / "out", files({{"a.json", "1"}, {"sub/b.bin", "2"}}));
  EXPECT_EQ(entries(dir / "out"), (Names{"a.json", "sub", "sub/b.bin"}));
  EXPECT_EQ(get(dir / "out/sub/b.bin"), "2");
  EXPECT_EQ(dir.entries(), Names{"out"});
  publish_directory((dir / "slash").string() + "/", files({{"a", "1"}}));
  EXPECT_EQ(dir.entries(), (Names{"out", "slash"}));
}

TEST(PublishDirectory, ReplacesAnEarlierSetWhole) {
  const TempDir dir;
  publish_directory(dir / "out", files({{"config.json", "1"}, {"model-1.bin", "x"}, {"model-2.bin", "y"}}));
  publish_directory(dir / "out", files({{"config.json", "2"}, {"model.bin", "z"}}));
  EXPECT_EQ(entries(dir / "out"), (Names{"config.json", "model.bin"}));
  EXPECT_EQ(get(dir / "out/config.json"), "2");
  EXPECT_EQ(dir.entries(), Names{"out"});
  fs::create_directory(dir / "empty");
  publish_directory(dir / "empty", files({{"a", "1"}}));
  EXPECT_EQ(entries(dir / "empty"), Names{"a"});
}

TEST(PublishDirectory, FollowsALinkToTheRealFolder) {
  const TempDir dir;
  fs::create_directory(dir / "real");
  put(dir / "real/a.txt", "old");
  fs::create_directory_symlink(dir / "real", dir / "link");
  publish_directory(dir / "link", files({{"a.txt", "new"}}));
  EXPECT_TRUE(fs::is_symlink(dir / "link"));
  EXPECT_EQ(get(dir / "real/a.txt"), "new");
  EXPECT_EQ(dir.entries(), (Names{"link", "real"}));
}

TEST(PublishDirectory, AFailureLeavesTheOldSetAndNoTemporary) {
  const TempDir dir;
  publish_directory(dir / "out", files({{"a", "old"}}));
  for (const char* target : {"out", "fresh"}) {
    EXPECT_THROW(publish_directory(dir / target,
                                   [](const fs::path& temp) {
                                     put(temp / "a", "half");
                                     throw std::logic_error("no");
                                   }),
                 std::logic_error);
    expect_error(ErrorKind::failure, {"disk"}, [&] {
      publish_directory(dir / target, [](const fs::path& temp) {
        put(temp / "a", "half");
        throw failure("disk", "full");
      });
    });
  }
  EXPECT_EQ(dir.entries(), Names{"out"});
  EXPECT_EQ(get(dir / "out/a"), "old");
}

// What is replaced is deleted; a slip in --out must not take a user's files along.
TEST(PublishDirectory, SweepsTemporariesOfDeadProcesses) {
  const TempDir dir;
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  ASSERT_EQ(waitpid(dead, nullptr, 0), dead);
  const std::string gone = std::to_string(dead), alive = std::to_string(getppid());
  fs::create_directories(dir / (".out.tmp-" + gone + "-0"));
  put(dir / (".out.tmp-" + gone + "-0") / "a", "half");
  put(dir / (".out.tmp-" + alive + "-0"), "of a running process");
  put(dir / (".other.tmp-" + gone + "-0"), "of another target");
  put(dir / ".out.tmp-notes", "no temporary");
  publish_directory(dir / "out", files({{"a", "1"}}));
  EXPECT_EQ(dir.entries(),
            (Names{".other.tmp-" + gone + "-0", ".out.tmp-" + alive + "-0", ".out.tmp-notes", "out"}));
  write_file_atomic(dir / "other", "x");
  EXPECT_FALSE(fs::exists(dir / (".other.tmp-" + gone + "-0")));
  // Died between the renames that replace a set: both stay.
  put(dir / (".lost.tmp-" + gone + "-0"), "new");
  put(dir / (".lost.tmp-" + gone + "-0.old"), "old");
  write_file_atomic(dir / "lost", "x");
  EXPECT_EQ(get(dir / (".lost.tmp-" + gone + "-0.old")), "old");
}

TEST(PublishDirectory, RefusesToReplaceWhatIsNotItsOwn) {
  const TempDir dir;
  fs::create_directories(dir / "home/photos");
  put(dir / "home/photos/cat.jpg", "cat");
  put(dir / "home/letter.odt", "dear");
  const auto set = files({{"config.json", "1"}, {"model.bin", "2"}});
  expect_input_error({"home", "holds", "choose another folder"},
                     [&] { publish_directory(dir / "home", set); });
  EXPECT_EQ(entries(dir / "home"), (Names{"letter.odt", "photos", "photos/cat.jpg"}));
  fs::create_directory(dir / "noted");
  put(dir / "noted/config.json", "0");
  put(dir / "noted/notes.md", "mine");
  expect_input_error({"noted", "notes.md"}, [&] { publish_directory(dir / "noted", set); });
  EXPECT_EQ(get(dir / "noted/notes.md"), "mine");
  EXPECT_EQ(get(dir / "noted/config.json"), "0");
  put(dir / "file", "x");
  expect_input_error({"file", "is a file"}, [&] { publish_directory(dir / "file", set); });
  in_child([&] {
    fs::create_directories(dir / "here/below");
    fs::current_path(dir / "here/below");
    for (const char* self : {".", "..", "../../here", "./", "../below"})
      expect_input_error(
          {"current folder"}, [&] { publish_directory(self, set); }, self);
    expect_input_error({"current folder"}, [&] { publish_directory(dir / "here", set); });
    publish_directory("new", set);
    publish_directory("new", set);
    EXPECT_EQ(entries("new"), (Names{"config.json", "model.bin"}));
  });
  EXPECT_EQ(dir.entries(), (Names{"file", "here", "home", "noted"}));
}

TEST(PublishDirectory, SaysWhatIsWrong) {
  const TempDir dir;
  expect_input_error({"none/out", "there is no folder"}, [&] {
    publish_directory(dir / "none/out", files({{"a", "1"}}));
  });
  expect_input_error({"empty path"}, [&] { publish_directory("", files({{"a", "1"}})); });
  fs::permissions(dir.path(), fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read |
                                  fs::perms::others_exec);
  in_child([&] {
    become_nobody();
    expect_error(ErrorKind::failure, {"out", "Permission denied"}, [&] {
      publish_directory(dir / "out", files({{"a", "1"}}));
    });
  });
  fs::permissions(dir.path(), fs::perms::owner_all);
  EXPECT_TRUE(dir.entries().empty());
}

// A reader that opens the folder at any time finds one, and in it files of one version.
TEST(PublishDirectory, ReadersSeeTheOldSetOrTheNewOne) {
  const TempDir dir;
  const auto version = [](int v) { return files({{"a", std::to_string(v)}, {"b", std::to_string(v)}}); };
  publish_directory(dir / "out", version(0));
  std::atomic<bool> stop{false};
  std::atomic<int> absent{0}, mixed{0}, whole{0};
  std::thread reader([&] {
    const auto read_in = [](int folder, const char* name) {
      char buffer[32];
      const int fd = ::openat(folder, name, O_RDONLY | O_CLOEXEC);
      if (fd < 0) return std::string();  // already being removed
      const ssize_t n = ::read(fd, buffer, sizeof buffer);
      ::close(fd);
      return std::string(buffer, static_cast<size_t>(std::max<ssize_t>(n, 0)));
    };
    while (!stop) {
      const int folder = ::open((dir / "out").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      if (folder < 0) {
        ++absent;
        continue;
      }
      const std::string a = read_in(folder, "a"), b = read_in(folder, "b");
      ::close(folder);
      if (a.empty() || b.empty()) continue;
      ++(a == b ? whole : mixed);
    }
  });
  for (int v = 1; v <= 40; ++v) publish_directory(dir / "out", version(v));
  while (whole == 0) std::this_thread::yield();
  stop = true;
  reader.join();
  EXPECT_EQ(absent, 0);
  EXPECT_EQ(mixed, 0);
  EXPECT_EQ(get(dir / "out/a"), "40");
}

}  // namespace
}  // namespace hysparse
