#include "io/files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include "support.h"

namespace hysparse {
namespace {

using namespace testing_io;
namespace fs = std::filesystem;

std::string text_of(const MappedFile& f) {
  return {reinterpret_cast<const char*>(f.bytes().data()), f.bytes().size()};
}

std::string pattern(size_t n) {
  std::string s(n, '\0');
  for (size_t i = 0; i < n; ++i) s[i] = static_cast<char>(i * 31 + i / 251);
  return s;
}

TEST(ReadFile, ReadsAnySize) {
  const TempDir dir;
  for (size_t n : {0u, 1u, 4095u, 4096u, 65535u, 65536u, 65537u, 1000003u}) {
    put(dir / "f", pattern(n));
    EXPECT_EQ(read_file(dir / "f"), pattern(n));
    EXPECT_EQ(text_of(MappedFile(dir / "f")), pattern(n));
  }
}

TEST(ReadFile, ReadsPipesAndProcFiles) {
  EXPECT_FALSE(read_file("/proc/self/status").empty());  // its size is said to be 0
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  const std::string want = pattern(300000);
  std::thread writer([&] { put(dir / "pipe", want); });
  EXPECT_EQ(read_file(dir / "pipe"), want);
  writer.join();
}

TEST(ReadFile, SaysWhatIsWrong) {
  const TempDir dir;
  put(dir / "file", "x");
  using Open = std::function<void(const fs::path&)>;
  for (const Open& open :
       {Open([](const fs::path& p) { read_file(p); }), Open([](const fs::path& p) { MappedFile m(p); })}) {
    expect_input_error({(dir / "none").string(), "No such file"}, [&] { open(dir / "none"); });
    expect_input_error({"no-folder/f", "there is no folder"}, [&] { open(dir / "no-folder/f"); });
    expect_input_error({"file/f", "Not a directory"}, [&] { open(dir / "file/f"); });
    expect_input_error({dir.path().string(), "is a folder, expected a file"}, [&] { open(dir.path()); });
    expect_input_error({"empty path"}, [&] { open(""); });
  }
  expect_input_error({"/dev/null", "regular file"}, [] { MappedFile m("/dev/null"); });
  fs::permissions(dir / "file", fs::perms::none);
  in_child([&] {
    become_nobody();
    expect_input_error({"file", "Permission denied", "permissions"}, [&] { read_file(dir / "file"); });
  });
}

TEST(MappedFile, MovesItsMap) {
  const TempDir dir;
  put(dir / "f", "content");
  MappedFile a(dir / "f");
  const MappedFile b(std::move(a));
  EXPECT_EQ(text_of(b), "content");
  EXPECT_TRUE(a.bytes().empty());
}

TEST(AtomicFile, ReplacesOrCreates) {
  const TempDir dir;
  write_file_atomic(dir / "f", "one");
  EXPECT_EQ(get(dir / "f"), "one");
  write_file_atomic(dir / "f", "two, longer");
  EXPECT_EQ(get(dir / "f"), "two, longer");
  write_file_atomic(dir / "f", "");
  EXPECT_EQ(get(dir / "f"), "");
  EXPECT_EQ(dir.entries(), std::vector<std::string>{"f"});
  const mode_t mask = ::umask(0);
  ::umask(mask);
  struct stat info {};
  ASSERT_EQ(::stat((dir / "f").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0666 & ~mask);
  // a name as long as names get
  const std::string long_name(255, 'n');
  write_file_atomic(dir / long_name, "x");
  EXPECT_EQ(get(dir / long_name), "x");
  // relative to the current folder
  in_child([&] {
    fs::current_path(dir.path());
    write_file_atomic("bare", "y");
    EXPECT_EQ(get(dir / "bare"), "y");
  });
}

TEST(AtomicFile, StreamsPiecesAndShowsNothingBeforeCommit) {
  const TempDir dir;
  put(dir / "f", "old");
  const std::string content = pattern(3000000);
  AtomicFile file(dir / "f");
  for (size_t i = 0; i < content.size(); i += 100001)
    file.write(content.data() + i, std::min<size_t>(100001, content.size() - i));
  file.write(nullptr, 0);
  EXPECT_EQ(get(dir / "f"), "old");
  file.commit();
  EXPECT_EQ(get(dir / "f"), content);
  EXPECT_EQ(dir.entries(), std::vector<std::string>{"f"});
  EXPECT_THROW(file.commit(), Error);
  EXPECT_THROW(file.write("x", 1), Error);
  EXPECT_EQ(get(dir / "f"), content);
}

TEST(AtomicFile, LeavesTheOldFileWhenAbandonedOrKilled) {
  const TempDir dir;
  put(dir / "f", "old");
  {
    AtomicFile file(dir / "f");
    file.write("new", 3);
  }
  EXPECT_EQ(dir.entries(), std::vector<std::string>{"f"});
  EXPECT_EQ(get(dir / "f"), "old");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    AtomicFile file(dir / "f");
    file.write("new", 3);
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(get(dir / "f"), "old");
  write_file_atomic(dir / "f", "newer");  // what the dead process left is in nobody's way
  EXPECT_EQ(get(dir / "f"), "newer");
}

TEST(AtomicFile, TwoWritersOfOneNameDoNotMix) {
  const TempDir dir;
  AtomicFile a(dir / "f"), b(dir / "f");
  a.write("aaaa", 4);
  b.write("bb", 2);
  a.commit();
  EXPECT_EQ(get(dir / "f"), "aaaa");
  b.commit();
  EXPECT_EQ(get(dir / "f"), "bb");
  EXPECT_EQ(dir.entries(), std::vector<std::string>{"f"});
}

// A limit on the file size makes write() fall short and then fail, as a full disk does.
TEST(AtomicFile, AFailedWriteRemovesTheTemporaryAndKeepsTheOldFile) {
  const TempDir dir;
  put(dir / "f", "old");
  in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100000, 100000};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    const std::string big = pattern(300000);
    expect_error(ErrorKind::failure, {(dir / "f").string(), "write", std::strerror(EFBIG)},
                 [&] { write_file_atomic(dir / "f", big); });
    AtomicFile file(dir / "f");
    expect_error(ErrorKind::failure, {"write"}, [&] { file.write(big.data(), big.size()); });
    EXPECT_EQ(dir.entries(), std::vector<std::string>{"f"});  // gone at once, not only with the object
    expect_error(ErrorKind::failure, {"after a failure"}, [&] { file.commit(); });
  });
  EXPECT_EQ(dir.entries(), std::vector<std::string>{"f"});
  EXPECT_EQ(get(dir / "f"), "old");
}

TEST(AtomicFile, SaysWhatIsWrong) {
  const TempDir dir;
  fs::create_directory(dir / "sub");
  put(dir / "file", "x");
  expect_input_error({"sub", "is a folder"}, [&] { write_file_atomic(dir / "sub", "x"); });
  expect_input_error({"sub/", "is a folder"}, [&] { write_file_atomic((dir / "sub").string() + "/", "x"); });
  expect_input_error({"none/f", "there is no folder"}, [&] { write_file_atomic(dir / "none/f", "x"); });
  expect_input_error({"file/f", "Not a directory"}, [&] { write_file_atomic(dir / "file/f", "x"); });
  expect_input_error({"empty path"}, [&] { write_file_atomic("", "x"); });
  expect_input_error({"too long"}, [&] { write_file_atomic(dir / std::string(256, 'n'), "x"); });
  fs::permissions(dir.path(), fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read |
                                  fs::perms::others_exec);
  in_child([&] {
    become_nobody();
    expect_error(ErrorKind::failure, {"file", "Permission denied", "permissions"},
                 [&] { write_file_atomic(dir / "file", "new"); });
  });
  fs::permissions(dir.path(), fs::perms::owner_all);
  EXPECT_EQ(get(dir / "file"), "x");
  EXPECT_EQ(dir.entries(), (std::vector<std::string>{"file", "sub"}));
}

TEST(IoError, HintsForWhatTheMachineRefuses) {
  const auto error = [](int number) { return io_error("dir/f.bin", "write", number); };
  for (const auto& [number, hint] : std::vector<std::pair<int, std::string>>{{ENOSPC, "free some space"},
                                                                             {EDQUOT, "free some space"},
                                                                             {EROFS, "read-only"},
                                                                             {EACCES, "permissions"},
                                                                             {EIO, ""}}) {
    const Error e = error(number);
    EXPECT_EQ(e.kind(), ErrorKind::failure);
    const std::string what = e.what();
    EXPECT_EQ(what.rfind("dir/f.bin: could not write: " + std::string(std::strerror(number)), 0), 0u) << what;
    EXPECT_NE(what.find(hint), std::string::npos) << what;
  }
  EXPECT_EQ(error(ENOENT).kind(), ErrorKind::input);
}

}  // namespace
}  // namespace hysparse
