// Checkpoints: whole or not there, never a mixture, never the last good one gone.
#include "train/checkpoint.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "base/error.h"
#include "unit/train/tiny.h"

namespace hysparse {
namespace {

using namespace tests;
namespace fs = std::filesystem;

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() : model_(small()), optimizer_(model_.weights) {
    state_.config.model = model_.config;
    state_.data_fingerprint = "data";
    write_text(tokenizer_ / "tokenizer.json", "{}");
    fill(0);
  }
  static ModelConfig small() {
    ModelConfig c = tiny_config();
    c.num_hidden_layers = 2;
    c.layer_types.clear();
    c.finalize("TINY");
    return c;
  }
  void fill(int seed) {
    Rng rng(static_cast<uint64_t>(seed));
    for (Optimizer::Slot& s : optimizer_.slots())
      for (const TensorView& t : {s.weight->master, s.m, s.v})
        for (int64_t i = 0; i < t.numel(); ++i) t.as<float>()[i] = static_cast<float>(rng.normal());
  }
  void kill_during_saves(int rounds);
  void save(int64_t step, std::optional<double> loss = {}) {
    state_.step = step;
    state_.samples = 8 * step;
    state_.applied = step - 1;
    state_.heldout_nats_per_token = loss;
    fill(static_cast<int>(step));
    save_checkpoint(out(), state_, model_.weights, optimizer_, tokenizer_);
  }
  std::vector<int64_t> steps() const {
    std::vector<int64_t> found;
    for (const CheckpointInfo& c : list_checkpoints(out())) found.push_back(c.step);
    return found;
  }
  std::string error_of(const std::function<void()>& call) const {
    try {
      call();
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
  fs::path out() const { return dir_.path() / "run"; }

  TempDir dir_;
  fs::path tokenizer_ = dir_.path() / "tokenizer";
  TestModel model_;
  Optimizer optimizer_;
  TrainState state_;
};

TEST_F(CheckpointTest, ComesBackToTheBit) {
  save(10, 3.25);
  std::vector<std::vector<float>> kept;
  for (Optimizer::Slot& s : optimizer_.slots())
    for (const TensorView& t : {s.weight->master, s.m, s.v})
      kept.emplace_back(t.as<float>(), t.as<float>() + t.numel());
  fill(99);
  optimizer_.set_applied(77);
  const fs::path dir = checkpoint_path(out(), 10);
  const TrainState back = read_checkpoint_state(dir);
  load_checkpoint(dir, back, model_.weights, optimizer_);
  EXPECT_EQ(back.step, 10);
  EXPECT_EQ(back.samples, 80);
  EXPECT_EQ(optimizer_.applied(), 9);
  EXPECT_EQ(back.heldout_nats_per_token, 3.25);
  EXPECT_FALSE(back.heldout_bits_per_byte.has_value());
  EXPECT_EQ(back.data_fingerprint, "data");
  EXPECT_TRUE(config_changes(back.config, state_.config).empty());
  size_t i = 0;
  for (Optimizer::Slot& s : optimizer_.slots())
    for (const TensorView& t : {s.weight->master, s.m, s.v})
      EXPECT_EQ(std::vector<float>(t.as<float>(), t.as<float>() + t.numel()), kept[i++]) << s.weight->name;
}

// f32 masters survive although the model computes in bf16.
TEST_F(CheckpointTest, KeepsMasterPrecision) {
  TestModel narrow(small(), DType::bf16);
  Optimizer optimizer(narrow.weights);
  Weight& w = *narrow.weights.find("model.norm.weight");
  w.master.as<float>()[3] = 1.0001f;  // not a bf16 number
  save_checkpoint(out(), state_, narrow.weights, optimizer, {});
  w.master.as<float>()[3] = 0.0f;
  const fs::path dir = checkpoint_path(out(), 0);
  load_checkpoint(dir, read_checkpoint_state(dir), narrow.weights, optimizer);
  EXPECT_EQ(w.master.as<float>()[3], 1.0001f);
  EXPECT_EQ(static_cast<float>(w.value.as<bf16>()[3]), 1.0f);
}

TEST_F(CheckpointTest, TheModelFolderIsTheNewestWithoutTrainingState) {
  save(10);
  save(20);
  EXPECT_FALSE(fs::exists(out() / "model/optimizer.safetensors"));
  EXPECT_FALSE(fs::exists(out() / "model/state.json"));
  EXPECT_TRUE(fs::exists(out() / "model/tokenizer.json"));
  EXPECT_EQ(read_text(out() / "model/model.safetensors"),
            read_text(checkpoint_path(out(), 20) / "model.safetensors"));
  EXPECT_EQ(load_run_config(out() / "model").model.hidden_size, 64);
}

TEST_F(CheckpointTest, EveryMissingOrShortFileIsRefused) {
  save(10);
  const fs::path dir = checkpoint_path(out(), 10);
  for (const char* name :
       {"model.safetensors", "optimizer.safetensors", "state.json", "config.json", "tokenizer.json"}) {
    const std::string content = read_text(dir / name);
    fs::remove(dir / name);
    EXPECT_NE(error_of([&] { read_checkpoint_state(dir); }).find(name), std::string::npos);
    if (std::string(name) != "state.json") {
      write_text(dir / name, content.substr(0, content.size() / 2));
      EXPECT_NE(error_of([&] { read_checkpoint_state(dir); }).find(name), std::string::npos);
    }
    write_text(dir / name, content);
  }
  EXPECT_EQ(error_of([&] { read_checkpoint_state(dir); }), "no error");
}

// Overwritten bytes keep every size: only the checksums tell.
TEST_F(CheckpointTest, OverwrittenBytesAreRefusedWithTheWayOut) {
  save(10);
  const fs::path dir = checkpoint_path(out(), 10);
  for (const char* name :
       {"model.safetensors", "optimizer.safetensors", "config.json", "tokenizer.json", "state.json"}) {
    const std::string content = read_text(dir / name);
    std::string other = content;
    if (std::string(name) == "state.json")
      other[content.find("\"samples\": 80") + 11] = '9';
    else
      other[content.size() * 3 / 4] ^= 1;
    write_text(dir / name, other);
    const std::string error =
        error_of([&] { load_checkpoint(dir, read_checkpoint_state(dir), model_.weights, optimizer_); });
    EXPECT_NE(error.find(name), std::string::npos) << error;
    EXPECT_NE(error.find("checksum"), std::string::npos) << error;
    EXPECT_NE(error.find("remove " + dir.string() + " to resume from the one before"), std::string::npos)
        << error;
    write_text(dir / name, content);
  }
  write_text(dir / "state.json", read_text(dir / "state.json").substr(0, 100));
  EXPECT_NE(error_of([&] { read_checkpoint_state(dir); }).find("to resume from the one before"),
            std::string::npos);
}

TEST_F(CheckpointTest, AMixtureOfTwoIsRefused) {
  save(10);
  save(20);
  const fs::path a = checkpoint_path(out(), 10), b = checkpoint_path(out(), 20);
  for (const char* name : {"optimizer.safetensors", "model.safetensors"}) {
    const std::string content = read_text(b / name);
    write_text(b / name, read_text(a / name));
    EXPECT_NE(error_of([&] {
                load_checkpoint(b, read_checkpoint_state(b), model_.weights, optimizer_);
              }).find(name),
              std::string::npos);
    write_text(b / name, content);
  }
}

TEST_F(CheckpointTest, KeepsTheLastOnesAndTheBest) {
  save(10, 3.0);
  save(20, 2.0);
  save(30, 2.5);
  save(40, 2.6);
  save(50);
  prune_checkpoints(out(), 2);
  EXPECT_EQ(steps(), (std::vector<int64_t>{20, 40, 50}));
  prune_checkpoints(out(), 1);
  EXPECT_EQ(steps(), (std::vector<int64_t>{20, 50}));
}

TEST_F(CheckpointTest, ADamagedOneDoesNotCountAsKept) {
  save(10, 2.0);
  save(20, 1.0);
  save(30, 3.0);
  fs::remove(checkpoint_path(out(), 20) / "optimizer.safetensors");
  fs::remove(checkpoint_path(out(), 30) / "state.json");
  prune_checkpoints(out(), 1);
  EXPECT_EQ(steps(), (std::vector<int64_t>{10, 20, 30}));  // 10 is the only one to resume from
}

TEST_F(CheckpointTest, AFailedSaveLeavesTheOldOne) {
  save(10);
  const std::string before = read_text(checkpoint_path(out(), 10) / "model.safetensors");
  state_.config.model.layer_types.clear();  // not finalized: cannot be written
  EXPECT_NE(error_of([&] { save(10); }), "no error");
  EXPECT_EQ(read_text(checkpoint_path(out(), 10) / "model.safetensors"), before);
  EXPECT_EQ(steps(), std::vector<int64_t>{10});
}

TEST_F(CheckpointTest, LeftoversOfACrashAreRemoved) {
  save(10);
  write_text(out() / "checkpoints/.step-00000020.tmp-1-0/model.safetensors", "half");
  write_text(out() / "checkpoints/.removed-step-00000005/state.json", "{}");
  write_text(out() / ".model.tmp-1-0/config.json", "{}");
  write_text(out() / ".mine/notes", "kept");
  remove_stale_checkpoints(out());
  EXPECT_EQ(steps(), std::vector<int64_t>{10});
  EXPECT_FALSE(fs::exists(out() / "checkpoints/.step-00000020.tmp-1-0"));
  EXPECT_FALSE(fs::exists(out() / "checkpoints/.removed-step-00000005"));
  EXPECT_FALSE(fs::exists(out() / ".model.tmp-1-0"));
  EXPECT_TRUE(fs::exists(out() / ".mine/notes"));
}

// Killed at any moment of a save or of a removal: whatever is listed is whole and of one step.
void CheckpointTest::kill_during_saves(int rounds) {
  const auto start = std::chrono::steady_clock::now();
  save(1);
  const auto one_save =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
  int64_t next = 2;
  Rng rng(5);
  for (int round = 0; round < rounds; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        for (int64_t step = next;; ++step) {
          save(step, 1.0 / static_cast<double>(step));
          prune_checkpoints(out(), 1);
        }
      } catch (...) {
        _exit(1);
      }
    }
    usleep(static_cast<useconds_t>(rng.below(static_cast<uint64_t>(4 * one_save.count()))));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    const std::vector<CheckpointInfo> found = list_checkpoints(out());
    for (const CheckpointInfo& c : found) {
      const TrainState state = read_checkpoint_state(c.dir);
      load_checkpoint(c.dir, state, model_.weights, optimizer_);
      ASSERT_EQ(state.step, c.step);
      Rng expected(static_cast<uint64_t>(c.step));
      for (Optimizer::Slot& s : optimizer_.slots())
        for (const TensorView& t : {s.weight->master, s.m, s.v})
          for (int64_t i = 0; i < t.numel(); ++i)
            ASSERT_EQ(t.as<float>()[i], static_cast<float>(expected.normal()))
                << c.dir << " " << s.weight->name;
    }
    if (!found.empty()) next = found.back().step + 1;
    if (fs::exists(out() / "model")) load_master_weights(out() / "model", model_.weights);
    remove_stale_checkpoints(out());
  }
  EXPECT_GT(next, 10) << "hardly any save finished: nothing was tested";
}

TEST_F(CheckpointTest, AKillDuringASaveNeverLeavesAMixture) {
  kill_during_saves(25);
}
class FullCheckpointTest : public CheckpointTest {};
TEST_F(FullCheckpointTest, AHundredKillsDuringSavesNeverLeaveAMixture) {
  kill_during_saves(100);
}

TEST_F(CheckpointTest, AReadOnlyFolderIsAnErrorThatKeepsTheOldOne) {
  save(10);
  if (geteuid() == 0) {  // root writes anywhere: a file where the folder belongs fails for everyone
    fs::rename(out() / "checkpoints", out() / "kept");
    write_text(out() / "checkpoints", "");
    EXPECT_NE(error_of([&] { save(20); }).find("checkpoints"), std::string::npos);
    fs::remove(out() / "checkpoints");
    fs::rename(out() / "kept", out() / "checkpoints");
  } else {
    fs::permissions(out() / "checkpoints", fs::perms::owner_read | fs::perms::owner_exec);
    EXPECT_NE(error_of([&] { save(20); }).find("checkpoints"), std::string::npos);
    fs::permissions(out() / "checkpoints", fs::perms::owner_all);
  }
  EXPECT_EQ(steps(), std::vector<int64_t>{10});
  EXPECT_EQ(error_of([&] { read_checkpoint_state(checkpoint_path(out(), 10)); }), "no error");
}

TEST_F(CheckpointTest, WeightsOfAnotherShapeAreRefused) {
  save(10);
  ModelConfig wide = small();
  wide.intermediate_size = 128;
  TestModel other(wide);
  const std::string error = error_of([&] { load_master_weights(out() / "model", other.weights); });
  EXPECT_NE(error.find("mlp.gate_proj.weight"), std::string::npos);
  EXPECT_NE(error.find("[128, 64]"), std::string::npos);
}

}  // namespace
}  // namespace hysparse
