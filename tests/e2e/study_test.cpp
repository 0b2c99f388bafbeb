// A study as a user runs it: in one go, in pieces, and with what can go wrong.
#include <signal.h>

#include <chrono>
#include <regex>
#include <thread>

#include "e2e/support.h"

namespace hysparse {
namespace {

using namespace e2e;

const std::string kTiny = HYSPARSE_SOURCE_DIR "/examples/study/tiny.json";

// Without what a clock says.
std::string timeless(const std::string& json) {
  return std::regex_replace(json, std::regex("\"(seconds|tokens_per_second)\": [^,\n]*"), "");
}
std::string study(const std::string& out, const std::string& more = "") {
  return "study " + kTiny + " --threads 1 --jobs 2 --out " + out + " " + more;
}

TEST(Study, PiecesMakeTheSameReportAsOneGo) {
  const Folder dir(fast_place());
  expect_ok(study(dir / "whole"));
  const std::string whole = read_text(dir / "whole/report.json");
  EXPECT_NE(whole.find("\"runs_done\": 15"), std::string::npos);
  EXPECT_NE(read_text(dir / "whole/report.html").find("<svg"), std::string::npos);
  EXPECT_NE(read_text(dir / "whole/report.md").find("| hybrid_swa | 3 |"), std::string::npos);

  // A budget of next to nothing: stops cleanly, says what is left, leaves a report.
  const Result first = run(study(dir / "cut", "--budget 0.3s"));
  EXPECT_EQ(first.code, 0) << first.output;
  EXPECT_NE(first.output.find("of 15 runs are left, next "), std::string::npos) << first.output;
  EXPECT_NE(read_text(dir / "cut/report.md").find("of 15 runs are done"), std::string::npos);

  // Killed outright, twice: in the middle of runs and between them.
  for (const int milliseconds : {400, 900}) {
    const pid_t pid = fork();
    if (pid == 0) {
      const std::string command = "exec " HYSPARSE_BINARY " " + study(dir / "cut") + " >/dev/null 2>&1";
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // its runs notice and save
  }
  expect_ok(study(dir / "cut"));
  EXPECT_EQ(timeless(read_text(dir / "cut/report.json")), timeless(whole));

  // The report alone, and one run's model under the instrument.
  fs::remove(dir / "cut/report.md");
  expect_ok(study(dir / "cut", "--report"));
  EXPECT_TRUE(fs::exists(dir / "cut/report.md"));
  std::string model;
  for (const auto& e : fs::recursive_directory_iterator(dir / "whole/runs"))
    if (e.path().filename() == "2-long" && e.path().string().find("hysparse") != std::string::npos)
      model = e.path() / "model";
  const Result recall = run(
      "eval recall --threads 1 --json --samples 8 --task walk --hops 1,2 --length 64 --queries 2 --model " +
      model);
  EXPECT_EQ(recall.code, 0) << recall.output;
  EXPECT_NE(recall.output.find("\"answers\": 16"), std::string::npos) << recall.output;
  const Result oracle = run("eval oracle --threads 1 --rows 2 --task walk --hops 2 --length 64 --model " +
                            model + " --html " + (dir / "o.html"));
  EXPECT_EQ(oracle.code, 0) << oracle.output;
  EXPECT_NE(oracle.output.find("gold block, hop 2"), std::string::npos) << oracle.output;
  EXPECT_NE(read_text(dir / "o.html").find("<svg"), std::string::npos);
  write_text(dir / "text.txt", "some text");
  expect_bad("eval oracle --text " + (dir / "text.txt") + " --length abc --model " + model, "--length");
}

TEST(Study, TrainReadsRowsOfMadeTasksAsItReadsOtherData) {
  const Folder dir(fast_place());
  expect_ok(
      "data recall --task mqar --length 32 --pairs 6 --queries 4 --rows 64 --held-out-rows 8 --threads 1 "
      "--out " +
      (dir / "data"));
  write_text(dir / "config.json", R"({"attention": "hysparse", "num_hidden_layers": 3, "hidden_size": 32,
    "num_attention_heads": 2, "head_dim": 16, "intermediate_size": 48, "vocab_size": 256, "sliding_window": 4,
    "hysparse_block_size": 4, "hysparse_topk_tokens": 4, "train": {"steps": 3, "seq_len": 32,
    "global_batch_size": 4}})");
  const std::string train =
      "train --threads 1 --config " + (dir / "config.json") + " --data " + (dir / "data");
  expect_ok(train + " --out " + (dir / "run"));
  expect_ok("eval recall --threads 1 --samples 4 --task mqar --length 32 --pairs 6 --model " +
            (dir / "run/model"));
  expect_bad(train + " --set train.seq_len=16 --out " + (dir / "other"), "train.seq_len");
  expect_bad("data recall --task walk --hops 8 --length 24 --out " + (dir / "d"), "8 hops");
}

TEST(Study, AnInterruptedOneSavesAndSaysSo) {
  const Folder dir(fast_place());
  const Result r = run(study(dir / "s"), "timeout -s INT 1.2 ");
  EXPECT_TRUE(r.code == 130 || r.code == 124) << r.code << r.output;
  EXPECT_NE(r.output.find("interrupted"), std::string::npos) << r.output;
}

TEST(Study, BadFilesAndFlagsAreNamed) {
  const Folder dir(fast_place());
  expect_bad("study " + (dir / "none.json") + " --out " + (dir / "s"), "none.json");
  expect_bad(study(dir / "s", "--budget soon"), "--budget");
  expect_bad(study(dir / "s", "--run full-lr0.003-seed77"), "has no run");
  write_text(dir / "full/of/other/things", "x");
  expect_bad(study(dir / "full"), "something else");
  std::string text = read_text(kTiny);
  text.replace(text.find("\"beats\": \"hybrid_swa\""), 21, "\"beats\": \"hybrid_sva\"");
  write_text(dir / "bad.json", text);
  expect_bad("study " + (dir / "bad.json") + " --out " + (dir / "s"), "did you mean \"hybrid_swa\"");
  EXPECT_FALSE(fs::exists(dir / "s"));
  expect_bad("eval recall --model . --task walk --hops 12", "hops");
  expect_bad("eval oracle --model .", "one of --text and --task");
}

// Every run of a study that cannot work is named with what it said.
TEST(Study, ARunThatFailsIsReportedAndTheOthersGoOn) {
  const Folder dir(fast_place());
  expect_ok(study(dir / "s", "--budget 0.01s"));  // data alone
  write_text(dir / "s/runs/full-lr0.003-seed1000/run.json", "{}");
  const Result r = run(study(dir / "s"));
  EXPECT_NE(r.code, 0);
  EXPECT_NE(r.output.find("holds another run"), std::string::npos) << r.output;
}

}  // namespace
}  // namespace hysparse
