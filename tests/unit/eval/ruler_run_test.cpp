// A whole run through the engine, with readers in place of the model.
#include <csignal>
#include <filesystem>
#include <fstream>

#include "../engine/backends.h"
#include "base/error.h"
#include "engine/engine.h"
#include "eval/ruler/report.h"
#include "eval/ruler/run.h"
#include "io/files.h"
#include "support.h"

namespace hysparse {
namespace {

using namespace tests;
using ruler::Results;

ModelConfig reader_config(int64_t vocab) {
  ModelConfig c;
  c.num_hidden_layers = 1;
  c.hidden_size = 8;
  c.num_attention_heads = 1;
  c.num_key_value_heads = 1;
  c.head_dim = 8;
  c.intermediate_size = 8;
  c.vocab_size = vocab;
  c.max_position_embeddings = 16384;
  c.attention = AttentionKind::full;
  c.finalize("READER");
  return c;
}

// STUB: reads the ids that it received back from the cache, and answers what its reader makes of them.
class ReaderModel : public StepModel {
 public:
  using Reader = std::string (*)(const std::string& prompt);
  ReaderModel(std::shared_ptr<const Tokenizer> tokenizer, Reader reader)
      : tokenizer_(std::move(tokenizer)),
        reader_(reader),
        config_(reader_config(tokenizer_->vocab_size())),
        plan_(build_layer_plan(config_)) {}
  const ModelConfig& config() const override { return config_; }
  const LayerPlan& plan() const override { return plan_; }
  DType compute() const override { return DType::f32; }
  uint64_t identity() const override { return 1; }
  int32_t end() const { return tokenizer_->vocab_size() - 1; }

  void forward(Runtime&, const RaggedBatch& batch, const TensorView& tokens, KvStore& kv,
               const TensorView& logits) override {
    const int64_t n = batch.tokens();
    const Tensor k(DType::f32, {n, 1, config_.d()}), v(DType::f32, {n, 1, config_.dv()});
    for (int64_t i = 0; i < n; ++i)
      k.view().as<float>()[i * config_.d()] = static_cast<float>(tokens.as<int32_t>()[i]);
    const KvView view = kv.append(0, batch, k, v);
    for (size_t r = 0; r < batch.logit_rows.size(); ++r) {
      const int64_t row = batch.logit_rows[r];
      const int64_t s = std::upper_bound(batch.cu_q.begin(), batch.cu_q.end(), row) - batch.cu_q.begin() - 1;
      std::vector<int32_t> ids;
      for (int64_t p = 0; p <= batch.position[size_t(row)]; ++p) {
        const KvView::Row at = view.row(batch, s, p);
        ids.push_back(static_cast<int32_t>(at.k->as<float>()[at.k_offset]));
      }
      float* out = logits.at(static_cast<int64_t>(r)).as<float>();
      std::fill(out, out + config_.vocab_size, 0.f);
      out[next(ids)] = 9.f;
    }
  }

 private:
  // A sequence goes on as it was answered; one that begins as none before it is a prompt.
  int32_t next(const std::vector<int32_t>& ids) {
    for (const auto& [prompt, answer] : answers_) {
      if (prompt.size() > ids.size() || !std::equal(prompt.begin(), prompt.end(), ids.begin())) continue;
      const size_t said = ids.size() - prompt.size();
      return said < answer.size() ? answer[said] : end();
    }
    const std::string text = reader_(tokenizer_->decode(ids));
    answers_.emplace_back(ids, tokenizer_->encode(text));
    return next(ids);
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  Reader reader_;
  ModelConfig config_;
  LayerPlan plan_;
  std::vector<std::pair<std::vector<int32_t>, std::vector<int32_t>>> answers_;
};

std::string silent(const std::string&) {
  return {};
}
std::string chatty(const std::string& prompt) {
  return oracle(prompt) + std::string(600, '.');
}

struct Rig {
  Rig(std::shared_ptr<const Tokenizer> tokenizer, ReaderModel::Reader reader, int64_t context,
      std::shared_ptr<const ChatTemplate> chat = nullptr)
      : backend(DType::f32, 2),
        model(tokenizer, reader),
        prompter(tokenizer, chat),
        engine(backend.rt, model, options(context)) {}
  EngineOptions options(int64_t context) {
    EngineOptions o;
    o.context = context;
    o.eos = {model.end()};
    o.token_bytes = [this](int32_t id) {
      return prompter.tokenizer().is_special(id) ? std::string_view() : prompter.tokenizer().token_bytes(id);
    };
    o.memory.kv_bytes = 64 << 20;
    o.memory.max_sequences = 3;
    o.prefix_cache = false;
    o.check_steps = false;
    return o;
  }
  void run(const ruler::RunOptions& o, Results& results,
           const std::function<void(const ruler::Progress&)>& progress = {},
           const std::atomic<bool>* stop = nullptr) {
    ruler::run(engine, backend.pool, prompter, stand_ins(), o, results, progress, stop);
  }
  ruler::Report report(const ruler::RunOptions& o, const Results& results) const {
    return ruler::make_report(results, o.lengths, o.tasks, o.samples, stand_ins(), "STUB");
  }

  Backend backend;
  ReaderModel model;
  ruler::Prompter prompter;
  Engine engine;
};

ruler::RunOptions all_tasks(std::vector<int64_t> lengths, int64_t samples = 2) {
  ruler::RunOptions o;
  o.tasks = ruler::find_tasks({});
  o.lengths = std::move(lengths);
  o.samples = samples;
  return o;
}

// BC-42. Contexts that are exactly the length; every task; chat and plain.
TEST(RulerRun, TheOracleFindsAllAndTheSilentNothing) {
  const auto plain = std::make_shared<const ChatTemplate>(ChatTemplate::builtin("chatml"));
  for (const auto& chat : {std::shared_ptr<const ChatTemplate>(), plain})
    for (const int64_t length : {1024, 4096}) {
      SCOPED_TRACE(fmt::format("length {}, {}", length, chat ? "chat" : "plain"));
      const ruler::RunOptions o = all_tasks({length}, length > 1024 ? 1 : 2);
      Rig knows(shipped_tokenizer(), oracle, length, chat),
          says_nothing(shipped_tokenizer(), silent, length, chat);
      Results found, missed;
      knows.run(o, found);
      says_nothing.run(o, missed);
      const ruler::Report a = knows.report(o, found), b = says_nothing.report(o, missed);
      EXPECT_EQ(a.truncated(), 0);
      EXPECT_EQ(b.truncated(), 0);
      EXPECT_EQ(a.total(length, true), 100.0);
      EXPECT_EQ(a.total(length, true, true), 100.0);
      EXPECT_EQ(b.total(length, true), 0.0);
      for (const auto& [key, cell] : a.cells) {
        EXPECT_EQ(cell.score, 100) << key.second;
        EXPECT_EQ(cell.empty, 0) << key.second;
        EXPECT_EQ(cell.cut, 0) << key.second;
        EXPECT_LE(cell.most_tokens, length);
      }
      for (const auto& [key, cell] : b.cells) EXPECT_EQ(cell.empty, cell.samples) << key.second;
    }
}

// Short contexts, small budgets, another tokenizer; what runs into its budget is counted.
TEST(RulerRun, ShortContextsAndCutAnswers) {
  for (const int64_t length : {128, 256}) {
    ruler::RunOptions o = all_tasks({length});
    o.tasks = ruler::find_tasks(
        {"niah_single_1", "niah_single_2", length > 128 ? "niah_multikey_2" : "niah_single_1"});
    o.answer_tokens = 16;
    Rig rig(shipped_tokenizer(), chatty, length);
    Results results;
    rig.run(o, results);
    const ruler::Report r = rig.report(o, results);
    EXPECT_EQ(r.truncated(), 0);
    EXPECT_FALSE(r.total(length, false));
    for (const auto& [key, cell] : r.cells) {
      EXPECT_EQ(cell.score, 100) << key.second;
      EXPECT_EQ(cell.cut, cell.samples) << key.second;
    }
  }
}

TEST(RulerRun, DepthsAreCounted) {
  ruler::RunOptions o = all_tasks({512}, 30);
  o.tasks = ruler::find_tasks({"niah_single_2"});
  o.answer_tokens = 16;
  Rig rig(shipped_tokenizer(), oracle, 512);
  Results results;
  rig.run(o, results);
  const ruler::Report r = rig.report(o, results);
  const auto& bands = r.depths.at({512, "niah_single_2"});
  ASSERT_EQ(bands.size(), size_t(ruler::kDepthBands));
  int64_t asked = 0;
  for (const ruler::Band& b : bands) {
    EXPECT_EQ(b.asked, b.found);
    asked += b.asked;
  }
  EXPECT_EQ(asked, 30);
  const std::string table = ruler::report_table(r);
  EXPECT_NE(table.find("100.0"), std::string::npos) << table;
  EXPECT_NE(table.find("niah_single_2: a novel"), std::string::npos) << table;
  const Json json = ruler::report_json(r, {{"seed", 42}});
  EXPECT_EQ(json["tasks"][0]["score"], 100.0);
  EXPECT_EQ(json["totals"][0]["total"], nullptr);
  const std::string html = ruler::report_html(r, {{"model", "<b>&"}});
  EXPECT_NE(html.find("<svg"), std::string::npos);
  EXPECT_EQ(html.find("<b>"), std::string::npos) << "a name became markup";
  for (const char* outside : {"http:", "https:", "<script", "<link", "url("})
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
}

// Stopped again and again, a run ends with exactly what one that was never stopped says.
TEST(RulerRun, GoesOnWhereItStopped) {
  test::TempDir dir;
  ruler::RunOptions o = all_tasks({1024}, 3);
  o.tasks = ruler::find_tasks({"niah_single_1", "vt", "fwe"});
  const Json settings = {{"model", "STUB"}, {"seed", 42}};
  Results whole;
  Rig(shipped_tokenizer(), oracle, 1024).run(o, whole);
  ASSERT_EQ(whole.records().size(), 9u);
  int stops = 0;
  for (bool done = false; !done;) {
    Rig rig(shipped_tokenizer(), oracle, 1024);
    Results results(dir / "run", settings);
    const int64_t before = results.found();
    std::atomic<bool> stop{false};
    try {
      rig.run(
          o, results, [&](const ruler::Progress& p) { stop = p.done >= before + 2; }, &stop);
      done = true;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::interrupted);
      ++stops;
    }
    ASSERT_LT(stops, 10);
    // As if the machine had gone in the middle of a line.
    std::ofstream(dir / "run/results.jsonl", std::ios::app) << "{\"task\": \"vt\", \"len";
  }
  EXPECT_GE(stops, 3);
  const Results read(dir / "run", settings);
  ASSERT_EQ(read.records().size(), whole.records().size());
  for (const auto& [key, record] : whole.records())
    EXPECT_EQ(dump_json(ruler::record_json(read.records().at(key))), dump_json(ruler::record_json(record)));

  // More samples go on from there; other settings do not.
  EXPECT_TRUE(read.has({"vt", 1024, 2}));
  test::TempDir other;
  const auto refused = [&](const Json& now, const std::string& message) {
    try {
      const Results r(dir / "run", now);
      ADD_FAILURE() << message;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::input);
      EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
    }
  };
  refused(settings, "another run writes there now");
}

TEST(RulerRun, OtherSettingsAndForeignFilesAreRefused) {
  test::TempDir dir;
  { const Results r(dir / "run", {{"seed", 42}}); }
  const auto refused = [&](const Json& now, const std::string& message) {
    try {
      const Results r(dir / "run", now);
      ADD_FAILURE() << message;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::input);
      EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
    }
  };
  refused({{"seed", 43}}, "made with seed 42, asked for is 43");
  refused({{"seed", 42}, {"dtype", "bf16"}}, "dtype unset");
  test::write(dir / "run/results.jsonl", "{\"text\": \"hello\"}\n");
  refused({{"seed", 42}}, "no file of `hysparse eval ruler`");
  test::write(dir / "run/results.jsonl", "{\"ruler\":1,\"settings\":{\"seed\":42}}\n{\"task\":3}\n");
  refused({{"seed", 42}}, "results.jsonl:2");
  test::write(dir / "run/results.jsonl", "not json\n");
  refused({{"seed", 42}}, "results.jsonl:1");
  // A first line that was cut short is begun again; a file of somebody else's without a line end stays.
  test::write(dir / "run/results.jsonl", "somebody's notes");
  refused({{"seed", 42}}, "no file of `hysparse eval ruler`");
  EXPECT_EQ(read_file(dir / "run/results.jsonl"), "somebody's notes");
  for (const std::string cut : {"", "{\"ru", "{\"ruler\":1,\"settings\":{\"se"}) {
    test::write(dir / "run/results.jsonl", cut);
    { const Results r(dir / "run", {{"seed", 42}}); }
    EXPECT_EQ(read_file(dir / "run/results.jsonl"), "{\"ruler\":1,\"settings\":{\"seed\":42}}\n");
  }
}

TEST(RulerRun, MoreSamplesThanAnyoneAsksAreRefused) {
  Rig rig(shipped_tokenizer(), oracle, 1024);
  Results results;
  EXPECT_THROW(rig.run(all_tasks({1024}, int64_t(1) << 40), results), Error);
  EXPECT_THROW(rig.run(all_tasks({1024}, 0), results), Error);
}

TEST(RulerRun, LengthsBeyondTheContextAreRefused) {
  Rig rig(shipped_tokenizer(), oracle, 1024);
  Results results;
  EXPECT_THROW(rig.run(all_tasks({2048}), results), Error);
  EXPECT_THROW(rig.run(all_tasks({0}), results), Error);
  EXPECT_THROW(rig.run(all_tasks({1024}, 0), results), Error);
  EXPECT_THROW(rig.run(all_tasks({200}), results), Error);  // too short: before anything is computed
  EXPECT_EQ(rig.engine.stats().steps, 0);
}

}  // namespace
}  // namespace hysparse
