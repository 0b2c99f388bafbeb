#include "train/run_config.h"

#include "base/error.h"
#include "unit/train/tiny.h"

namespace hysparse {
namespace {

using tests::TempDir;
using tests::write_text;

const char* kRun = R"({
  "num_hidden_layers": 9, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
  "intermediate_size": 96, "vocab_size": 97, "attention": "hysparse", "full_attention_interval": 4,
  "hysparse_block_size": 4, "hysparse_topk_tokens": 16,
  "train": {"lr": 0.002, "steps": 20, "schedule": "cosine", "recompute": "layer"},
  "data": {"document_mask": false}
})";

class RunConfigTest : public testing::Test {
 protected:
  RunConfigTest() { write_text(file(), kRun); }
  std::filesystem::path file() const { return dir_ / "run.json"; }
  RunConfig load(const std::vector<std::string>& sets = {}) const { return load_run_config(file(), sets); }
  std::string error(const std::vector<std::string>& sets) const {
    try {
      load(sets);
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), 2);
      return e.what();
    }
    return "no error";
  }
  TempDir dir_;
};

TEST_F(RunConfigTest, ReadsModelAndSettings) {
  const RunConfig c = load();
  EXPECT_EQ(c.model.hidden_size, 64);
  EXPECT_EQ(c.train.lr, 0.002);
  EXPECT_EQ(c.train.steps, 20);
  EXPECT_EQ(c.train.schedule, Schedule::cosine);
  EXPECT_EQ(c.train.recompute, Recompute::layer);
  EXPECT_FALSE(c.data.document_mask);
  EXPECT_TRUE(c.data.shuffle);
}

TEST_F(RunConfigTest, OverridesReachEveryGroup) {
  const RunConfig c = load({"train.lr=3e-4", "data.document_mask=true", "rope_theta=640000",
                            "train.dtype=bf16", "train.sample_prompt=It is = a truth"});
  EXPECT_EQ(c.train.lr, 3e-4);
  EXPECT_TRUE(c.data.document_mask);
  EXPECT_EQ(c.model.rope_theta, 640000.0);
  EXPECT_EQ(c.train.dtype, TrainDType::bf16);
  EXPECT_EQ(c.train.sample_prompt, "It is = a truth");
}

TEST_F(RunConfigTest, AttentionOverrideReplacesTheLayout) {
  const RunConfig full = load({"attention=full"});
  for (const std::string& type : full.model.layer_types) EXPECT_EQ(type, "full_attention");
  write_text(dir_ / "saved.json", run_config_json(load()));  // states layer_types
  const RunConfig swa = load_run_config(dir_ / "saved.json", {"attention=hybrid_swa"});
  EXPECT_EQ(swa.model.layer_types[0], "full_attention");
  EXPECT_EQ(swa.model.layer_types[1], "sliding_attention");
  EXPECT_EQ(swa.model.layer_types[8], "full_attention");
}

TEST_F(RunConfigTest, WhatIsWrittenIsReadBack) {
  const RunConfig c = load({"train.seed=7", "data.shuffle=false"});
  write_text(dir_ / "again.json", run_config_json(c));
  EXPECT_TRUE(config_changes(c, load_run_config(dir_ / "again.json")).empty());
}

TEST_F(RunConfigTest, ChangesAreNamed) {
  const std::vector<ConfigChange> changes =
      config_changes(load(), load({"train.lr=1", "hysparse_topk_tokens=8"}));
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].key, "hysparse_topk_tokens");
  EXPECT_EQ(changes[0].before, "16");
  EXPECT_EQ(changes[0].after, "8");
  EXPECT_EQ(changes[1].key, "train.lr");
}

TEST_F(RunConfigTest, UnknownKeysNameTheNearest) {
  EXPECT_NE(error({"train.learning_rat=1"}).find("unknown key"), std::string::npos);
  EXPECT_NE(error({"train.warmup_step=1"}).find("train.warmup_steps"), std::string::npos);
  EXPECT_NE(error({"hiden_size=1"}).find("hidden_size"), std::string::npos);
  EXPECT_NE(error({"trian.lr=1"}).find("train.lr"), std::string::npos);
  EXPECT_NE(error({"lr"}).find("key=value"), std::string::npos);
  std::string text = kRun;
  text.replace(text.find("\"train\""), 7, "\"trian\"");
  write_text(file(), text);
  EXPECT_NE(error({}).find("\"train\""), std::string::npos);
}

TEST_F(RunConfigTest, RangesAreChecked) {
  for (const char* set :
       {"train.steps=0", "train.seq_len=0", "train.lr=0", "train.lr=-1", "train.min_lr=1", "train.beta2=1",
        "train.micro_batch_size=9", "train.keep_last=0", "train.decay_steps=5", "train.eps=0",
        "train.warmup_steps=-1", "train.log_interval=0"})
    EXPECT_NE(error({set}), "no error") << set;
}

TEST_F(RunConfigTest, ReadsAModelDirectory) {
  write_text(dir_ / "model/config.json", model_config_json(load().model));
  const RunConfig c = load_run_config(dir_ / "model", {"train.steps=3"});
  EXPECT_EQ(c.model.hidden_size, 64);
  EXPECT_EQ(c.train.steps, 3);
}

}  // namespace
}  // namespace hysparse
