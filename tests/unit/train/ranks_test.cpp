// Training on several ranks: what N ranks compute together is what one computes, to rounding; what they save,
// any number of ranks reads.
#include <cmath>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>

#include "io/json_value.h"
#include "io/safetensors.h"
#include "train/balance.h"
#include "train/checkpoint.h"
#include "train/evaluate.h"
#include "train/loop.h"
#include "train/memory_plan.h"
#include "train/step.h"
#include "unit/support/fake_device.h"
#include "unit/support/ranks.h"
#include "unit/train/small_data.h"
#include "unit/train/tiny.h"

namespace hysparse {
namespace {

using namespace tests;
namespace fs = std::filesystem;

ModelConfig three_layers() {
  ModelConfig c = tiny_config();
  c.num_hidden_layers = 3;
  c.layer_types.clear();
  c.finalize("TINY");
  return c;
}
ModelConfig experts_config() {
  ModelConfig c = three_layers();
  c.layer_types.clear();
  c.n_routed_experts = 8;
  c.num_experts_per_tok = 2;
  c.moe_intermediate_size = 16;
  c.first_k_dense_replace = 1;
  c.finalize("experts");
  return c;
}

using Values = std::map<std::string, std::vector<double>>;

void add_values(Values& to, const std::string& name, const TensorView& t, int64_t begin, int64_t size) {
  std::vector<double>& v = to[name];
  v.resize(static_cast<size_t>(size));
  for (int64_t i = 0; i < t.numel(); ++i)
    v[static_cast<size_t>(begin + i)] = t.dtype == DType::f64
                                            ? static_cast<double*>(t.data)[i]
                                            : static_cast<double>(static_cast<float*>(t.data)[i]);
}
double largest_difference(const Values& a, const Values& b) {
  double worst = 0;
  EXPECT_EQ(a.size(), b.size());
  for (const auto& [name, x] : a) {
    const std::vector<double>& y = b.at(name);
    EXPECT_EQ(x.size(), y.size()) << name;
    double scale = 0, difference = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      scale = std::max(scale, std::abs(x[i]));
      difference = std::max(difference, std::abs(x[i] - y[i]));
    }
    if (scale > 0) worst = std::max(worst, difference / scale);
  }
  return worst;
}

struct Step {
  StepGradient gradient;
  double norm = 0;
  Values gradients;
};
// The gradient that `ranks` ranks make of rows with so many targets each, in micro-batches of `rows`.
Step step_on(int ranks, const ModelConfig& config, const std::vector<int64_t>& targets, size_t rows) {
  Step out;
  std::mutex mutex;
  with_ranks(ranks, [&](Comm& comm) {
    TestMachine machine(1, cpu_ops(), {}, comm);
    TestModel m(config, DType::f32, 1, comm);
    Optimizer optimizer(m.weights);
    std::vector<TrainBatch> batches;
    const size_t n = targets.size(), r = static_cast<size_t>(comm.rank()), of = static_cast<size_t>(ranks);
    for (size_t row = n * r / of; row < n * (r + 1) / of; row += rows)
      batches.push_back(labelled_rows(targets, row, std::min(row + rows, n * (r + 1) / of), 24, 97));
    const StepGradient g =
        accumulate_gradient(machine.rt, m.model, batches, Recompute::none, true, nullptr, {0.1, 0.1});
    optimizer.reduce_gradients(machine.rt);
    const double norm = optimizer.gradient_norm(machine.rt);
    const std::lock_guard lock(mutex);
    for (const Optimizer::Slot& s : optimizer.slots())
      add_values(out.gradients, s.weight->name, s.grad, s.weight->master_begin, s.weight->value.numel());
    if (comm.rank() == 0) {
      out.gradient = g;
      out.norm = norm;
    } else {
      EXPECT_EQ(out.norm == 0 || out.norm == norm, true);
    }
    for (const TensorView& load : {m.weights.expert_loads()})
      if (load)
        for (int64_t i = 0; i < load.numel(); ++i)
          if (comm.rank() == 0) out.gradients["load"].push_back(static_cast<double>(load.as<int64_t>()[i]));
  });
  return out;
}

void expect_same_step(const Step& one, const Step& many) {
  EXPECT_LT(largest_difference(one.gradients, many.gradients), 1e-5);
  EXPECT_NEAR(many.norm, one.norm, 1e-6 * one.norm);
  EXPECT_NEAR(many.gradient.loss_sum, one.gradient.loss_sum, 1e-6 * one.gradient.loss_sum);
  EXPECT_EQ(many.gradient.targets, one.gradient.targets);
  EXPECT_EQ(many.gradient.tokens, one.gradient.tokens);
  const auto means = [](const Model::TrainStats& s) {
    return std::vector{s.sparse_gate_mean, s.window_gate_mean, s.selection_overlap,
                       s.router_entropy,   s.balance_loss,     s.z_loss};
  };
  const auto a = means(one.gradient.stats), b = means(many.gradient.stats);
  for (size_t k = 0; k < a.size(); ++k) {
    ASSERT_EQ(a[k].size(), b[k].size()) << k;
    for (size_t i = 0; i < a[k].size(); ++i) {
      EXPECT_EQ(std::isnan(a[k][i]), std::isnan(b[k][i])) << k << " " << i;
      if (!std::isnan(a[k][i])) {
        EXPECT_NEAR(a[k][i], b[k][i], 1e-5 * (1 + std::abs(a[k][i]))) << k << " " << i;
      }
    }
  }
}

// Few targets on one rank, many on the other: the mean is one over all of them.
TEST(Ranks, UnequalTargetCountsGiveTheSameGradient) {
  const std::vector<int64_t> targets = {2, 2, 2, 2, 16, 16, 16, 16};
  const Step one = step_on(1, tiny_config(), targets, 8);
  EXPECT_EQ(one.gradient.targets, 72);
  expect_same_step(one, step_on(2, tiny_config(), targets, 4));
  expect_same_step(one, step_on(2, tiny_config(), targets, 1));
  expect_same_step(one, step_on(3, tiny_config(), targets, 2));
  expect_same_step(one, step_on(4, tiny_config(), targets, 2));
}

// The loads of experts, and the losses of their router, too.
TEST(Ranks, ExpertsSeeTheTokensOfAllRanks) {
  const std::vector<int64_t> targets = {4, 0, 24, 9};
  const Step one = step_on(1, experts_config(), targets, 1);  // means leave out micro-batches without labels
  ASSERT_EQ(one.gradients.at("load").size(), 16u);
  expect_same_step(one, step_on(2, experts_config(), targets, 1));
  expect_same_step(one, step_on(4, experts_config(), targets, 1));
}

TEST(Ranks, ARankWithoutTargetsAddsNothing) {
  const std::vector<int64_t> targets = {9, 3, 0, 0};
  for (const ModelConfig& config : {tiny_config(), experts_config()})
    expect_same_step(step_on(1, config, targets, 2), step_on(2, config, targets, 2));
  const Step none = step_on(2, tiny_config(), {0, 0}, 1);
  EXPECT_EQ(none.gradient.targets, 0);
  EXPECT_EQ(none.norm, 0);
}

// Squared norms of 20 on one rank and 100 on the other are 120 together, however weights are cut.
TEST(Ranks, TheGradientNormIsOneOverAllRanks) {
  for (const int ranks : {1, 2, 3, 5})
    with_ranks(ranks, [&](Comm& comm) {
      TestMachine machine(1, cpu_ops(), {}, comm);
      TestModel m(experts_config(), DType::f32, 1, comm);
      Optimizer optimizer(m.weights);
      m.weights.zero_grad();
      if (comm.rank() == 0) m.weights.layers[1].expert_up[0].grad.as<float>()[3] = std::sqrt(20.0f);
      if (comm.rank() == ranks - 1) {
        m.weights.layers[1].expert_up[7].grad.as<float>()[5] = 6;
        m.weights.layers[2].expert_down[7].grad.as<float>()[0] = 8;
      }
      optimizer.reduce_gradients(machine.rt);
      EXPECT_NEAR(optimizer.gradient_norm(machine.rt), 10.954, 5e-4);
    });
}

// Together the ranks keep every element of masters and moments once.
TEST(Ranks, EachKeepsItsShareOfTheState) {
  for (const DType compute : {DType::f32, DType::bf16})
    for (const int ranks : {2, 3, 4}) {
      std::map<std::string, int64_t> kept;
      int64_t most = 0, all = 0;
      std::mutex mutex;
      with_ranks(ranks, [&](Comm& comm) {
        TestModel m(tiny_config(), compute, 1, comm);
        Optimizer optimizer(m.weights);
        const std::lock_guard lock(mutex);
        int64_t here = 0;
        for (const Optimizer::Slot& s : optimizer.slots()) {
          EXPECT_EQ(s.m.numel(), s.weight->master.numel());
          EXPECT_LE(s.weight->master_begin + s.m.numel(), s.weight->value.numel());
          kept[s.weight->name] += s.m.numel();
          here += s.m.numel();
        }
        most = std::max(most, here);
        all = m.weights.parameters();
        for (const Weight* w : m.weights.all())
          if (comm.rank() == ranks - 1) kept[w->name] -= w->value.numel();
      });
      for (const auto& [name, missing] : kept) EXPECT_EQ(missing, 0) << name;
      EXPECT_LT(most, all / ranks + 64 * 64);
    }
}

class RanksTrain : public testing::Test {
 protected:
  static RunConfig config(TrainDType dtype = TrainDType::f32) {
    RunConfig c;
    c.model = three_layers();
    c.model.vocab_size = kSmallVocab;
    c.train.steps = 6;
    c.train.seq_len = 32;
    c.train.global_batch_size = 4;
    c.train.micro_batch_size = 1;
    c.train.dtype = dtype;
    c.train.warmup_steps = 2;
    c.train.decay_steps = 2;
    c.train.log_interval = 1;
    c.train.eval_interval = 3;
    c.train.eval_tokens = 256;
    c.train.checkpoint_interval = 3;
    c.train.eps = 1e-6;  // moves of weights whose gradient is rounding alone stay small
    return c;
  }
  TrainRequest request(const RunConfig& c, const std::string& name) const {
    TrainRequest r;
    r.config = c;
    r.data = small_data();
    r.out = dir_ / name;
    return r;
  }
  static const Ops& ops_of(const RunConfig& c) {
    return c.train.dtype == TrainDType::f64 ? ref_ops() : cpu_ops();
  }
  void train_on(int ranks, const TrainRequest& r) const {
    with_ranks(ranks, [&](Comm& comm) {
      TestMachine machine(1, ops_of(r.config), {}, comm);
      const TrainResult result = train(machine.rt, r);
      EXPECT_EQ(result.steps, r.config.train.steps);
      EXPECT_EQ(result.evals.empty(), comm.rank() != 0);
    });
  }
  std::vector<double> logged(const std::string& name, const std::string& kind, const std::string& key) const {
    std::vector<double> out;
    std::istringstream in(read_text(dir_.path() / name / "log.jsonl"));
    for (std::string line; std::getline(in, line);) {
      const Json j = parse_json(line, "log.jsonl");
      if (j.at("kind") == kind) out.push_back(j.at(key).get<double>());
    }
    return out;
  }
  std::string file(const std::string& run, int64_t step, const std::string& name) const {
    return read_text(checkpoint_path(dir_.path() / run, step) / name);
  }
  void expect_close_runs(const std::string& a, const std::string& b, double tolerance) const {
    for (const auto& [kind, key] : {std::pair{"train", "loss"},
                                    {"train", "grad_norm"},
                                    {"train", "tokens"},
                                    {"train", "lr"},
                                    {"eval", "nats_per_token"},
                                    {"eval", "bits_per_byte"}}) {
      const std::vector<double> x = logged(a, kind, key), y = logged(b, kind, key);
      ASSERT_EQ(x.size(), y.size()) << kind << " " << key;
      ASSERT_FALSE(x.empty());
      for (size_t i = 0; i < x.size(); ++i)
        EXPECT_NEAR(x[i], y[i], tolerance * std::abs(x[i])) << kind << " " << key << " " << i;
    }
  }
  TempDir dir_;
};

TEST_F(RanksTrain, TwoAndFourAreOneToRounding) {
  struct Kind {
    TrainDType dtype;
    double tolerance;
  };
  for (const auto& [dtype, tolerance] : {Kind{TrainDType::f64, 1e-9}, Kind{TrainDType::f32, 2e-5}}) {
    const std::string name(enum_name(dtype));
    for (const int ranks : {1, 2, 4})
      train_on(ranks, request(config(dtype), fmt::format("{}-{}", name, ranks)));
    for (const int ranks : {2, 4})
      expect_close_runs(name + "-1", fmt::format("{}-{}", name, ranks), tolerance);
  }
}

// Ranks that do not divide the rows, and experts.
TEST_F(RanksTrain, ThreeRanksAndExperts) {
  RunConfig c = config();
  c.model = experts_config();
  c.model.vocab_size = kSmallVocab;
  c.train.router_aux_loss_coef = 0.01;
  for (const int ranks : {1, 3}) train_on(ranks, request(c, fmt::format("run-{}", ranks)));
  expect_close_runs("run-1", "run-3", 2e-5);
  const SafetensorsFile one(checkpoint_path(dir_ / "run-1", 6) / "model.safetensors"),
      three(checkpoint_path(dir_ / "run-3", 6) / "model.safetensors");
  const std::string bias = "model.layers.1.mlp.gate.e_score_correction_bias";
  EXPECT_EQ(
      std::memcmp(one.data(one.entries().at(bias)), three.data(three.entries().at(bias)), 8 * sizeof(float)),
      0);
}

// What is saved does not show how many ranks saved it: from 2 to 1 to 3 and back nothing changes to the bit.
TEST_F(RanksTrain, CheckpointsAreReadAtAnyNumberOfRanks) {
  for (const TrainDType dtype : {TrainDType::bf16, TrainDType::f32}) {
    const std::string name(enum_name(dtype));
    train_on(2, request(config(dtype), name));
    const DType compute = dtype == TrainDType::bf16 ? DType::bf16 : DType::f32;
    fs::path from = dir_ / name;
    std::map<int, std::vector<float>> values;
    for (const int ranks : {1, 2, 3, 2}) {
      const fs::path to = dir_ / fmt::format("{}-{}-{}", name, from.filename().string().size(), ranks);
      with_ranks(ranks, [&](Comm& comm) {
        TestModel m(config(dtype).model, compute, 9, comm);
        Optimizer optimizer(m.weights);
        const TrainState state = read_checkpoint_state(checkpoint_path(from, 6));
        load_checkpoint(checkpoint_path(from, 6), state, m.weights, optimizer);
        EXPECT_EQ(optimizer.applied(), 6);
        save_checkpoint(to, state, m.weights, optimizer, small_data(), comm);
        if (comm.rank() != ranks - 1) return;
        values[ranks].clear();
        for (const Weight* w : m.weights.all()) {  // what the model computes with is whole on every rank
          const HostCopy copy(w->value, host_memory());
          for (int64_t i = 0; i < w->value.numel(); i += 97)
            values[ranks].push_back(w->value.dtype == DType::bf16 ? static_cast<float>(w->value.as<bf16>()[i])
                                                                  : w->value.as<float>()[i]);
        }
      });
      for (const char* part : {"model.safetensors", "optimizer.safetensors", "state.json", "config.json"})
        EXPECT_TRUE(read_text(checkpoint_path(to, 6) / part) ==
                    read_text(checkpoint_path(dir_ / name, 6) / part))
            << name << " on " << ranks << ": " << part;
      from = to;
    }
    EXPECT_TRUE(values[1] == values[2] && values[1] == values[3]);
  }
}

// Goes on where it stopped: to the bit on the same ranks, to rounding on others.
TEST_F(RanksTrain, ResumesOnTheSameAndOnOtherRanks) {
  for (const TrainDType dtype : {TrainDType::f32, TrainDType::bf16}) {
    const std::string name(enum_name(dtype));
    train_on(2, request(config(dtype), name + "-whole"));
    for (const int ranks : {2, 1, 4}) {
      const std::string part = fmt::format("{}-{}", name, ranks);
      TrainRequest r = request(config(dtype), part);
      r.config.train.steps = 3;
      r.config.train.decay_steps = 0;
      std::atomic<bool> stop{false};
      r = request(config(dtype), part);
      r.stop = &stop;
      r.progress = [&](const TrainProgress& p) { stop = p.step == 3; };
      EXPECT_THROW(train_on(2, r), Error);
      EXPECT_EQ(list_checkpoints(r.out).back().step, 3);
      r.stop = nullptr;
      r.progress = nullptr;
      r.resume = true;
      train_on(ranks, r);
      expect_close_runs(name + "-whole", part, ranks == 2 ? 0 : dtype == TrainDType::bf16 ? 2e-2 : 2e-5);
      for (const char* f : {"model.safetensors", "optimizer.safetensors"})
        if (ranks == 2) {
          EXPECT_TRUE(file(part, 6, f) == file(name + "-whole", 6, f)) << part << " " << f;
        }
    }
  }
}

// Whoever is asked, all stop at the same step, and it is saved once.
TEST_F(RanksTrain, OneRankAskedToStopStopsAll) {
  TrainRequest r = request(config(), "run");
  std::atomic<int> interrupted{0};
  std::atomic<bool> asked{false};
  with_ranks(3, [&](Comm& comm) {
    TestMachine machine(1, cpu_ops(), {}, comm);
    TrainRequest own = r;
    const std::atomic<bool> never{false};
    own.stop = comm.rank() == 2 ? &asked : &never;
    own.progress = [&](const TrainProgress& p) { asked = p.step == 2; };
    try {
      train(machine.rt, own);
    } catch (const Error& e) {
      interrupted += e.kind() == ErrorKind::interrupted;
    }
  });
  EXPECT_EQ(interrupted, 3);
  ASSERT_EQ(list_checkpoints(r.out).size(), 1u);
  const int64_t step = list_checkpoints(r.out)[0].step;
  EXPECT_TRUE(step == 2 || step == 3) << step;  // the third may have been on its way
  EXPECT_EQ(read_checkpoint_state(checkpoint_path(r.out, step)).step, step);
}

// An error of one is the error of the run; the others find that it is gone, and do not wait.
TEST_F(RanksTrain, ARankThatFailsLeavesNoOtherWaiting) {
  const TrainRequest r = request(config(), "run");
  std::string others;
  std::mutex mutex;
  try {
    with_ranks(3, [&](Comm& comm) {
      struct Broken : ForwardingOps {
        int rank;
        mutable int steps = 0;
        Broken(int r) : ForwardingOps(cpu_ops()), rank(r) {}
        void sum_squares(Runtime& rt, const SumSquares& p) const override {
          if (rank == 1 && ++steps == 40) throw failure("GPU", "fell off the bus");
          inner_.sum_squares(rt, p);
        }
      };
      const Broken ops(comm.rank());
      TestMachine machine(1, ops, {}, comm);
      try {
        train(machine.rt, r);
      } catch (const Error& e) {
        const std::lock_guard lock(mutex);
        if (comm.rank() != 1) others += e.what();
        throw;
      }
    });
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::failure);
  }
  EXPECT_NE(others.find("is gone"), std::string::npos) << others;
}

TEST_F(RanksTrain, RanksThatDifferAreRefused) {
  std::atomic<int> refused{0};
  with_ranks(2, [&](Comm& comm) {
    TestMachine machine(1, cpu_ops(), {}, comm);
    TrainRequest r = request(config(), "run");
    r.config.train.lr = comm.rank() == 0 ? 1e-3 : 2e-3;
    try {
      train(machine.rt, r);
    } catch (const Error& e) {
      refused += std::string(e.what()).find("differ in their configs") != std::string::npos;
    }
  });
  EXPECT_EQ(refused, 2);
  with_ranks(5, [&](Comm& comm) {
    TestMachine machine(1, cpu_ops(), {}, comm);
    try {
      train(machine.rt, request(config(), "few"));
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("at least a row for each of 5 ranks, got 4"), std::string::npos)
          << e.what();
    }
  });
}

// A device's memory is touched through operations and copies alone, also between ranks.
TEST_F(RanksTrain, OnADeviceTheSameBits) {
  for (const TrainDType dtype : {TrainDType::f32, TrainDType::bf16}) {
    const std::string host = fmt::format("host-{}", enum_name(dtype)),
                      device = fmt::format("device-{}", enum_name(dtype));
    train_on(2, request(config(dtype), host));
    with_meshes(2, [&](std::shared_ptr<Mesh> mesh) {
      FakeDevice memory;
      const FakeDeviceOps ops(cpu_ops(), memory);
      Arena scratch(memory);
      ThreadPool pool(1);
      SocketComm comm(std::move(mesh), memory);
      Runtime rt{pool, scratch, ops, memory, {}, comm};
      train(rt, request(config(dtype), device));
    });
    for (const char* f : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_TRUE(file(device, 6, f) == file(host, 6, f)) << f;
  }
}

// The plan of a rank counts its share of masters and moments.
TEST(Ranks, TheMemoryPlanKnowsTheShare) {
  RunConfig c;
  c.model = tiny_config();
  c.train.dtype = TrainDType::bf16;
  c.train.global_batch_size = 8;
  const MemoryPlan one = plan_memory(c, cpu_ops()), four = plan_memory(c, cpu_ops(), 4);
  int64_t n = 0;
  for (const WeightSpec& s : weight_specs(c.model, build_layer_plan(c.model))) {
    int64_t of = 1;
    for (const int64_t d : s.shape) of *= d;
    n += s.always_f32 ? 0 : of;
  }
  EXPECT_NEAR(static_cast<double>(one.training.weights - four.training.weights),
              0.75 * 4.0 * static_cast<double>(n), 200);
  EXPECT_NEAR(static_cast<double>(four.training.optimizer), static_cast<double>(one.training.optimizer) / 4,
              200);
  EXPECT_EQ(four.training.gradients, one.training.gradients);
  EXPECT_LT(four.training.activations[0], one.training.activations[0]);  // two rows, not eight
  EXPECT_NE(memory_table(c, four, 4).find("each of 4 ranks"), std::string::npos);
}

}  // namespace
}  // namespace hysparse
