// `hysparse eval` as a user runs it: killed and begun again, and with input that nobody can use.
#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "e2e/support.h"
#include "io/json_value.h"

namespace hysparse {
namespace {

using namespace e2e;

class Eval : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = new Folder(fast_place());
    make_small_run(*root_,
                   R"({"steps": 2, "seq_len": 64, "warmup_steps": 1, "decay_steps": 1, "eval_interval": 0,
        "checkpoint_interval": 0})");
    expect_ok("init --config " + path("config.json") + " --set max_position_embeddings=2048 --tokenizer " +
              path("tok") + " --out " + path("model"));
  }
  static void TearDownTestSuite() { delete root_; }
  static std::string path(const std::string& name) { return *root_ / name; }
  static std::string ruler(const std::string& rest) {
    return "eval ruler --quiet --model " + path("model") + " " + rest;
  }
  static Folder* root_;
};
Folder* Eval::root_ = nullptr;

size_t lines_of(const std::string& file) {
  const std::string all = read_text(file);
  return static_cast<size_t>(std::count(all.begin(), all.end(), '\n'));
}

TEST_F(Eval, AKilledRulerRunGoesOn) {
  const std::string work =
      "--lengths 1024,1536 --tasks niah_single_1,vt,fwe --samples 2 --answer-tokens 24 --out ";
  expect_ok(ruler(work + path("whole")));
  ASSERT_EQ(lines_of(path("whole/results.jsonl")), 1u + 2 * 3 * 2);
  // Killed as soon as a few samples are there, until nothing is left to kill.
  int kills = 0;
  for (size_t least = 3;; least += 5) {
    const std::string command = "sh -c '" + std::string(HYSPARSE_BINARY) + " " + ruler(work + path("cut")) +
                                " > /dev/null 2>&1 & child=$!; while kill -0 $child 2> /dev/null; do "
                                "[ \"$(wc -l < " +
                                path("cut/results.jsonl") + " 2> /dev/null || echo 0)\" -ge " +
                                std::to_string(least) +
                                " ] && kill -9 $child; sleep 0.01; done; wait $child'";
    const int status = std::system(command.c_str());
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
    ASSERT_LT(++kills, 20);
  }
  EXPECT_GE(kills, 1);
  const Result again = run(ruler(work + path("cut")));
  EXPECT_EQ(again.code, 0);
  EXPECT_NE(again.output.find("12 samples are there already"), std::string::npos) << again.output;
  EXPECT_EQ(read_text(path("cut/table.txt")), read_text(path("whole/table.txt")));
  EXPECT_EQ(read_text(path("cut/report.json")), read_text(path("whole/report.json")));
  const Json report = parse_json(read_text(path("cut/report.json")), "report");
  EXPECT_EQ(report["tasks"].size(), 6u);
  EXPECT_EQ(report["truncated"], 0);
  EXPECT_NE(read_text(path("cut/report.html")).find("niah_single_1"), std::string::npos);
  // More of everything is computed beside what is there; other settings are refused.
  expect_ok(ruler("--lengths 1024 --tasks niah_single_1,niah_single_2 --samples 4 --answer-tokens 24 --out " +
                  path("cut")));
  EXPECT_EQ(lines_of(path("cut/results.jsonl")), 1u + 12 + 2 + 4);
  expect_bad(ruler(work + path("cut") + " --seed 7"), "were made with seed 42, asked for is 7");
  expect_bad(ruler(work + path("cut") + " --dtype f64"), "dtype");
}

// BC-42. A sample that was not asked as it was made fails the run, however it came about.
TEST_F(Eval, TruncatedSamplesFailTheRun) {
  const std::string command =
      ruler("--lengths 1024 --tasks niah_single_1 --samples 2 --answer-tokens 24 --out " + path("short"));
  expect_ok(command);
  std::string lines = read_text(path("short/results.jsonl"));
  const std::string sound = "\"truncated\":false";
  const size_t at = lines.rfind(sound);
  ASSERT_NE(at, std::string::npos);
  write_text(path("short/results.jsonl"), lines.replace(at, sound.size(), "\"truncated\":true"));
  const Result r = run(command);
  EXPECT_EQ(r.code, 1) << r.output;
  EXPECT_NE(r.output.find("1 truncated"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("1 samples were truncated"), std::string::npos) << r.output;
  EXPECT_NE(read_text(path("short/report.html")).find("not sound"), std::string::npos);
}

TEST_F(Eval, RulerSaysWhatIsWrong) {
  expect_bad(ruler("--lengths 1024 --tasks niah_singel_1"), "did you mean niah_single_1?");
  expect_bad(ruler("--lengths 200 --tasks niah_single_1"), "expected at least ");
  expect_bad(ruler("--lengths 4096"), "max_position_embeddings (2048)");
  expect_bad(ruler("--lengths 0"), "expected lengths from 1");
  expect_bad(ruler("--lengths 12x"), "--lengths");
  expect_bad(ruler("--lengths 1024 --samples 0"), "--samples");
  expect_bad(ruler("--lengths 1024 --samples 99999999999"), "--samples");
  expect_bad(ruler("--lengths 1024 --essays " + path("missing.txt")), "missing.txt");
  expect_bad(ruler("--lengths 1024 --squad " + path("missing.json")), "missing.json");
  write_text(path("bad.json"), "{\"data\": 3}");
  expect_bad(ruler("--lengths 1024 --squad " + path("bad.json")), "expected a list");
  expect_bad(ruler("--lengths 1024 --hotpot " + path("bad.json")), "expected a list");
  expect_bad(ruler("--lengths 1024 --essays " + path("bad.json")), "\"text\"");
  expect_bad(ruler("--lengths 1024 --chat"), "no chat template");
  expect_bad("eval rulr", "ruler");
  expect_bad("eval", "a command is missing");
}

TEST_F(Eval, SamplesAloneInTheOriginalsForm) {
  expect_ok(ruler("--lengths 1024 --tasks vt,qa_1 --samples 2 --samples-only " + path("samples.jsonl")));
  ASSERT_EQ(lines_of(path("samples.jsonl")), 4u);
  const std::string all = read_text(path("samples.jsonl"));
  const Json first = parse_json(all.substr(0, all.find('\n')), "sample");
  for (const char* key : {"index", "task", "input", "answer_prefix", "outputs", "length", "max_new_tokens"})
    EXPECT_TRUE(first.contains(key)) << key;
  EXPECT_EQ(first["outputs"].size(), 5u);
  // A tokenizer is all it needs; lengths are the same as with the whole model.
  expect_ok("eval ruler --model " + path("tok") +
            " --lengths 1024 --tasks vt,qa_1 --samples 2 --samples-only " + path("same.jsonl"));
  EXPECT_EQ(read_text(path("same.jsonl")), all);
}

TEST_F(Eval, SamplesAloneSayHowLongTheyAre) {
  const Result r =
      run("eval ruler --model " + path("tok") +
          " --lengths 1024,2048 --tasks niah_single_1,vt --samples 3 --samples-only " + path("three.jsonl"));
  ASSERT_EQ(r.code, 0) << r.output;
  std::map<std::pair<int64_t, std::string>, std::vector<int64_t>> lengths;
  const std::string all = read_text(path("three.jsonl"));
  for (size_t begin = 0; begin < all.size(); begin = all.find('\n', begin) + 1) {
    const Json line = parse_json(all.substr(begin, all.find('\n', begin) - begin), "sample");
    lengths[{line["max_length"], line["task"]}].push_back(line["length"]);
  }
  ASSERT_EQ(lengths.size(), 4u);
  for (auto& [key, of] : lengths) {
    ASSERT_EQ(of.size(), 3u);
    std::sort(of.begin(), of.end());
    char expected[128];
    std::snprintf(expected, sizeof expected, "%8lld  %-16s %8d %8lld %10.1f %8lld\n",
                  static_cast<long long>(key.first), key.second.c_str(), 3, static_cast<long long>(of[0]),
                  double(of[0] + of[1] + of[2]) / 3, static_cast<long long>(of[2]));
    EXPECT_NE(r.output.find(expected), std::string::npos) << expected << r.output;
    EXPECT_LE(of[2], key.first);
  }
}

TEST_F(Eval, AModelsFolderWithASlashIsTheSameModel) {
  const std::string rest =
      " --lengths 1024 --tasks niah_single_1 --samples 1 --answer-tokens 24 --out " + path("slash");
  const std::string command = "eval ruler --quiet --model ";
  expect_ok(command + path("model") + rest);
  const Result again = run(command + path("model") + "/" + rest);
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_NE(again.output.find("1 samples are there already"), std::string::npos) << again.output;
  EXPECT_NE(read_text(path("slash/report.html")).find("<title>RULER: model"), std::string::npos);
}

TEST_F(Eval, ChoiceAndPerplexity) {
  std::string items;
  for (int i = 0; i < 6; ++i)
    items += "{\"context\": \"Line " + std::to_string(i) +
             ": the quick brown\", \"choices\": [\"fox jumps\", \"dog lies\"], \"gold\": 0}\n";
  write_text(path("items.jsonl"), items);
  const std::string choice = "eval choice --quiet --model " + path("model") + " ";
  const Result r = run(choice + path("items.jsonl") + " --json --out " + path("scores.jsonl"));
  ASSERT_EQ(r.code, 0) << r.output;
  const Json json = parse_json(r.output, "choice");
  EXPECT_EQ(json["items"], 6);
  EXPECT_EQ(json["chance"], 0.5);
  EXPECT_EQ(lines_of(path("scores.jsonl")), 6u);
  expect_bad(choice + path("missing.jsonl"), "missing.jsonl");
  write_text(path("bad.jsonl"), "{\"context\": \"a\"}\n");
  expect_bad(choice + path("bad.jsonl"), "bad.jsonl:1");

  const std::string rest =
      "perplexity --json --model " + path("model") + " --input " + path("text.txt") + " --max-tokens 500";
  const Result now = run("eval " + rest), before = run(rest);
  EXPECT_EQ(now.code, 0) << now.output;
  EXPECT_EQ(now.output, before.output) << "the old spelling";
  int64_t tokens = 0;
  const Json scored = parse_json(now.output, "perplexity");
  for (const Json& band : scored["by_position"]) tokens += band["tokens"].get<int64_t>();
  EXPECT_EQ(tokens, 500);
}

}  // namespace
}  // namespace hysparse
