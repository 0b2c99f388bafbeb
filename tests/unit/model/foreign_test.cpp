// Checkpoints that transformers wrote (tests/tools/transformers_models.py) give the logits that it recorded.
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "io/files.h"
#include "io/safetensors.h"
#include "model/checkpoint.h"
#include "model/plan_report.h"
#include "unit/model/tiny.h"

#define EXPECT_HAS(text, part) EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, text)

namespace hysparse {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(HYSPARSE_SOURCE_DIR) / "tests/data/foreign";

struct Recorded {
  explicit Recorded(const std::string& family) : file(kFolder / "expected" / (family + ".safetensors")) {
    const int64_t n = file.entry("tokens").shape[0], vocab = file.entry("logits").shape[1];
    tokens = Tensor(DType::i32, {n});
    const Tensor values(DType::f32, {n, vocab});
    file.read("tokens", tokens);
    file.read("logits", values);
    logits = tiny::values(values);
  }
  SafetensorsFile file;
  Tensor tokens;
  std::vector<double> logits;
};

std::vector<double> logits(LoadedModel& loaded, DType dtype, const Recorded& recorded) {
  ThreadPool pool(1);
  Arena scratch;
  Runtime rt{pool, scratch, dtype == DType::f64 ? ref_ops() : cpu_ops(), host_memory()};
  const int64_t n = recorded.tokens.view().dim(0);
  RaggedBatch batch;
  batch.add_sequence(n);
  for (int64_t i = 0; i < n; ++i) batch.logit_rows.push_back(i);
  TrainKv kv;
  const Tensor out(accumulation_dtype(dtype), {n, loaded.config.vocab_size});
  loaded.model->forward(rt, batch, recorded.tokens, kv, out, {});
  return tiny::values(out);
}

class Foreign : public ::testing::TestWithParam<const char*> {
 protected:
  fs::path dir = kFolder / GetParam();
};

TEST_P(Foreign, GivesTheLogitsOfTransformers) {
  const Recorded recorded(GetParam());
  for (const DType dtype : {DType::f64, DType::f32}) {
    LoadOptions options;
    options.weights.compute = dtype;
    LoadedModel loaded = load_model_dir(dir, options);
    EXPECT_EQ(loaded.config.kind(), AttentionKind::full);
    // transformers takes rotary angles in f32: at 24 positions they are off by 2e-6 rad at most, and a few
    // such terms add up in the logits. Anything that is really another model differs in the first digits.
    const double tolerance = 2e-5 * tiny::max_abs(recorded.logits);
    EXPECT_LE(tiny::max_diff(logits(loaded, dtype, recorded), recorded.logits), tolerance) << name_of(dtype);
  }
}

TEST_P(Foreign, IsCountedByPlan) {
  const ModelConfig config = load_model_config(dir);
  const LoadedModel loaded = load_model_dir(dir);
  const PlanReport report = make_plan_report(config, 64, 1);
  EXPECT_EQ(report.parameters.total, loaded.weights->parameters());
}

// The twin of a config that is saved and read again is the same model.
TEST_P(Foreign, SavedAsOurOwnItStaysTheSame) {
  const Recorded recorded(GetParam());
  LoadedModel loaded = load_model_dir(dir);
  const fs::path copy =
      fs::temp_directory_path() / fmt::format("hysparse-foreign-{}-{}", GetParam(), getpid());
  save_model_dir(copy, loaded.config, *loaded.weights, DType::f32);
  LoadedModel again = load_model_dir(copy);
  EXPECT_EQ(logits(again, DType::f32, recorded), logits(loaded, DType::f32, recorded));
  fs::remove_all(copy);
}

INSTANTIATE_TEST_SUITE_P(Families, Foreign,
                         ::testing::Values("llama", "llama-tied", "qwen2", "qwen3", "mimo", "llama3",
                                           "linear", "yarn", "yarn-stated"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(ForeignCheckpoint, LayersOfMultiTokenPredictionAreNamedAndLeftOut) {
  std::vector<std::string> lines;
  LoadOptions options;
  options.log = [&](LogLevel, const std::string& line) { lines.push_back(line); };
  const LoadedModel loaded = load_model_dir(kFolder / "mimo", options);
  EXPECT_EQ(loaded.weights->find("model.mtp_layers.0.input_proj.weight"), nullptr);
  const auto said = std::find_if(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find("16 tensors of multi-token prediction are left out: model.mtp_layers.0.") !=
           std::string::npos;
  });
  EXPECT_NE(said, lines.end());
}

TEST(ForeignCheckpoint, AGgufFileIsNoModelDirectory) {
  try {
    load_model_dir("some/model.gguf");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::input);
    EXPECT_HAS(e.what(), "hysparse import --from some/model.gguf --out DIR");
  }
}

}  // namespace
}  // namespace hysparse
