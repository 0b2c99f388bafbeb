// The training loop as a whole: resumes to the bit on any thread count, skips what is not finite, refuses
// what does not fit.
#include "train/loop.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"
#include "io/json_value.h"
#include "io/safetensors.h"
#include "train/checkpoint.h"
#include "train/evaluate.h"
#include "train/run_folder.h"
#include "train/token_file.h"
#include "unit/train/forwarding_ops.h"
#include "unit/train/small_data.h"
#include "unit/train/tiny.h"

namespace hysparse {
namespace {

using namespace tests;
namespace fs = std::filesystem;

class TrainLoop : public testing::Test {
 protected:
  // Steps read 3 + 2 rows: the micro-batch does not divide the step, and 20 steps pass an epoch's end.
  RunConfig config(TrainDType dtype = TrainDType::f32) const {
    RunConfig c;
    c.model = tiny_config();
    c.model.vocab_size = kSmallVocab;
    c.train.steps = 20;
    c.train.seq_len = 32;
    c.train.global_batch_size = 5;
    c.train.micro_batch_size = 3;
    c.train.dtype = dtype;
    c.train.warmup_steps = 8;
    c.train.decay_steps = 6;
    c.train.log_interval = 1;
    c.train.eval_interval = 7;
    c.train.eval_tokens = 256;
    c.train.checkpoint_interval = 0;
    return c;
  }
  TrainRequest request(const RunConfig& c, const std::string& name) const {
    TrainRequest r;
    r.config = c;
    r.data = small_data();
    r.out = dir_ / name;
    return r;
  }
  // Trains and stops after each of the given steps, resuming on the next thread count.
  void run_in_parts(const RunConfig& c, const std::string& name, const std::vector<int64_t>& stops,
                    const std::vector<int>& threads) const {
    TrainRequest r = request(c, name);
    for (size_t part = 0; part <= stops.size(); ++part) {
      std::atomic<bool> stop{false};
      const int64_t last = part < stops.size() ? stops[part] : -1;
      r.stop = &stop;
      r.resume = part > 0;
      r.progress = [&stop, last](const TrainProgress& p) {
        if (p.step == last) stop = true;
      };
      TestMachine machine(threads[part % threads.size()]);
      if (last < 0) {
        EXPECT_TRUE(train(machine.rt, r).finished);
      } else {
        expect_interrupted(machine.rt, r);
        EXPECT_EQ(list_checkpoints(r.out).back().step, last);
      }
    }
  }
  static void expect_interrupted(Runtime& rt, const TrainRequest& r) {
    try {
      train(rt, r);
      ADD_FAILURE() << "was not interrupted";
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), 130) << e.what();
    }
  }
  static std::string error_of(Runtime& rt, const TrainRequest& r, ErrorKind kind) {
    try {
      train(rt, r);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), kind) << e.what();
      return e.what();
    }
    return "no error";
  }
  std::vector<Json> log_lines(const std::string& name, const std::string& kind) const {
    std::vector<Json> out;
    std::istringstream in(read_text(dir_.path() / name / "log.jsonl"));
    for (std::string line; std::getline(in, line);) {
      Json j = parse_json(line, "log.jsonl");
      j.erase("tokens_per_second");
      if (j.at("kind") == kind) out.push_back(j);
    }
    return out;
  }
  void expect_same_run(const std::string& a, const std::string& b) const {
    const fs::path da = checkpoint_path(dir_.path() / a, 20), db = checkpoint_path(dir_.path() / b, 20);
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "config.json"})
      EXPECT_TRUE(read_text(da / file) == read_text(db / file)) << a << " and " << b << ": " << file;
    for (const char* kind : {"train", "eval"}) {
      const std::vector<Json> of_a = log_lines(a, kind), of_b = log_lines(b, kind);
      EXPECT_FALSE(of_a.empty());
      ASSERT_EQ(of_a.size(), of_b.size()) << a << " and " << b << ": " << kind;
      for (size_t i = 0; i < of_a.size(); ++i)
        ASSERT_TRUE(of_a[i] == of_b[i]) << a << ": " << of_a[i] << "\n" << b << ": " << of_b[i];
    }
  }
  std::vector<float> weight(const std::string& name, int64_t step, const std::string& tensor) const {
    const SafetensorsSet set(checkpoint_path(dir_.path() / name, step));
    int64_t n = 1;
    for (int64_t d : set.entry(tensor).shape) n *= d;
    std::vector<float> out(static_cast<size_t>(n));
    TensorView view(out.data(), DType::f32, {n});
    if (set.entry(tensor).shape.size() == 2)
      view = TensorView(out.data(), DType::f32, {set.entry(tensor).shape[0], set.entry(tensor).shape[1]});
    set.read(tensor, view);
    return out;
  }

  TempDir dir_;
};

class TrainResume : public TrainLoop, public testing::WithParamInterface<TrainDType> {};

TEST_P(TrainResume, ContinuesToTheBit) {
  const RunConfig c = config(GetParam());
  run_in_parts(c, "whole", {}, {1});
  run_in_parts(c, "half", {10}, {1});
  expect_same_run("whole", "half");
  const std::vector<Json> lines = log_lines("whole", "train");
  ASSERT_EQ(lines.size(), 20u);
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(lines[i].at("step"), i + 1);
  EXPECT_DOUBLE_EQ(lines[0].at("lr").get<double>(), c.train.lr / 8);  // the warm-up was not started again
  EXPECT_EQ(lines[12].at("lr").get<double>(), c.train.lr);
}

TEST_P(TrainResume, ThreadsChangeNothing) {
  const RunConfig c = config(GetParam());
  run_in_parts(c, "one", {}, {1});
  run_in_parts(c, "two", {}, {2});
  run_in_parts(c, "four", {}, {4});
  expect_same_run("one", "two");
  expect_same_run("one", "four");
}

// Three resumes on other thread counts: a plain one, one at the end of an epoch, one inside accumulation.
TEST_P(TrainResume, ThreeTimesOnOtherThreadCounts) {
  const RunConfig c = config(GetParam());
  run_in_parts(c, "whole", {}, {1});
  const int64_t samples = small_data_tokens() / c.train.seq_len;
  const int64_t epoch_end = samples / c.train.global_batch_size;
  ASSERT_GT(epoch_end, 4);
  ASSERT_LT(epoch_end, 19) << "the run must pass an epoch's end";
  // The first of the two micro-batches of the step after `epoch_end` raises the flag.
  struct StopInside : ForwardingOps {
    std::atomic<bool>& stop;
    mutable int64_t left;
    StopInside(std::atomic<bool>& flag, int64_t calls) : ForwardingOps(cpu_ops()), stop(flag), left(calls) {}
    void embedding_backward(Runtime& rt, const EmbeddingBackward& p) const override {
      inner_.embedding_backward(rt, p);
      if (--left == 0) stop = true;
    }
  };
  TrainRequest r = request(c, "parts");
  const std::vector<std::pair<int, int64_t>> parts = {
      {2, 2 * 3}, {4, 2 * (epoch_end - 3)}, {1, 2 * (18 - epoch_end) - 1}};
  const std::vector<int64_t> expected = {3, epoch_end, 17};
  for (size_t i = 0; i < parts.size(); ++i) {
    std::atomic<bool> stop{false};
    const StopInside ops(stop, parts[i].second);
    TestMachine machine(parts[i].first, ops);
    r.stop = &stop;
    r.resume = i > 0;
    expect_interrupted(machine.rt, r);
    EXPECT_EQ(list_checkpoints(r.out).back().step, expected[i]);
  }
  TestMachine machine(2);
  r.stop = nullptr;
  EXPECT_TRUE(train(machine.rt, r).finished);
  expect_same_run("whole", "parts");
}

// With experts: their biases and the log of their loads are part of what continues.
TEST_P(TrainResume, ExpertsContinueToTheBit) {
  RunConfig c = config(GetParam());
  c.model.n_routed_experts = 8;
  c.model.num_experts_per_tok = 2;
  c.model.moe_intermediate_size = 16;
  c.model.first_k_dense_replace = 1;
  c.train.router_bias_rate = 0.01;
  c.train.router_aux_loss_coef = 0.01;
  c.train.router_z_loss_coef = 0.001;
  run_in_parts(c, "whole", {}, {1});
  run_in_parts(c, "parts", {9, 13}, {2, 1, 4});
  expect_same_run("whole", "parts");
  const std::vector<float> bias = weight("whole", 20, "model.layers.1.mlp.gate.e_score_correction_bias");
  ASSERT_EQ(bias.size(), 8u);
  EXPECT_GT(*std::max_element(bias.begin(), bias.end()), 0.0f);
  EXPECT_LT(*std::min_element(bias.begin(), bias.end()), 0.0f);
  for (const float x : bias) EXPECT_NEAR(x * 100, std::round(x * 100), 1e-4) << "whole moves of the rate";
  for (const Json& line : log_lines("whole", "train")) {
    for (const char* key : {"expert_load_max", "expert_load_min", "experts_idle", "expert_load_entropy",
                            "router_entropy", "router_balance_loss", "router_z_loss"}) {
      ASSERT_EQ(line.at(key).size(), 9u) << key;
      EXPECT_TRUE(line.at(key)[0].is_null()) << key;  // a dense layer
      for (int layer = 1; layer < 9; ++layer) EXPECT_TRUE(line.at(key)[layer].is_number()) << key;
    }
    EXPECT_GE(line.at("expert_load_max")[4].get<double>(), 1.0);
    EXPECT_LE(line.at("expert_load_min")[4].get<double>(), 1.0);
    EXPECT_LE(line.at("router_entropy")[4].get<double>(), 1.0);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, TrainResume, testing::Values(TrainDType::f32, TrainDType::bf16),
                         [](const auto& info) { return std::string(enum_name(info.param)); });

// Killed after later steps than the checkpoint: their lines go, and come again once.
TEST_F(TrainLoop, ACrashLeavesNoDoubleLines) {
  RunConfig c = config();
  c.train.checkpoint_interval = 6;
  run_in_parts(c, "whole", {}, {1});
  run_in_parts(c, "crashed", {14}, {1});
  fs::remove_all(checkpoint_path(dir_ / "crashed", 14));  // as if it had been killed there
  write_text(dir_ / "crashed/log.jsonl", read_text(dir_ / "crashed/log.jsonl") + "{\"kind\":\"train\",\"ste");
  TrainRequest r = request(c, "crashed");
  r.resume = true;
  TestMachine machine;
  train(machine.rt, r);
  expect_same_run("whole", "crashed");
}

TEST_F(TrainLoop, MissingStateIsRefused) {
  run_in_parts(config(), "run", {}, {1});
  TrainRequest r = request(config(), "run");
  r.config.train.steps = 25;
  r.resume = true;
  TestMachine machine;
  for (const char* file : {"state.json", "optimizer.safetensors", "model.safetensors"}) {
    const fs::path path = checkpoint_path(r.out, 20) / file;
    fs::rename(path, dir_ / "aside");
    EXPECT_NE(error_of(machine.rt, r, ErrorKind::input).find(file), std::string::npos);
    fs::rename(dir_ / "aside", path);
  }
  fs::remove_all(r.out / "model");  // as after a crash between the checkpoint and the model
  EXPECT_EQ(train(machine.rt, r).steps, 25);
  fs::remove_all(r.out / "model");
  train(machine.rt, r);  // nothing left to train
  EXPECT_TRUE(fs::exists(r.out / "model/config.json"));
}

TEST_F(TrainLoop, EveryNormMovesInBf16AtASmallRate) {
  RunConfig c = config(TrainDType::bf16);
  c.train.steps = 100;
  c.train.warmup_steps = 0;
  c.train.schedule = Schedule::constant;
  c.train.decay_steps = 0;
  c.train.lr = 1e-5;  // a step of bf16 at 1 is 4e-3 to 8e-3: without f32 masters nothing would ever move
  c.train.log_interval = 100;
  c.train.eval_interval = 0;
  TestMachine machine;
  train(machine.rt, request(c, "run"));
  const SafetensorsSet set(checkpoint_path(dir_ / "run", 100));
  int norms = 0;
  for (const std::string& name : set.names()) {
    if (name.find("norm") == std::string::npos) continue;
    ++norms;
    const std::vector<float> values = weight("run", 100, name);
    // A hundred steps up and down may bring an element back to 1 to the last bit; without f32 masters all
    // stay there.
    EXPECT_LE(std::count(values.begin(), values.end(), 1.0f), 2) << name << " of " << values.size();
  }
  EXPECT_EQ(norms, 2 * 9 + 1);
}

TEST_F(TrainLoop, AStepWithoutTargetsIsSkippedAndSaid) {
  RunConfig c = config();
  c.train.steps = 2;
  c.train.warmup_steps = c.train.decay_steps = 0;
  TrainRequest r = request(c, "run");
  r.data = data_without_targets();
  TestMachine machine;
  train(machine.rt, r);
  const std::vector<Json> skips = log_lines("run", "skip");
  ASSERT_EQ(skips.size(), 2u);
  EXPECT_EQ(skips[0].at("reason"), "no_targets");
  TestModel fresh(c.model, DType::f32, static_cast<uint64_t>(c.train.seed));
  for (const Weight* w : fresh.weights.all())
    EXPECT_EQ(weight("run", 2, w->name),
              std::vector<float>(w->master.as<float>(), w->master.as<float>() + w->master.numel()))
        << w->name;
}

// Spoils the gradient of chosen steps (counted from 1 for this object; two micro-batches a step).
struct Spoil : ForwardingOps {
  int64_t first, last;
  mutable int64_t calls = 0;
  Spoil(int64_t from, int64_t to) : ForwardingOps(cpu_ops()), first(from), last(to) {}
  void embedding_backward(Runtime& rt, const EmbeddingBackward& p) const override {
    inner_.embedding_backward(rt, p);
    const int64_t step = calls++ / 2 + 1;
    if (step >= first && step <= last) p.weight.grad.as<float>()[5] = NAN;
  }
};

TEST_F(TrainLoop, NonFiniteGradientsSkipTheStep) {
  RunConfig c = config();
  c.train.max_nonfinite_steps = 3;
  const Spoil ops(5, 6);
  std::vector<std::string> messages;
  TestMachine machine(1, ops, [&](LogLevel level, const std::string& m) {
    if (level == LogLevel::warning) messages.push_back(m);
  });
  EXPECT_TRUE(train(machine.rt, request(c, "run")).finished);
  const std::vector<Json> skips = log_lines("run", "skip");
  ASSERT_EQ(skips.size(), 2u);
  EXPECT_EQ(skips[0].at("step"), 5);
  EXPECT_EQ(skips[0].at("reason"), "nonfinite");
  EXPECT_EQ(skips[1].at("step"), 6);
  EXPECT_EQ(log_lines("run", "train").size(), 18u);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_NE(messages[0].find("step 5"), std::string::npos);
  EXPECT_EQ(read_checkpoint_state(checkpoint_path(dir_ / "run", 20)).applied, 18);
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight"})
    for (float x : weight("run", 20, name)) ASSERT_TRUE(std::isfinite(x));
}

TEST_F(TrainLoop, ARunOfNonFiniteStepsStopsWithTheLastGoodWeights) {
  RunConfig c = config();
  c.train.max_nonfinite_steps = 3;
  const Spoil ops(5, 100);
  TestMachine spoilt(1, ops), healthy;
  const std::string error = error_of(spoilt.rt, request(c, "run"), ErrorKind::failure);
  EXPECT_NE(error.find("3 steps in a row, 5 to 7"), std::string::npos) << error;
  run_in_parts(c, "good", {4}, {1});
  EXPECT_EQ(weight("run", 7, "model.norm.weight"), weight("good", 4, "model.norm.weight"));
  TrainRequest r = request(c, "run");
  r.resume = true;
  EXPECT_TRUE(train(healthy.rt, r).finished);
}

TEST_F(TrainLoop, CheckpointsKeepTheNewestAndTheBest) {
  RunConfig c = config();
  c.train.checkpoint_interval = 4;
  c.train.keep_last = 2;
  TestMachine machine;
  const TrainResult result = train(machine.rt, request(c, "run"));
  const EvalRecord* best = nullptr;
  for (const EvalRecord& e : result.evals)
    if (e.step % 4 == 0 && (!best || e.nats_per_token < best->nats_per_token)) best = &e;
  ASSERT_TRUE(best);
  std::set<int64_t> expected = {16, 20, best->step}, found;
  for (const CheckpointInfo& info : list_checkpoints(dir_ / "run")) found.insert(info.step);
  EXPECT_EQ(found, expected);
}

TEST_F(TrainLoop, ANewStageTakesTheWeightsAlone) {
  TestMachine machine;
  train(machine.rt, request(config(), "first"));
  for (const char* from : {"first/model", "first"}) {  // a model directory, or a run's
    RunConfig c = config();
    c.train.steps = 1;
    c.train.seq_len = 64;
    c.train.lr = 1e-9;
    c.train.warmup_steps = c.train.decay_steps = 0;
    c.model.rope_theta = 640000;
    TrainRequest r = request(c, std::string("second-") + (std::string(from) == "first" ? "run" : "model"));
    r.from = dir_ / from;
    EXPECT_EQ(train(machine.rt, r).tokens, 5 * 64);
    const std::string name = r.out.filename().string();
    const std::vector<float> before = weight("first", 20, "model.layers.3.mlp.up_proj.weight"),
                             after = weight(name, 1, "model.layers.3.mlp.up_proj.weight");
    for (size_t i = 0; i < before.size(); ++i) ASSERT_NEAR(before[i], after[i], 1e-7);
    EXPECT_EQ(read_checkpoint_state(checkpoint_path(r.out, 1)).applied, 1);
    EXPECT_EQ(load_run_config(r.out / "model").model.rope_theta, 640000);
  }
}

TEST_F(TrainLoop, RefusesWhatDoesNotFit) {
  TestMachine machine;
  const RunConfig c = config();
  TrainRequest r = request(c, "run");
  r.resume = true;
  EXPECT_NE(error_of(machine.rt, r, ErrorKind::input).find("no training run"), std::string::npos);
  r.resume = false;
  r.config.model.vocab_size = 200;
  EXPECT_NE(error_of(machine.rt, r, ErrorKind::input).find("vocab_size"), std::string::npos);
  r.config = c;
  r.config.train.seq_len = 1024;  // above max_position_embeddings
  EXPECT_NE(error_of(machine.rt, r, ErrorKind::input).find("max_position_embeddings"), std::string::npos);
  r.config = c;
  r.config.model.max_position_embeddings = r.config.train.seq_len = 1 << 20;  // more than there is
  EXPECT_NE(error_of(machine.rt, r, ErrorKind::input).find("training tokens"), std::string::npos);
  EXPECT_TRUE(list_checkpoints(r.out).empty());

  run_in_parts(c, "run", {3}, {1});
  r = request(c, "run");
  EXPECT_NE(error_of(machine.rt, r, ErrorKind::input).find("--resume"), std::string::npos);
  r.resume = true;
  r.config.train.steps = 2;
  r.config.train.decay_steps = 0;
  EXPECT_NE(error_of(machine.rt, r, ErrorKind::input).find("train.steps 2 lies before the run's step 20"),
            std::string::npos);
  r.config = c;
  r.config.train.seq_len = 16;
  EXPECT_NE(error_of(machine.rt, r, ErrorKind::input).find("train.seq_len was 32 and is now 16"),
            std::string::npos);
  r.config = c;
  r.config.model.hysparse_topk_tokens = 8;
  EXPECT_NE(error_of(machine.rt, r, ErrorKind::input).find("hysparse_topk_tokens"), std::string::npos);
  r.config = c;
  r.data = other_small_data();
  EXPECT_NE(error_of(machine.rt, r, ErrorKind::input).find("not the data"), std::string::npos);
}

TEST_F(TrainLoop, DataThatLacksAFileIsRefused) {
  RunConfig c = config();
  c.train.steps = 2;
  c.train.warmup_steps = c.train.decay_steps = 0;
  TrainRequest r = request(c, "run");
  r.data = dir_ / "data";
  fs::copy(small_data(), r.data);
  std::vector<std::string> said;
  TestMachine machine(1, cpu_ops(), [&](LogLevel, const std::string& m) { said.push_back(m); });
  for (const char* file : {"holdout.tokens", "train.tokens", "meta.json", "tokenizer.json"}) {
    fs::rename(r.data / file, dir_ / "aside");
    EXPECT_NE(error_of(machine.rt, r, ErrorKind::input).find(file), std::string::npos) << file;
    fs::rename(dir_ / "aside", r.data / file);
  }
  EXPECT_FALSE(fs::exists(r.out));

  // As `data prepare --holdout 0` leaves it.
  Json meta = read_json_file(r.data / "meta.json");
  meta["splits"].erase("holdout");
  write_text(r.data / "meta.json", dump_json(meta));
  fs::remove(r.data / "holdout.tokens");
  EXPECT_TRUE(train(machine.rt, r).evals.empty());
  EXPECT_EQ(std::count_if(said.begin(), said.end(),
                          [](const std::string& m) { return m.find("no held-out part") != m.npos; }),
            1);
}

TEST_F(TrainLoop, ARunHasAFolderOfItsOwn) {
  const auto refused = [&](const fs::path& out) {
    try {
      check_run_folder(out);
    } catch (const Error& e) {
      return e.kind() == ErrorKind::input;
    }
    return false;
  };
  EXPECT_FALSE(refused(dir_ / "new"));
  write_text(dir_ / "run/.lock", "");
  EXPECT_FALSE(refused(dir_ / "run"));
  EXPECT_TRUE(refused("."));
  EXPECT_TRUE(refused("/"));
  EXPECT_TRUE(refused(dir_ / "run/.lock"));
  write_text(dir_ / "run/thesis.doc", "years of work");
  EXPECT_TRUE(refused(dir_ / "run"));
  write_text(dir_ / "run/log.jsonl", "");
  EXPECT_FALSE(refused(dir_ / "run"));
}

TEST(HeldOutWindows, AreSpreadEvenly) {
  for (const int64_t total : {1, 7, 12, 1000})
    for (int64_t count = 1; count <= std::min<int64_t>(total, 40); ++count)
      for (int64_t i = 0; i < count; ++i)
        ASSERT_EQ(spread_window(i, count, total), (2 * i + 1) * total / (2 * count)) << total << " " << count;
  EXPECT_EQ(spread_window(3, 12, 12), 3);
}

// The windows that are read are those, and not the split's first ones: a split of two halves that the model
// tells apart has the loss of neither half alone.
TEST_F(TrainLoop, FewHeldOutTokensSeeTheWholeSplit) {
  TestModel model(config().model);
  TestMachine machine;
  const auto loss_of = [&](const std::string& name, int32_t first_half, int32_t second_half) {
    TokenFileHeader header;
    header.vocab_size = kSmallVocab;
    header.eos_id = 0;
    header.fingerprint = std::string(32, 'f');
    fs::create_directories(dir_ / name);
    TokenFileWriter writer(dir_ / name / "train.tokens", header);
    for (int i = 0; i < 320; ++i) writer.add_tokens(i < 160 ? &first_half : &second_half, 1);
    writer.end_document(320);
    writer.finish();
    HeldOutOptions o;
    o.seq_len = 32;
    o.max_tokens = 64;
    return evaluate_held_out(machine.rt, model.model, TokenData(dir_ / name, "train"), o).nats_per_token;
  };
  const double a = loss_of("a", 5, 5), b = loss_of("b", 9, 9), both = loss_of("both", 5, 9);
  EXPECT_GT(std::abs(a - b), 1e-3);
  EXPECT_NEAR(both, (a + b) / 2, 1e-5);
}

TEST_F(TrainLoop, AnotherProcessInTheSameFolderIsRefused) {
  TestMachine machine, second;
  TrainRequest r = request(config(), "run");
  std::string error;
  r.progress = [&](const TrainProgress& p) {
    if (p.step != 2) return;
    TrainRequest other = request(config(), "run");
    other.resume = true;
    error = error_of(second.rt, other, ErrorKind::input);
  };
  train(machine.rt, r);
  EXPECT_NE(error.find("another process"), std::string::npos);
}

TEST_F(TrainLoop, TheLogShowsEveryLayersGatesSinksAndOverlap) {
  RunConfig c = config();
  c.train.sample_interval = 10;
  c.train.sample_prompt = "the cat";
  TrainRequest r = request(c, "run");
  r.sample = [](Runtime&, Model&, const Tokenizer& t, const std::string& prompt, int64_t n) {
    return fmt::format("{} {} {}", prompt, n, t.vocab_size() > 0);
  };
  TestMachine machine;
  const TrainResult result = train(machine.rt, r);
  EXPECT_EQ(result.samples.size(), 2u);
  EXPECT_EQ(log_lines("run", "sample")[0].at("text"), "the cat 64 true");
  EXPECT_EQ(log_lines("run", "sample")[1].at("step"), 20);
  for (const Json& line : log_lines("run", "train")) {
    for (int layer = 0; layer < 9; ++layer) {
      const bool sparse = layer % 4 != 0;
      for (const char* key : {"sparse_gate_mean", "window_gate_mean"}) {
        ASSERT_EQ(line.at(key).size(), 9u);
        ASSERT_EQ(line.at(key)[layer].is_number(), sparse) << key << " " << layer;
        if (sparse) {
          EXPECT_GT(line.at(key)[layer].get<double>(), 0.0);
          EXPECT_LT(line.at(key)[layer].get<double>(), 1.0);
        }
      }
      for (const char* key : {"sparse_sink_mean", "window_sink_mean"})
        EXPECT_EQ(line.at(key)[layer].is_number(), sparse) << key << " " << layer;
    }
    ASSERT_EQ(line.at("selection_overlap").size(), 9u);
    EXPECT_FALSE(line.contains("expert_load_max"));  // no experts, no word of them
  }
  const std::vector<Json> evals = log_lines("run", "eval");
  ASSERT_EQ(evals.size(), 3u);  // 7, 14 and the end
  EXPECT_GT(evals[0].at("nats_per_token").get<double>(), evals[2].at("nats_per_token").get<double>());
  EXPECT_GT(evals[2].at("bits_per_byte").get<double>(), 0.0);
}

TEST_F(TrainLoop, TheTimeLimitSavesAndCanBeContinued) {
  RunConfig c = config();
  c.train.time_limit_seconds = 1e-9;
  TestMachine machine;
  TrainRequest r = request(c, "run");
  const TrainResult first = train(machine.rt, r);
  EXPECT_FALSE(first.finished);
  EXPECT_EQ(first.steps, 1);
  r.config.train.time_limit_seconds = 0;
  r.resume = true;
  EXPECT_TRUE(train(machine.rt, r).finished);
}

}  // namespace
}  // namespace hysparse
