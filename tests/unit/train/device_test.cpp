// Training where weights, activations and state live on a device that host code cannot read: the same bits as
// on the host, checkpoints and resume included.
#include <gtest/gtest.h>

#include "io/files.h"
#include "train/loop.h"
#include "unit/support/fake_device.h"
#include "unit/train/small_data.h"
#include "unit/train/tiny.h"

namespace hysparse {
namespace {

using namespace tests;

RunConfig config(Recompute recompute) {
  RunConfig c;
  c.model = tiny_config();
  c.model.vocab_size = kSmallVocab;
  c.train.steps = 4;
  c.train.seq_len = 32;
  c.train.global_batch_size = 3;
  c.train.micro_batch_size = 2;
  c.train.recompute = recompute;
  c.train.log_interval = 2;
  c.train.eval_interval = 2;
  c.train.eval_tokens = 128;
  c.train.checkpoint_interval = 2;
  return c;
}

std::string trained(Runtime& rt, const RunConfig& c, const std::filesystem::path& out) {
  TrainRequest r;
  r.config = c;
  r.data = small_data();
  r.out = out;
  r.config.train.steps = 2;
  train(rt, r);
  r.config.train.steps = 4;
  r.resume = true;
  train(rt, r);
  return read_file(out / "model" / "model.safetensors");
}

TEST(Device, TrainingTouchesItsMemoryThroughOperationsAlone) {
  const TempDir dir;
  for (const Recompute recompute : {Recompute::none, Recompute::layer}) {
    const RunConfig c = config(recompute);
    const std::string name(enum_name(recompute));
    ThreadPool pool(2);
    Arena host_scratch;
    Runtime host{pool, host_scratch, cpu_ops(), host_memory()};
    const std::string expected = trained(host, c, dir / ("host-" + name));
    FakeDevice device;
    const FakeDeviceOps ops(cpu_ops(), device);
    Arena scratch(device);
    Runtime rt{pool, scratch, ops, device};
    EXPECT_TRUE(trained(rt, c, dir / ("device-" + name)) == expected) << name;
  }
}

// More than the device has: refused before anything is taken, with the setting that would make it fit.
TEST(Device, ARunThatDoesNotFitIsRefusedWithTheWayOut) {
  class Small : public FakeDevice {
   public:
    explicit Small(size_t bytes) : bytes_(bytes) {}
    size_t available() const override { return bytes_; }

   private:
    size_t bytes_;
  };
  const TempDir dir;
  RunConfig c = config(Recompute::none);
  c.train.seq_len = 512;
  c.train.global_batch_size = 8;
  c.train.micro_batch_size = 8;
  TrainRequest r;
  r.config = c;
  r.data = small_data();
  r.out = dir / "run";
  const auto refusal = [&](size_t bytes) -> std::string {
    Small device(bytes);
    const FakeDeviceOps ops(cpu_ops(), device);
    Arena scratch(device);
    ThreadPool pool(1);
    Runtime rt{pool, scratch, ops, device};
    try {
      train(rt, r);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::input) << e.what();
      return e.what();
    }
    return "";
  };
  EXPECT_NE(refusal(size_t(1) << 20).find("shorter train.seq_len"), std::string::npos);
  const std::string hint = refusal(size_t(700) << 20);
  EXPECT_NE(hint.find("GB of GPU memory"), std::string::npos) << hint;
  EXPECT_NE(hint.find("train.recompute="), std::string::npos) << hint;
}

}  // namespace
}  // namespace hysparse
