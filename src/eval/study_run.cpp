#include "eval/study_run.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "eval/recall.h"
#include "io/files.h"
#include "io/json.h"
#include "io/json_value.h"
#include "model/checkpoint.h"
#include "model/plan.h"
#include "train/loop.h"
#include "train/run_folder.h"

namespace hysparse {
namespace {

namespace fs = std::filesystem;

fs::path data_folder(const fs::path& out, const StudyPhase& phase) {
  return out / "data" / phase.name;
}
fs::path phase_folder(const StudyPlan& plan, const fs::path& run, size_t phase) {
  return run / fmt::format("{}-{}", phase + 1, plan.phases[phase].name);
}

Json number(double x) {
  return std::isfinite(x) ? Json(x) : Json();
}
double number_of(const Json& j) {
  return j.is_null() ? NAN : j.get<double>();
}

// The folder is this run's, or becomes it.
void claim_folder(const StudyPlan& plan, const StudyRun& run, const fs::path& dir) {
  const std::string description = run_description(plan, run);
  const fs::path file = dir / "run.json";
  if (!file_exists(file)) {
    fs::create_directories(dir);
    write_file_atomic(file, description);
  } else if (read_file(file) != description) {
    throw input_error(
        dir.string(),
        fmt::format("holds another run named {}: the study's settings have changed", quote_text(run.id)),
        "choose another --out, give the same --dtype as before, or remove that folder");
  }
}

// Accuracies of models in training, a line a look. A run that is resumed looks again from where it goes on.
class Curve {
 public:
  Curve(const StudyPlan& plan, const fs::path& dir) : plan_(plan), path_(dir / "curve.jsonl") {}

  void look(Runtime& rt, Model& model, int64_t step) {
    Json line;
    line["step"] = step;
    for (const StudyEvaluation& e : plan_.evaluations) {
      if (e.curve_samples == 0) continue;
      RecallOptions o;
      o.rows = e.curve_samples;
      line["accuracy"][e.name] = evaluate_recall(rt, model, e.task, o).all.accuracy();
    }
    if (!line.contains("accuracy")) return;
    std::ofstream(path_, std::ios::app) << dump_json(line, -1) << "\n";
  }
  // One point a step, the last that was written; a cut line is none.
  std::vector<StudyPoint> read() const {
    std::map<int64_t, StudyPoint> points;
    std::ifstream in(path_);
    for (std::string text; std::getline(in, text);) {
      Json line;
      try {
        line = parse_json(text, path_.string());
      } catch (const Error&) {
        continue;
      }
      StudyPoint& p = points[line.at("step").get<int64_t>()];
      p.step = line.at("step").get<int64_t>();
      for (const auto& item : line.at("accuracy").items())
        p.accuracy[item.key()] = item.value().get<double>();
    }
    std::vector<StudyPoint> out;
    for (auto& [step, p] : points) out.push_back(std::move(p));
    return out;
  }

 private:
  const StudyPlan& plan_;
  fs::path path_;
};

Json train_phase(Runtime& rt, const StudyPlan& plan, const StudyRun& run, size_t phase, const fs::path& out,
                 int64_t steps_before, Curve& curve, const std::atomic<bool>* stop) {
  const fs::path dir = study_run_folder(out, run);
  TrainRequest request;
  request.config = plan.config_of(run, phase);
  request.data = data_folder(out, plan.phases[phase]);
  request.out = phase_folder(plan, dir, phase);
  request.resume = holds_run(request.out);
  if (phase > 0) request.from = phase_folder(plan, dir, phase - 1) / "model";
  request.stop = stop;
  request.probe = [&](Runtime& r, Model& m, int64_t step) { curve.look(r, m, steps_before + step); };
  const TrainResult result = train(rt, request);
  Json done;
  done["tokens"] = result.tokens;
  done["seconds"] = result.seconds;
  done["parameters"] = result.parameters;
  done["nats"] = result.evals.empty() ? Json() : number(result.evals.back().nats_per_token);
  write_file_atomic(request.out / "done.json", dump_json(done));
  return done;
}

Json score_json(const RecallScore& s) {
  Json j;
  j["answers"] = s.answers;
  j["accuracy"] = s.accuracy();
  j["standard_error"] = s.standard_error();
  j["nats"] = s.nats_per_answer();
  return j;
}

Json measure(Runtime& rt, const StudyPlan& plan, const fs::path& model_dir, DType compute,
             const std::atomic<bool>* stop) {
  LoadOptions options;
  options.weights.compute = compute;
  options.memory = &rt.memory;
  const LoadedModel loaded = load_model_dir(model_dir, options);
  Json all = Json::object();
  for (const StudyEvaluation& e : plan.evaluations) {
    RecallOptions o;
    o.rows = e.samples;
    o.progress = [&](int64_t) {
      if (stop && *stop) throw Error(ErrorKind::interrupted, "interrupted while measuring");
    };
    const RecallResult r = evaluate_recall(rt, *loaded.model, e.task, o);
    Json& j = all[e.name] = score_json(r.all);
    if (r.by_hops.size() > 1)
      for (const auto& [hops, score] : r.by_hops) j["hops"][std::to_string(hops)] = score_json(score);
  }
  return all;
}

DType compute_of(TrainDType t) {
  return t == TrainDType::bf16 ? DType::bf16 : t == TrainDType::f64 ? DType::f64 : DType::f32;
}

StudyResult result_of(const StudyPlan& plan, const StudyRun& run, const Json& j, const Curve& curve) {
  StudyResult r;
  r.run = run;
  for (const StudyEvaluation& e : plan.evaluations) {
    const Json& s = j.at("scores").at(e.name);
    r.scores.push_back({s.at("answers").get<int64_t>(), s.at("accuracy").get<double>(),
                        s.at("standard_error").get<double>(), s.at("nats").get<double>()});
  }
  r.curve = curve.read();
  r.train_nats = number_of(j.at("heldout_nats"));
  r.tokens = j.at("tokens").get<int64_t>();
  r.parameters = j.at("parameters").get<int64_t>();
  r.seconds = j.at("seconds").get<double>();
  r.tokens_per_second = static_cast<double>(r.tokens) / std::max(1e-9, r.seconds);
  r.kv_bytes_per_token = j.at("kv_bytes_per_token").get<int64_t>();
  r.kv_ring_bytes = j.at("kv_ring_bytes").get<int64_t>();
  r.device = j.at("device").get<std::string>();
  return r;
}

}  // namespace

double StudyResult::mean_nats() const {
  double sum = 0;
  for (const StudyScore& s : scores) sum += s.nats;
  return sum / static_cast<double>(scores.size());
}

fs::path study_run_folder(const fs::path& out, const StudyRun& run) {
  return out / "runs" / run.id;
}

void write_study_data(const StudyPlan& plan, const fs::path& out, ThreadPool& pool) {
  fs::create_directories(out / "data");
  for (size_t p = 0; p < plan.phases.size(); ++p) {
    const StudyPhase& phase = plan.phases[p];
    const fs::path dir = data_folder(out, phase);
    const uint64_t seed = static_cast<uint64_t>(plan.data_seed) + p;
    if (!holds_recall_data(dir, phase.tasks, phase.rows, phase.held_out_rows, seed))
      write_recall_data(dir, phase.tasks, phase.rows, phase.held_out_rows, seed, pool,
                        plan.where + ": phase " + phase.name);
  }
}

StudyResult run_study_run(Runtime& rt, const StudyPlan& plan, const StudyRun& run, const fs::path& out,
                          const std::atomic<bool>* stop) {
  const fs::path dir = study_run_folder(out, run);
  claim_folder(plan, run, dir);
  if (auto done = read_study_result(plan, run, out)) return *done;
  Curve curve(plan, dir);
  Json result;
  int64_t steps = 0, tokens = 0;
  double seconds = 0;
  const size_t phases = plan.phases.size();
  for (size_t p = 0; p < phases; ++p) {
    const fs::path done_file = phase_folder(plan, dir, p) / "done.json";
    const Json done = file_exists(done_file) ? read_json_file(done_file)
                                             : train_phase(rt, plan, run, p, out, steps, curve, stop);
    steps += plan.config_of(run, p).train.steps;
    tokens += done.at("tokens").get<int64_t>();
    seconds += done.at("seconds").get<double>();
    result["parameters"] = done.at("parameters");
    result["heldout_nats"] = done.at("nats");
  }
  const RunConfig config = plan.config_of(run, phases - 1);
  result["scores"] =
      measure(rt, plan, phase_folder(plan, dir, phases - 1) / "model", compute_of(config.train.dtype), stop);
  result["tokens"] = tokens;
  result["steps"] = steps;
  result["seconds"] = seconds;
  const KvBytes kv = kv_bytes(config.model, build_layer_plan(config.model), 2);
  result["kv_bytes_per_token"] = kv.per_token;
  result["kv_ring_bytes"] = kv.rings;
  result["device"] = rt.ops.name();
  write_file_atomic(dir / "result.json", dump_json(result));
  // Checkpoints have served; the last model stays.
  for (size_t p = 0; p < phases; ++p) {
    fs::remove_all(phase_folder(plan, dir, p) / "checkpoints");
    if (p + 1 < phases) fs::remove_all(phase_folder(plan, dir, p) / "model");
  }
  return result_of(plan, run, result, curve);
}

std::optional<StudyResult> read_study_result(const StudyPlan& plan, const StudyRun& run,
                                             const fs::path& out) {
  const fs::path dir = study_run_folder(out, run);
  if (!file_exists(dir / "result.json")) return {};
  claim_folder(plan, run, dir);
  return result_of(plan, run, read_json_file(dir / "result.json"), Curve(plan, dir));
}

}  // namespace hysparse
