// The program as a user meets it: every command on a tiny model, exit codes, and one truth across the modes
// of `logits`.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>

#include "e2e/support.h"
#include "io/json_value.h"
#include "io/safetensors.h"

namespace hysparse {
namespace {

using namespace e2e;

// A tiny run made once: text, tokenizer, data, config, 12 steps of training.
class Cli : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = fs::temp_directory_path() / ("hysparse-e2e-" + std::to_string(std::random_device{}()));
    fs::create_directories(root_);
    std::ofstream text(root_ / "text.txt");
    for (int i = 0; i < 1500; ++i)
      text << "Line " << i * 7919 % 1000 << ": the quick brown fox jumps over the lazy dog.\n";
    text.close();
    std::ofstream(root_ / "config.json") << R"({
      "num_hidden_layers": 5, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
      "intermediate_size": 48, "vocab_size": 320, "max_position_embeddings": 512, "attention": "hysparse", "full_attention_interval": 3,
      "sliding_window": 8, "hysparse_block_size": 8, "hysparse_topk_tokens": 16, "tie_word_embeddings": true,
      "train": {"steps": 12, "seq_len": 64, "lr": 0.003, "warmup_steps": 2, "decay_steps": 4, "eval_interval": 6, "eval_tokens": 256,
                "checkpoint_interval": 6, "log_interval": 1}})";
    expect_ok("tokenizer train --input " + path("text.txt") + " --vocab-size 320 --out " + path("tok"));
    expect_ok("data prepare --tokenizer " + path("tok") + " --input " + path("text.txt") + " --out " +
              path("data") + " --holdout 0.1");
    expect_ok("train --config " + path("config.json") + " --data " + path("data") + " --out " + path("run"));
  }
  static void TearDownTestSuite() { fs::remove_all(root_); }

  static std::string path(const std::string& name) { return (root_ / name).string(); }
  static fs::path root_;
};
fs::path Cli::root_;

// Many prompts at once say what each says alone, in the order of the file, under any settings of the engine.
TEST_F(Cli, BatchAnswersAFileOfPrompts) {
  std::string lines;
  for (int i = 0; i < 6; ++i)
    lines += R"({"id": "p)" + std::to_string(i) + R"(", "prompt": "Line )" + std::to_string(i * 7919 % 1000) +
             R"(: the quick", "max_new_tokens": )" + std::to_string(3 + 4 * i) + R"(, "seed": )" +
             std::to_string(i) + (i == 2 ? ", \"n\": 3" : "") + "}\n";
  write_text(path("prompts.jsonl"), lines);
  const std::string batch =
      "batch --model " + path("run/model") + " " + path("prompts.jsonl") + " --dtype f64 ";
  const Result all = run(batch);
  ASSERT_EQ(all.code, 0) << all.output;
  std::istringstream answers(all.output);
  std::string line;
  int count = 0;
  for (; std::getline(answers, line); ++count) {
    const Json json = parse_json(line, "answer");
    EXPECT_EQ(json["index"], count);
    EXPECT_EQ(json["id"], "p" + std::to_string(count));
    ASSERT_EQ(json["choices"].size(), count == 2 ? 3u : 1u);
    const Result alone = run("generate --model " + path("run/model") + " --prompt \"Line " +
                             std::to_string(count * 7919 % 1000) + ": the quick\" --max-new-tokens " +
                             std::to_string(3 + 4 * count) + " --dtype f64 --seed " + std::to_string(count));
    EXPECT_EQ(json["choices"][0]["text"].get<std::string>() + "\n", alone.output);
  }
  EXPECT_EQ(count, 6);
  for (const char* how :
       {"--max-sequences 1 --no-prefix-cache", "--step-tokens 7 --speculate 4 --kv-memory 200KB",
        "--preemption recompute --snapshot-interval 8 --kv-memory 200KB"}) {
    const Result other = run(batch + how);
    ASSERT_EQ(other.code, 0) << other.output;
    std::istringstream a(all.output), b(other.output);
    for (std::string x, y; std::getline(a, x) && std::getline(b, y);)
      EXPECT_EQ(parse_json(x, "a")["choices"], parse_json(y, "b")["choices"]) << how;
  }
  write_text(path("bad.jsonl"), "{\"prompt\": \"a\"}\n{\"promt\": \"a\"}\n");
  expect_bad("batch --model " + path("run/model") + " " + path("bad.jsonl"), "line 2");
  write_text(path("bad.jsonl"), "{\"prompt\": \"a\", \"temprature\": 1}\n");
  expect_bad("batch --model " + path("run/model") + " " + path("bad.jsonl"), "did you mean temperature?");
  write_text(path("bad.jsonl"), "{\"tokens\": [1, 320]}\n");
  expect_bad("batch --model " + path("run/model") + " " + path("bad.jsonl"), "line 1");
  expect_bad(batch + "--kv-memory 1KB", "kv_memory");
  expect_bad(batch + "--preemption maybe", "--preemption");
}

TEST_F(Cli, TrainedModelWorksInEveryCommand) {
  expect_ok("generate --model " + path("run/model") + " --prompt \"Line 1\" --max-new-tokens 8 --seed 3");
  expect_ok("perplexity --model " + path("run/model") + " --input " + path("text.txt"));
  expect_ok("perplexity --model " + path("run/model") + " --input " + path("text.txt") + " --weights int8");
  expect_ok("generate --model " + path("run/model") +
            " --prompt \"Line 1\" --max-new-tokens 8 --weights int8");
  const Result refused = run("generate --model " + path("run/model") + " --prompt a --weights int4");
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_NE(refused.output.find("weights: expected dtype (as the computation), int8 or fp8"),
            std::string::npos)
      << refused.output;
  expect_ok("inspect " + path("run/model"));
  expect_ok("plan --config " + path("run/model") + " --context 4096 --json");
  const Result ids = run("tokenizer encode --tokenizer " + path("tok") + " --text \"the quick\"");
  EXPECT_EQ(ids.code, 0);
  const Json list = parse_json(ids.output, "encode");
  EXPECT_TRUE(list.is_array() && !list.empty());
}

// A mixture of experts goes through every command.
TEST_F(Cli, ExpertsWorkInEveryCommand) {
  const std::string sets =
      " --set n_routed_experts=4 --set num_experts_per_tok=2 --set moe_intermediate_size=24 --set "
      "first_k_dense_replace=1 --set n_shared_experts=1";
  const std::string train =
      "train --config " + path("config.json") + sets + " --data " + path("data") + " --out ";
  expect_ok(train + path("moe"));
  expect_ok(train + path("moe2"));
  fs::remove_all(path("moe2/checkpoints/step-00000012"));
  expect_ok(train + path("moe2") + " --resume --threads 1");
  EXPECT_TRUE(read_text(path("moe/model/model.safetensors")) ==
              read_text(path("moe2/model/model.safetensors")));
  EXPECT_NE(read_text(path("moe/log.jsonl")).find("\"expert_load_max\":[null,"), std::string::npos);
  const std::string model = " --model " + path("moe/model");
  for (const char* weights : {"dtype", "int8"}) {
    const std::string how = std::string(" --weights ") + weights;
    expect_ok("generate" + model + " --prompt \"Line 1\" --max-new-tokens 8 --seed 3" + how);
    expect_ok("perplexity" + model + " --input " + path("text.txt") + how);
  }
  const Result seen = run("inspect " + path("moe/model"));
  EXPECT_EQ(seen.code, 0);
  EXPECT_NE(seen.output.find("4 experts, 2 a token, 1 shared"), std::string::npos) << seen.output;
  expect_ok("plan --config " + path("moe/model") + " --context 4096 --json");
  const Result gguf = run("export" + model + " --out " + path("moe.gguf"));
  EXPECT_EQ(gguf.code, 2) << gguf.output;
}

TEST_F(Cli, SameSeedSameText) {
  const std::string command = "generate --model " + path("run/model") +
                              " --prompt \"Line 2\" --max-new-tokens 24 --seed 5 --threads ";
  const Result one = run(command + "1"), two = run(command + "2");
  EXPECT_EQ(one.code, 0);
  EXPECT_EQ(one.output, two.output);
}

TEST_F(Cli, ResumeEqualsTheUninterruptedRun) {
  expect_ok("train --config " + path("config.json") + " --data " + path("data") + " --out " + path("run2"));
  for (const auto& entry : fs::directory_iterator(path("run2/checkpoints"))) {
    if (entry.path().filename().string().find("12") != std::string::npos) fs::remove_all(entry.path());
  }
  expect_ok("train --config " + path("config.json") + " --data " + path("data") + " --out " + path("run2") +
            " --resume --threads 1");
  const SafetensorsSet a{fs::path(path("run/model"))}, b{fs::path(path("run2/model"))};
  ASSERT_EQ(a.names(), b.names());
  for (const std::string& name : a.names()) {
    const auto& shape = a.entry(name).shape;
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    std::vector<float> x(size_t(n), 1), y(size_t(n), 2);
    auto view = [&](std::vector<float>& v) {
      return shape.size() == 1 ? TensorView(v.data(), DType::f32, {shape[0]})
                               : TensorView(v.data(), DType::f32, {shape[0], shape[1]});
    };
    a.read(name, view(x));
    b.read(name, view(y));
    EXPECT_EQ(x, y) << name;
  }
}

TEST_F(Cli, LogitsOfEveryModeAgree) {
  std::ofstream tokens(root_ / "tokens.json");
  tokens << "[";
  for (int i = 0; i < 150; ++i) tokens << (i ? "," : "") << (i * 37 + 11) % 300;
  tokens << "]";
  tokens.close();
  const std::string base =
      "logits --model " + path("run/model") + " --tokens " + path("tokens.json") + " --out ";
  expect_ok(base + path("train.safetensors") + " --mode train --layers");
  const SafetensorsFile truth{fs::path(path("train.safetensors"))};
  ASSERT_TRUE(truth.entries().count("hidden.4"));
  ASSERT_TRUE(truth.entries().count("selection.0"));
  ASSERT_EQ(truth.entries().at("block_scores.0").shape, (std::vector<int64_t>{2, 150, 19}));
  const int64_t vocab = truth.entries().at("logits").shape.at(1);
  const float* want = reinterpret_cast<const float*>(truth.data(truth.entries().at("logits")));
  for (const std::string mode : {"prefill", "chunked --chunk 7", "decode"}) {
    expect_ok(base + path("other.safetensors") + " --mode " + mode + " --selection " +
              path("train.safetensors"));
    const SafetensorsFile other{fs::path(path("other.safetensors"))};
    const float* got = reinterpret_cast<const float*>(other.data(other.entries().at("logits")));
    double worst = 0, top = 0;
    for (int64_t i = 0; i < 150 * vocab; ++i) {
      worst = std::max(worst, std::abs(double(got[i]) - double(want[i])));
      top = std::max(top, std::abs(double(want[i])));
    }
    EXPECT_LT(worst, 1e-4 * std::max(1.0, top)) << mode;
  }
}

TEST_F(Cli, BadInputIsNamedAndExitsWithTwo) {
  expect_bad("", "");
  expect_bad("nonsense", "");
  expect_bad("plan --config " + path("config.json") + " --context 1024 --set hysparse_topk_token=16",
             "hysparse_topk_tokens");
  expect_bad("plan --config " + path("config.json") + " --context 1024 --set hysparse_topk_tokens=20",
             "hysparse_topk_tokens");
  expect_bad("init --config " + path("absent.json") + " --out " + path("x"), "absent.json");
  expect_bad("generate --model " + path("absent") + " --prompt a", "absent");
  expect_bad("train --config " + path("config.json") + " --data " + path("data") + " --out " + path("run"),
             "resume");
  expect_bad("train --config " + path("config.json") + " --data " + path("data") + " --out " + path("run") +
                 " --resume --set train.steps=3 --set train.decay_steps=0",
             "train.steps 3 lies before the run's step 12");
  expect_bad("train --config " + path("config.json") + " --data " + path("data") + " --out " + path("new") +
                 " --set train.steps=3",
             "set train.decay_steps too");
  expect_bad("train --config " + path("config.json") + " --data " + path("data") + " --out " + path("tok"),
             "no training run");
  expect_bad("train --config " + path("config.json") + " --data " + path("data") + " --out .",
             "the current folder");
  expect_bad("generate --model " + path("run/model") + " --prompt a --temperature nan", "temperature");
  expect_bad("generate --model " + path("run/model") + " --prompt a --device gpu", "cpu or cuda");
  expect_bad("generate --model " + path("run/model") + " --prompt a --device cuda --dtype f64",
             "f64 is the reference on the CPU");
  expect_bad("bench kernels --device cuda", "measures the CPU's kernels");
  const Result kernels = run("bench --list-kernels --config " + path("config.json"));
  EXPECT_EQ(kernels.code, 0) << kernels.output;
  EXPECT_NE(kernels.output.find("every operation: cpu/"), std::string::npos) << kernels.output;
  const Result no_library = run("generate --model " + path("run/model") + " --prompt a --device cuda",
                                "env HYSPARSE_CUDA_LIBRARY=" + path("no-library.so") + " ");
  EXPECT_EQ(no_library.code, 1);
  EXPECT_NE(no_library.output.find("libhysparse_cuda.so could not be opened"), std::string::npos)
      << no_library.output;
  std::ofstream(root_ / "bad_tokens.json") << "[1, 99999]";
  expect_bad("logits --model " + path("run/model") + " --tokens " + path("bad_tokens.json") + " --out " +
                 path("y.safetensors"),
             "99999");
  EXPECT_FALSE(fs::exists(path("y.safetensors")));
}

TEST_F(Cli, InitChecksTheTokenizerItCopies) {
  const std::string init =
      "init --config " + path("config.json") + " --out " + path("fresh") + " --tokenizer ";
  expect_bad(init + path("no-tokenizer"), "no-tokenizer");
  expect_bad(init + path("tok") + " --set vocab_size=300", "at most 300 tokens");
  EXPECT_FALSE(fs::exists(path("fresh")));
  expect_ok(init + path("tok/tokenizer.json"));
  EXPECT_TRUE(fs::exists(path("fresh/tokenizer.json")));
}

TEST_F(Cli, IdsBeyondTheTokenizerAreNeverGenerated) {
  expect_ok("init --config " + path("config.json") + " --set vocab_size=4000 --tokenizer " + path("tok") +
            " --out " + path("wide"));
  const Result r = run("generate --model " + path("wide") +
                       " --tokens --prompt 5 --temperature 2 --ignore-eos --max-new-tokens 100");
  ASSERT_EQ(r.code, 0) << r.output;
  std::istringstream ids(r.output);
  int count = 0;
  for (int id; ids >> id; ++count) EXPECT_LT(id, 320);
  EXPECT_EQ(count, 100) << r.output;
}

// A cache in 8 bits: the same text whatever the chunks, through every command that has a cache.
TEST_F(Cli, KvCacheIn8Bits) {
  const std::string model = " --model " + path("run/model"),
                    text = " --prompt \"Line 1: the quick\" --max-new-tokens 20";
  write_text(path("one.jsonl"), R"({"prompt": "a"})"
                                "\n");
  for (const std::string kv : {" --kv-cache-dtype int8", " --kv-cache-dtype fp8"}) {
    const std::string generate = "generate" + model + text + kv;
    const Result whole = run(generate), cut = run(generate + " --chunk 1"),
                 f64 = run(generate + " --dtype f64");
    EXPECT_EQ(whole.code, 0) << whole.output;
    EXPECT_EQ(whole.output, cut.output);
    EXPECT_EQ(f64.code, 0) << f64.output;
    const std::string perplexity = "perplexity" + model + " --json --input " + path("text.txt") + kv;
    const Result score = run(perplexity), chunks = run(perplexity + " --chunk 7");
    EXPECT_EQ(score.code, 0) << score.output;
    EXPECT_EQ(score.output, chunks.output);
    const Result table = run("batch --stats --max-new-tokens 2" + model + " " + path("one.jsonl") + kv);
    EXPECT_EQ(table.code, 0) << table.output;
    EXPECT_NE(table.output.find(kv == " --kv-cache-dtype int8" ? "tokens of full layers, in int8"
                                                               : "tokens of full layers, in fp8"),
              std::string::npos)
        << table.output;
  }
  for (const std::string command :
       {"generate", "batch", "serve", "perplexity --input x", "eval choice x", "eval ruler", "bench decode"})
    expect_bad(command + (command.starts_with("bench") ? "" : model) + " --kv-cache-dtype int4",
               "--kv-cache-dtype");
}

TEST_F(Cli, GenerateRefusesCountsThatMeanNothing) {
  const std::string generate = "generate --model " + path("run/model") + " --prompt a ";
  expect_bad(generate + "--max-new-tokens -2", "--max-new-tokens");
  expect_bad(generate + "--seed -1", "--seed");
  expect_bad(generate + "--page-size 9", "page_size");
  expect_ok(generate + "--seed 18446744073709551615 --max-new-tokens 2");
  expect_ok(generate +
            "--page-size 1000000000 --max-new-tokens 2");  // more than the context is not allocated
}

TEST_F(Cli, LogitsRefusesWhatItCannotMean) {
  const auto write = [](const std::string& name, const std::string& text) {
    std::ofstream(root_ / name) << text;
  };
  write("three.json", "[1, 2, 3]");
  write("none.json", "[]");
  std::string many = "[1";
  for (int i = 1; i < 513; ++i) many += ", 1";
  write("many.json", many + "]");
  const auto logits = [](const std::string& tokens, const std::string& out) {
    return "logits --model " + path("run/model") + " --tokens " + path(tokens) + " --out " + path(out);
  };
  expect_bad(logits("none.json", "l.safetensors"), "at least one token id");
  expect_bad(logits("many.json", "l.safetensors"), "at most 512 tokens (max_position_embeddings), got 513");
  expect_bad(logits("three.json", "l.safetensors") + " --chunk 2", "--mode chunked");
  expect_bad(logits("three.json", "tok/../three.json"), "overwritten");

  Tensor idx(DType::i32, {2, 3, 2});  // KV heads, tokens, entries
  auto* rows = idx.view().as<int32_t>();
  for (int i = 0; i < 12; ++i) rows[i] = i % 2 ? -1 : 0;
  const auto pin = [&] {
    write_safetensors(path("pin.safetensors"),
                      {{"selection.0", idx, DType::i32}, {"selection.3", idx, DType::i32}}, {});
  };
  const std::string pinned =
      logits("three.json", "l.safetensors") + " --selection " + path("pin.safetensors");
  pin();
  expect_ok(pinned);
  expect_bad(logits("three.json", "pin.safetensors") + " --selection " + path("pin.safetensors"),
             "overwritten");
  for (const auto& bad : {std::pair{-1, 0}, std::pair{0, 0}, std::pair{1, -1}, std::pair{-2, -1}}) {
    rows[8] = bad.first;
    rows[9] = bad.second;
    pin();
    expect_bad(pinned, "selection.0[1, 1]");
  }
}

TEST_F(Cli, OutputsAreCheckedBeforeTheWork) {
  const std::string train = "tokenizer train --input " + path("text.txt") + " --vocab-size 300 --out ";
  expect_bad(train + "''", "--out");
  expect_bad(train + path("text.txt"), "is a file");
  fs::create_directories(path("foreign"));
  std::ofstream(root_ / "foreign/diary.txt") << "mine";
  expect_bad(train + path("foreign"), "neither a tokenizer nor a model");
  expect_ok(train + path("new/tok"));
  expect_ok(train + path("new/tok"));  // its own kind is replaced
  expect_bad("train --config " + path("config.json") + " --data " + path("data") + " --out ''", "--out");
}

TEST_F(Cli, BenchEndsInTimeAndWhenAsked) {
  expect_bad("bench attention --json " + path("absent/bench.json"), "absent/bench.json");
  const std::string model = " --config " + path("config.json") + " --threads 2 --repeat 1";
  expect_ok("bench attention --context 64 --json " + path("bench.json") + model);
  const Json json = read_json_file(path("bench.json"));
  EXPECT_NE(json.at("results").dump().find("T 64,"), std::string::npos) << json.dump();
  // Decode says how much of the read bandwidth it used, for every kind of weight; training in int8 is
  // refused.
  for (const std::string weights : {"dtype", "int8"}) {
    expect_ok("bench decode --context 40 --json " + path("bench.json") + model + " --weights " + weights);
    const Json shape = read_json_file(path("bench.json")).at("results").at(0).at("shape");
    EXPECT_GT(std::stod(shape.at("fraction_of_read_bandwidth").get<std::string>()), 0) << shape.dump();
    EXPECT_GT(std::stod(shape.at("read_GB/s").get<std::string>()), 0) << shape.dump();
    EXPECT_EQ(shape.contains("weights"), weights == "int8");
  }
  expect_ok("bench engine --prompt-tokens 20 --answer-tokens 3 --requests 2 --json " + path("bench.json") +
            model);
  const Json results = read_json_file(path("bench.json")).at("results");
  const Json whole = results.at(0).at("shape");
  EXPECT_EQ(whole.at("answer"), "3");
  EXPECT_EQ(whole.at("steps"), "3");  // both prompts at once, their first token among it
  EXPECT_EQ(results.at(1).at("name"), "engine whole requests, all decoding");
  expect_bad("bench train --weights int8" + model, "int8 weights cannot be trained");
  expect_bad("bench gemm --dtype f64" + model, "bench gemm: compares with oneDNN, in f32 or bf16 on the CPU");
  const Result r = run("bench kernels" + model + "000", "timeout --preserve-status -s INT 2 ");
  EXPECT_EQ(r.code, 130) << r.output;
  EXPECT_NE(r.output.find("interrupted"), std::string::npos) << r.output;
  // Inside a step of minutes, too: whoever is not heard is killed, which is another code.
  const Result step = run(
      "bench train" + model + " --set hidden_size=4096 --set intermediate_size=16384 --set train.seq_len=512",
      "timeout --preserve-status -k 60 -s INT 4 ");
  EXPECT_EQ(step.code, 130) << step.output;
}

TEST_F(Cli, MisspeltCommandLinesAreExplained) {
  expect_bad("train --confg x", "hysparse train: has no flag --confg (did you mean --config?)");
  expect_bad("train", "hysparse train: --config is missing (see hysparse train --help)");
  expect_bad("tokenizer", "hysparse tokenizer: a command is missing, one of train, encode, decode");
  expect_bad("plan --config x --context", "--context: expected a whole number, got none");
  expect_bad("plan --config x --context abc", "--context: expected a whole number, got \"abc\"");
  expect_bad("plan --config x --context 10 extra", "nothing is expected where \"extra\" stands");
  expect_bad("generate --model x --threads 99999", "--threads: expected 0 to 4096, got 99999");
  expect_bad("generate --model x --seed -1", "--seed: expected at least 0, got -1");
  expect_bad("generate --model x --prompt a --prompt b", "--prompt: expected one value, got 2");
  expect_bad("logits --mode foo", "--mode: expected one of train, prefill, chunked, decode, got \"foo\"");
  expect_bad("train --config a --data b --out c --resume --from d", "cannot be given together with");
  expect_bad("inspect", "hysparse inspect: DIR is missing");
}

TEST_F(Cli, ANewStageSaysWhatItLeavesBehind) {
  const Result r =
      run("train --config " + path("config.json") + " --data " + path("data") + " --out " + path("stage2") +
          " --from " + path("run") + " --set attention=full --set train.steps=1 --set train.decay_steps=0");
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("left behind: "), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("model.layers.*.self_attn.sparse_gate.weight (2 layers)"), std::string::npos)
      << r.output;
}

TEST_F(Cli, PlanRemarksOnAContextBeyondTheConfig) {
  const std::string plan = "plan --config " + path("config.json") + " --context ";
  EXPECT_EQ(run(plan + "512").output.find("beyond"), std::string::npos);
  EXPECT_NE(run(plan + "513").output.find("beyond the 512 of max_position_embeddings"), std::string::npos);
  const Json json = parse_json(run(plan + "513 --json --set attention=full").output, "plan");
  EXPECT_EQ(json.at("notes").size(), 1u);
  EXPECT_EQ(json.at("training_memory").at("shared_kv_gradients"), 0);
}

TEST_F(Cli, HelpShowsAnExampleForEveryCommand) {
  for (const std::string command :
       {"tokenizer train", "tokenizer encode", "tokenizer decode", "data prepare", "init", "train", "demo",
        "generate", "perplexity", "eval ruler", "eval choice", "eval perplexity", "logits", "plan", "inspect",
        "bench", "import", "export", "completion"}) {
    const Result r = run(command + " --help");
    EXPECT_EQ(r.code, 0) << command;
    EXPECT_NE(r.output.find("hysparse " + command), std::string::npos) << command << "\n" << r.output;
  }
  EXPECT_EQ(run("--version").output.rfind("hysparse ", 0), 0u);
}

}  // namespace
}  // namespace hysparse
