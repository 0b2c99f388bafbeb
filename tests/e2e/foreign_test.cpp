// Models from elsewhere as a user meets them: Hugging Face directories in every command, GGUF in and out.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "io/files.h"
#include "io/safetensors.h"

namespace hysparse {
namespace {

namespace fs = std::filesystem;

class ForeignCli : public testing::Test {
 protected:
  ForeignCli()
      : root_(fs::temp_directory_path() / ("hysparse-foreign-" + std::to_string(std::random_device{}()))) {
    fs::create_directories(root_);
  }
  ~ForeignCli() override { fs::remove_all(root_); }

  std::string path(const std::string& name) const { return (root_ / name).string(); }
  void put(const std::string& name, const std::string& content) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name, std::ios::binary) << content;
  }
  static std::string run(const std::string& arguments, int expected = 0) {
    const std::string command = std::string(HYSPARSE_BINARY) + " " + arguments + " 2>&1";
    std::string output;
    FILE* pipe = popen(command.c_str(), "r");
    char buffer[4096];
    for (size_t n; pipe && (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, n);
    const int status = pipe ? pclose(pipe) : -1;
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == expected) << arguments << "\n" << output;
    return output;
  }
  static void expect_bad(const std::string& arguments, const std::string& message) {
    const std::string output = run(arguments, 2);
    EXPECT_NE(output.find(message), std::string::npos) << arguments << "\nexpected: " << message << "\n"
                                                       << output;
  }
  static void expect_same_weights(const fs::path& a, const fs::path& b) {
    const SafetensorsSet x(a), y(b);
    ASSERT_EQ(x.names(), y.names());
    for (const std::string& name : x.names()) {
      const TensorSource s = x.source(name), t = y.source(name);
      ASSERT_EQ(s.shape, t.shape) << name;
      std::vector<float> u(static_cast<size_t>(s.rows() * s.row_size())), v(u.size());
      s.read(0, s.rows(), u.data());
      t.read(0, t.rows(), v.data());
      EXPECT_EQ(u, v) << name;
    }
  }

  // A full-attention model with a tokenizer of ours and data for it.
  void make_twin() const {
    std::string text;
    for (int i = 0; i < 600; ++i)
      text += "Line " + std::to_string(i * 7919 % 1000) + ": the quick brown fox.\n";
    put("text.txt", text);
    put("config.json", R"({"num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64, "vocab_size": 300, "attention": "full",
      "max_position_embeddings": 128, "tie_word_embeddings": true, "initializer_range": 0.1, "eos_token_id": 0})");
    run("tokenizer train --input " + path("text.txt") + " --vocab-size 290 --out " + path("tok"));
    run("init --config " + path("config.json") + " --tokenizer " + path("tok") + " --out " + path("twin"));
  }

  const fs::path root_;
};

TEST_F(ForeignCli, AHuggingFaceDirectoryWorksInEveryCommand) {
  put("ids.json", "[5, 9, 11, 60]");
  for (const char* family : {"llama", "llama-tied", "qwen2", "qwen3", "mimo", "llama3", "yarn"}) {
    const std::string dir = (fs::path(HYSPARSE_SOURCE_DIR) / "tests/data/foreign" / family).string();
    run("logits --model " + dir + " --tokens " + path("ids.json") + " --out " + path("logits.safetensors"));
    const std::string said =
        run("generate --model " + dir +
            " --tokens --prompt '5 9 11' --max-new-tokens 8 --temperature 0 --ignore-eos");
    run("perplexity --model " + dir + " --tokens --input " + path("ids.json"));
    EXPECT_NE(run("inspect " + dir).find("attention full, 2 layers"), std::string::npos);
    run("plan --config " + dir + " --context 128");
    run("import --from " + dir + " --out " + path(family));
    EXPECT_EQ(run("generate --model " + path(family) +
                  " --tokens --prompt '5 9 11' --max-new-tokens 8 --temperature 0 --ignore-eos"),
              said);
    // bf16 throughout, so bf16 it stays.
    const SafetensorsSet files{fs::path(path(family))};
    EXPECT_EQ(files.entry("model.norm.weight").dtype, "BF16");
    EXPECT_FALSE(files.has("model.mtp_layers.0.input_proj.weight"));
  }
}

// End ids of generation_config.json and BOS of the tokenizer's files: as Hugging Face's own programs, from
// the directory as it is, after import, and through GGUF.
TEST_F(ForeignCli, EndIdsAndBosAreKept) {
  make_twin();
  fs::copy(path("twin"), path("hf"));
  put("hf/generation_config.json", R"({"eos_token_id": [0, 7, 9]})");
  put("hf/tokenizer_config.json",
      R"({"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>", "add_bos_token": true})");
  run("import --from " + path("hf") + " --out " + path("ours"));
  run("export --model " + path("ours") + " --out " + path("m.gguf"));
  run("import --from " + path("m.gguf") + " --out " + path("back"));
  const std::string ids = run("tokenizer encode --tokenizer " + path("hf") + " --text 'Line 7: the' --start");
  EXPECT_EQ(ids.substr(0, 3), "[0,");
  const std::string options = " --max-new-tokens 12 --temperature 0 --ignore-eos --stats";
  const auto text_of = [](const std::string& output) { return output.substr(0, output.find("prompt: ")); };
  const std::string plain = run("generate --model " + path("twin") + " --prompt 'Line 7: the'" + options);
  std::string first;
  for (const char* model : {"hf", "ours", "back"}) {
    EXPECT_NE(run("inspect " + path(model)).find("end ids [0, 7, 9]"), std::string::npos) << model;
    const std::string said = run("generate --model " + path(model) + " --prompt 'Line 7: the'" + options);
    if (first.empty()) first = text_of(said);
    EXPECT_EQ(text_of(said), first) << model;
    const std::string count = std::to_string(std::count(ids.begin(), ids.end(), ',') + 1);
    EXPECT_NE(said.find("prompt: " + count + " tokens"), std::string::npos) << said;
  }
  EXPECT_EQ(plain.find("prompt: " + std::to_string(std::count(ids.begin(), ids.end(), ',')) + " tokens"),
            text_of(plain).size());
}

TEST_F(ForeignCli, AHuggingFaceDirectoryStartsATraining) {
  make_twin();
  fs::create_directories(path("hf"));
  fs::copy(path("twin/model.safetensors"), path("hf/model.safetensors"));
  fs::copy(path("twin/tokenizer.json"), path("hf/tokenizer.json"));
  fs::copy(path("twin/tokenizer_config.json"), path("hf/tokenizer_config.json"));
  put("hf/config.json",
      R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 3,
    "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64,
    "vocab_size": 300, "max_position_embeddings": 128, "tie_word_embeddings": true, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "hidden_act": "silu", "eos_token_id": 0})");
  run("data prepare --tokenizer " + path("hf") + " --input " + path("text.txt") + " --holdout 0.1 --out " +
      path("data"));
  const std::string out = run("train --config " + path("hf") + " --from " + path("hf") + " --data " +
                              path("data") + " --out " + path("run") +
                              " --set train.steps=3 --set train.seq_len=32 --set train.warmup_steps=1"
                              " --set train.decay_steps=1 --set train.eval_tokens=64");
  EXPECT_NE(out.find("held-out"), std::string::npos) << out;
  EXPECT_NE(run("inspect " + path("run/model")).find("attention full"), std::string::npos);
}

TEST_F(ForeignCli, GgufThereAndBackAgain) {
  make_twin();
  const std::string ask = " --prompt 'Line 7: the' --max-new-tokens 12 --temperature 0";
  const std::string said = run("generate --model " + path("twin") + ask);
  for (const std::string dtype : {"f32", "f16", "bf16", "q8_0"}) {
    run("export --model " + path("twin") + " --out " + path("m.gguf") + " --dtype " + dtype);
    const std::string imported = run("import --from " + path("m.gguf") + " --out " + path("back"));
    EXPECT_NE(imported.find("with a tokenizer"), std::string::npos) << imported;
    run("inspect " + path("back"));
    run("generate --model " + path("back") + ask);
    if (dtype != "f32") continue;
    expect_same_weights(path("twin"), path("back"));
    EXPECT_EQ(run("generate --model " + path("back") + ask), said);
  }
  run("import --from " + path("m.gguf") + " --out " + path("bare") + " --no-tokenizer --dtype bf16");
  EXPECT_FALSE(fs::exists(path("bare/tokenizer.json")));
  run("import --from " + path("m.gguf") + " --out " + path("other") + " --tokenizer " + path("tok"));
  EXPECT_EQ(read_file(path("other/tokenizer.json")), read_file(path("tok/tokenizer.json")));
}

TEST_F(ForeignCli, WhatCannotBeReadOrWrittenIsNamed) {
  make_twin();
  run("export --model " + path("twin") + " --out " + path("m.gguf"));
  const std::string whole = read_file(path("m.gguf"));
  put("cut.gguf", whole.substr(0, whole.size() - 100));
  put("text.gguf", "hello");
  expect_bad("import --from " + path("cut.gguf") + " --out " + path("x"), "pass the end of the data section");
  expect_bad("import --from " + path("text.gguf") + " --out " + path("x"), "is not a GGUF file");
  expect_bad("import --from " + path("absent.gguf") + " --out " + path("x"), "absent.gguf");
  expect_bad("import --from " + path("twin") + " --out " + path("twin"), "would be replaced");
  EXPECT_FALSE(fs::exists(path("x")));
  for (const std::string command :
       {"generate --prompt a --model ", "plan --context 64 --config ", "inspect "})
    expect_bad(command + path("m.gguf"), "hysparse import --from");
  run("init --config " + path("config.json") + " --set attention=hysparse --out " + path("sparse"));
  expect_bad("export --model " + path("sparse") + " --out " + path("y.gguf"), "full twin");
  EXPECT_FALSE(fs::exists(path("y.gguf")));
  expect_bad("export --model " + path("twin") + " --out " + path("no/such/folder/y.gguf"), "no/such/folder");
}

}  // namespace
}  // namespace hysparse
