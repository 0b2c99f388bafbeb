// Files and texts that nobody should have made: a message that names them, exit code 2, nothing half-written.
// (Readers are held to far more in tests/unit and tests/fuzz; this is what a user sees.)
#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "e2e/support.h"
#include "io/json_value.h"

namespace hysparse {
namespace {

using namespace e2e;

std::string safetensors(const std::string& header, size_t data_bytes, uint64_t claim = 0) {
  std::string s(8, '\0');
  const uint64_t length = claim ? claim : header.size();
  for (size_t i = 0; i < 8; ++i) s[i] = static_cast<char>(length >> (8 * i));
  return s + header + std::string(data_bytes, '\1');
}

class Hostile : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = new Folder(fast_place());
    make_small_run(*root_,
                   R"({"steps": 2, "seq_len": 64, "warmup_steps": 1, "decay_steps": 1, "eval_interval": 0,
        "checkpoint_interval": 0})");
    expect_ok("init --config " + path("config.json") + " --tokenizer " + path("tok") + " --out " +
              path("model"));
  }
  static void TearDownTestSuite() { delete root_; }
  static std::string path(const std::string& name) { return *root_ / name; }
  static std::string copy_of_model() {
    fs::remove_all(path("bad"));
    fs::copy(path("model"), path("bad"));
    return path("bad");
  }
  // A model whose weights are this file.
  static void weights_are(const std::string& content, const std::string& message) {
    write_text(copy_of_model() + "/model.safetensors", content);
    expect_bad("inspect " + path("bad"), message);
    expect_bad("generate --prompt a --model " + path("bad"), message);
  }
  static void config_is(const std::string& content, const std::string& message) {
    write_text(path("bad.json"), content);
    expect_bad("plan --context 64 --config " + path("bad.json"), message);
    expect_bad("init --config " + path("bad.json") + " --out " + path("never"), message);
    EXPECT_FALSE(fs::exists(path("never")));
  }
  static std::string changed(const std::string& key, const std::string& value) {
    Json config = read_json_file(path("config.json"));
    config[key] = parse_json(value, "value");
    return dump_json(config);
  }
  static void tokenizer_is(const std::string& content, const std::string& message) {
    write_text(path("badtok/tokenizer.json"), content);
    expect_bad("tokenizer encode --text abc --tokenizer " + path("badtok"), message);
  }

  static Folder* root_;
};
Folder* Hostile::root_ = nullptr;

TEST_F(Hostile, Weights) {
  const std::string t = R"({"t":{"dtype":"F32","shape":[4],"data_offsets":)";
  weights_are("", "model.safetensors: is empty");
  weights_are(safetensors("{}", 0, uint64_t(1) << 63), "passes the end of the file");
  weights_are(safetensors("{}", 0, ~uint64_t(0)), "passes the end of the file");
  weights_are(safetensors("[]", 0), "model.safetensors");
  weights_are(safetensors(t + "[0,1600]}}", 16), "\"t\"");
  weights_are(safetensors(t + "[16,0]}}", 16), "\"t\"");
  weights_are(safetensors(t + "[0,16]}}", 15), "model.safetensors");
  weights_are(
      safetensors(R"({"t":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,16]}})", 16),
      "\"t\"");
  weights_are(safetensors(R"({"t":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", 0), "missing");
  weights_are(safetensors(R"({"t":{"dtype":"F31","shape":[4],"data_offsets":[0,16]}})", 16), "F31");
  weights_are(safetensors(t + R"([0,16]},"t":{"dtype":"F32","shape":[4],"data_offsets":[16,32]}})", 32),
              "\"t\"");
  weights_are(safetensors(t + R"([0,16]},"u":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}})", 24),
              "model.safetensors");
  std::string good = read_text(path("model/model.safetensors"));
  weights_are(good.substr(0, good.size() - 1), "model.safetensors");
  weights_are(good.substr(0, good.size() / 2), "model.safetensors");
  weights_are(good + "x", "model.safetensors");
  // Integers where the model has reals, of the same size.
  for (size_t at = 0; (at = good.find("\"F32\"", at)) != std::string::npos;) good.replace(at, 5, "\"I32\"");
  write_text(copy_of_model() + "/model.safetensors", good);
  expect_bad("generate --prompt a --model " + path("bad"), "I32");
  expect_bad("inspect " + path("bad"), "I32");
  fs::remove(path("bad/model.safetensors"));
  fs::create_directory(path("bad/model.safetensors"));
  expect_bad("inspect " + path("bad"), "model.safetensors");
}

TEST_F(Hostile, MissingShard) {
  copy_of_model();
  fs::rename(path("bad/model.safetensors"), path("bad/model-00001-of-00002.safetensors"));
  write_text(path("bad/model.safetensors.index.json"),
             R"({"weight_map": {"model.embed_tokens.weight": "model-00001-of-00002.safetensors",
             "model.norm.weight": "model-00002-of-00002.safetensors"}})");
  expect_bad("generate --prompt a --model " + path("bad"), "model.norm.weight");
  write_text(path("bad/model.safetensors.index.json"),
             R"({"weight_map": {"model.norm.weight": "../../etc/passwd"}})");
  expect_bad("generate --prompt a --model " + path("bad"), "inside the model's folder");
}

TEST_F(Hostile, Configs) {
  config_is("", "bad.json");
  config_is("{", "bad.json");
  config_is(std::string(100000, '['), "bad.json");
  config_is("{\"a\":" + std::string(100000, '{'), "bad.json");
  config_is(std::string("\0\0\0\0", 4), "bad.json");
  config_is(changed("num_attention_heads", "3"), "num_key_value_heads");
  config_is(
      changed("layer_types", R"(["hysparse_attention", "full_attention", "full_attention", "full_attention",
                                       "full_attention"])"),
      "layer");
  config_is(changed("hysparse_topk_tokens", "20"), "hysparse_topk_tokens");
  config_is(changed("hysparse_topk_tokens", "0"), "hysparse_topk_tokens");
  config_is(changed("sliding_window", "0"), "sliding_window");
  config_is(changed("hidden_size", "1e30"), "hidden_size");
  config_is(changed("hidden_size", "99999999999999999999"), "hidden_size");
  config_is(changed("hidden_size", "4.0"), "hidden_size");
  config_is(changed("hidden_size", "\"64\""), "hidden_size");
  config_is(changed("hidden_size", "null"), "hidden_size");
  config_is(changed("vocab_size", "-1"), "vocab_size");
  config_is(changed("rope_parameters", R"({"rope_type": "yarn", "rope_theta": 10000.0})"),
            "rope_parameters.factor");
  config_is(changed("rope_parameters", R"({"rope_type": "spiral", "factor": 2})"), "spiral");
  config_is(changed("rope_scaling", R"({"rope_type": "llama3", "factor": 1e30})"), "rope_scaling.");
  config_is(changed("num_hidden_layers", "1000000000"), "num_hidden_layers");
  config_is(changed("hiden_size", "64"), "hidden_size");
  config_is(R"({"hidden_size": 64, "hidden_size": 32})", "hidden_size");
}

TEST_F(Hostile, Tokenizers) {
  const Json good = read_json_file(path("tok/tokenizer.json"));
  const auto with = [&](const std::function<void(Json&)>& change) {
    Json j = good;
    change(j);
    return dump_json(j);
  };
  tokenizer_is("", "tokenizer.json");
  tokenizer_is("[]", "tokenizer.json");
  tokenizer_is(with([](Json& j) { j["model"].erase("merges"); }), "model.merges");
  tokenizer_is(with([](Json& j) { j["model"]["merges"] = Json::array(); }), "model.merges");
  tokenizer_is(with([](Json& j) { j["model"]["merges"][0] = "a b c"; }), "model.merges[0]");
  tokenizer_is(with([](Json& j) { j["model"]["merges"][0] = Json::array({"a"}); }), "model.merges[0]");
  tokenizer_is(with([](Json& j) { j["model"]["merges"][0] = "zzz yyy"; }), "model.merges[0]");
  tokenizer_is(with([](Json& j) {
                 j["model"]["vocab"] = {{"a", 16000000}};
                 j["model"]["merges"] = Json::array();
                 j["added_tokens"] = Json::array();
               }),
               "16000000");
  // Added tokens that stand in for each other, in a circle.
  tokenizer_is(
      with([](Json& j) {
        j["added_tokens"] = Json::array({{{"id", 1}, {"content", "<a>"}}, {{"id", 1}, {"content", "<b>"}}});
      }),
      "added_tokens");
  tokenizer_is(with([](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "("; }),
               "regular expression \"(\"");
  tokenizer_is(with([](Json& j) {
                 j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = std::string(5000, '(');
               }),
               "too deeply nested");
  // Both forms of merges are one tokenizer.
  Json pairs = good;
  for (Json& merge : pairs["model"]["merges"]) {
    const std::string s = merge.get<std::string>();
    merge = Json::array({s.substr(0, s.find(' ')), s.substr(s.find(' ') + 1)});
  }
  write_text(path("pairs/tokenizer.json"), dump_json(pairs));
  std::string lines;
  for (int i = 0; i < 1000; ++i) lines += "the lazy dog " + std::to_string(i * i) + " jumps\n";
  write_text(path("lines.txt"), lines);
  const Result a = run("tokenizer encode --tokenizer " + path("tok") + " --input " + path("lines.txt")),
               b = run("tokenizer encode --tokenizer " + path("pairs") + " --input " + path("lines.txt"));
  EXPECT_EQ(a.code, 0);
  EXPECT_TRUE(a.output == b.output);
}

// An expression that backtracks without end is an error within seconds, not a hang.
TEST_F(Hostile, CatastrophicExpressions) {
  Json j = read_json_file(path("tok/tokenizer.json"));
  j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a+)+b|(x|x)*y|.";
  write_text(path("badtok/tokenizer.json"), dump_json(j));
  write_text(path("aaa.txt"), std::string(20000, 'a') + std::string(20000, 'x'));
  const Result r =
      run("tokenizer encode --tokenizer " + path("badtok") + " --input " + path("aaa.txt"), "timeout 60 ");
  EXPECT_EQ(r.code, 2) << r.output.substr(0, 500);
}

TEST_F(Hostile, Texts) {
  std::string all_bytes;
  for (int i = 0; i < 70000; ++i) all_bytes += static_cast<char>(i * 2654435761u >> 13);
  const std::pair<std::string, std::string> texts[] = {
      {"empty", ""},
      {"nul", std::string(5000, '\0')},
      {"binary", all_bytes},
      {"broken", "ok \xff\xfe\xc3 \xed\xa0\x80 \xf4\x90\x80\x80 ok"},
      {"line", std::string(3 << 20, 'z')}};
  for (const auto& [name, text] : texts) {
    const std::string file = path(name + ".txt");
    write_text(file, text);
    const Result ids =
        run("tokenizer encode --tokenizer " + path("tok") + " --input " + file + " > " + path("ids"));
    EXPECT_EQ(ids.code, 0) << name;
    run("tokenizer decode --tokenizer " + path("tok") + " --special --input " + path("ids") + " > " +
        path("back"));
    EXPECT_TRUE(read_text(path("back")) == text) << name << " does not come back";
    const Result p = run("perplexity --model " + path("model") + " --max-tokens 200 --input " + file);
    EXPECT_EQ(p.code, text.empty() ? 2 : 0) << name << p.output;
    const Result d =
        run("data prepare --tokenizer " + path("tok") + " --input " + file + " --out " + path("prepared"));
    EXPECT_EQ(d.code, text.empty() ? 2 : 0) << name << d.output;
    const Result t =
        run("tokenizer train --vocab-size 300 --input " + file + " --out " + path("trained-" + name));
    EXPECT_EQ(t.code, text.empty() ? 2 : 0) << name << t.output;
    EXPECT_EQ(fs::exists(path("trained-" + name)), !text.empty());
    if (text.size() > 10000) {
      expect_bad("generate --model " + path("model") + " --prompt-file " + file, "512");  // past the context
    } else {
      const Result g = run("generate --model " + path("model") + " --max-new-tokens 4 --prompt-file " + file);
      EXPECT_TRUE(g.code == 0 || (g.code == 2 && g.output.find("512") != std::string::npos))
          << name << g.output;
    }
  }
  write_text(path("broken.jsonl"), "{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n");
  expect_bad(
      "data prepare --tokenizer " + path("tok") + " --input " + path("broken.jsonl") + " --out " + path("p2"),
      "broken.jsonl:2");
  EXPECT_FALSE(fs::exists(path("p2")));
}

TEST_F(Hostile, TokenIds) {
  const auto logits = [&](const std::string& ids, const std::string& message) {
    write_text(path("ids.json"), ids);
    expect_bad("logits --model " + path("model") + " --tokens " + path("ids.json") + " --out " +
                   path("l.safetensors"),
               message);
    EXPECT_FALSE(fs::exists(path("l.safetensors")));
  };
  logits("[]", "at least one token id");
  logits("[320]", "320");
  logits("[-1]", "-1");
  logits("[99999999999999999999]", "token 0");
  logits("[1.5]", "1.5");
  logits("[\"1\"]", "token 0");
  logits("[[1]]", "token 0");
  logits("{}", "list");
  logits("", "ids.json");
  expect_bad("generate --tokens --model " + path("model") + " --prompt 320", "320");
  expect_bad("tokenizer decode --tokenizer " + path("tok") + " --ids 99999", "99999");
  expect_bad("tokenizer decode --tokenizer " + path("tok") + " --ids '[1,'", "--ids");
}

TEST_F(Hostile, NotANumberIsFoundByInspect) {
  expect_ok("inspect " + path("model"));
  std::string file = read_text(path("model/model.safetensors"));
  // The last tensor's last values: a NaN, an infinity.
  const unsigned char values[] = {0, 0, 0xc0, 0x7f, 0, 0, 0x80, 0xff};
  file.replace(file.size() - sizeof values, sizeof values, reinterpret_cast<const char*>(values),
               sizeof values);
  write_text(copy_of_model() + "/model.safetensors", file);
  expect_bad("inspect " + path("bad"), "(1 NaN, 1 infinite)");
  const Result r = run("inspect --json " + path("bad") + " 2>/dev/null; true");
  const Json report = parse_json(r.output, "inspect");
  ASSERT_EQ(report.at("nonfinite").size(), 1u);
  EXPECT_EQ(report.at("nonfinite")[0].at("nan"), 1);
  expect_ok("inspect --headers-only " + path("bad"));
}

// Devices are written to, not replaced by a file; a link's target is replaced, not the link.
TEST_F(Hostile, OutputsThatAreNoPlainFiles) {
  const std::string logits =
      "logits --model " + path("model") + " --tokens " + path("three.json") + " --out ";
  write_text(path("three.json"), "[1, 2, 3]");
  fs::create_symlink("/dev/full", path("full"));
  const Result full = run(logits + path("full"));
  EXPECT_EQ(full.code, 1) << full.output;
  EXPECT_NE(full.output.find("No space left on device"), std::string::npos) << full.output;
  EXPECT_TRUE(fs::is_symlink(path("full")));
  write_text(path("target"), "old");
  fs::create_symlink("target", path("link"));
  expect_ok(logits + path("link"));
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_GT(fs::file_size(path("target")), 1000u);
}

class FullHostile : public Hostile {};

// A line of a gigabyte: counted, encoded and decoded in bounded memory.
TEST_F(FullHostile, ALineOfAGigabyte) {
  {
    std::ofstream file(path("giga.txt"), std::ios::binary);
    std::string piece(1 << 20, 'a');
    for (size_t i = 0; i < piece.size(); i += 7) piece[i] = static_cast<char>('b' + i % 23);
    for (int i = 0; i < 1024; ++i) file << piece;
  }
  const Result d = run(
      "data prepare --tokenizer " + path("tok") + " --input " + path("giga.txt") + " --out " + path("giga"),
      "prlimit --as=4294967296 ");
  EXPECT_EQ(d.code, 0) << d.output;
  const Result t =
      run("tokenizer train --vocab-size 300 --input " + path("giga.txt") + " --out " + path("gigatok"));
  EXPECT_EQ(t.code, 0) << t.output;
}

}  // namespace
}  // namespace hysparse
