#include "demo_report.h"

#include <nlohmann/json.hpp>

#include "io/json_value.h"
#include "text_plot.h"
#include "train_progress.h"

namespace hysparse {
namespace {

double ratio(const DemoReport& r, size_t i) {
  return static_cast<double>(r.kv_full[i].total()) / static_cast<double>(r.kv[i].total());
}

Json split_json(const PreparedSplit& s) {
  return {{"tokens", s.tokens}, {"text_bytes", s.text_bytes}, {"documents", s.documents}};
}

Json model_json(const DemoModel& m) {
  Json j = {{"attention", m.attention},
            {"model", m.model},
            {"parameters", m.training.parameters},
            {"steps", m.training.steps},
            {"tokens", m.training.tokens},
            {"seconds", m.training.seconds},
            {"tokens_per_second", m.training.tokens_per_second}};
  j["curve"] = Json::array();
  for (const EvalRecord& e : m.training.evals)
    j["curve"].push_back({{"step", e.step},
                          {"tokens", e.tokens},
                          {"heldout_nats_per_token", e.nats_per_token},
                          {"heldout_bits_per_byte", e.bits_per_byte}});
  return j;
}

Json kv_json(const DemoReport& r) {
  Json j = Json::array();
  for (size_t i = 0; i < r.kv.size(); ++i)
    j.push_back({{"context", r.kv[i].context},
                 {"hysparse_bytes", r.kv[i].total()},
                 {"hysparse_page_bytes", r.kv[i].page_bytes},
                 {"hysparse_ring_bytes", r.kv[i].ring_bytes},
                 {"full_bytes", r.kv_full[i].total()},
                 {"full_over_hysparse", ratio(r, i)}});
  return j;
}

}  // namespace

std::string demo_json(const DemoReport& r) {
  Json j;
  j["config"] = parse_json(run_config_json(r.config), "config");
  j["machine"] = {{"threads", r.threads}, {"kernels", r.kernels}};
  j["text"] = {{"files", r.files}, {"bytes", r.text_bytes}};
  j["tokenizer"] = {{"vocab_size", r.vocab_size}};
  j["data"] = {{"train", split_json(r.data.train)}, {"holdout", split_json(r.data.holdout)}};
  j["models"] = Json::array();
  for (const DemoModel& m : r.models) j["models"].push_back(model_json(m));
  j["samples"] = Json::array();
  for (const DemoSample& s : r.samples) j["samples"].push_back({{"prompt", s.prompt}, {"text", s.text}});
  j["kv_cache"] = {{"dtype", std::string(enum_name(r.config.train.dtype))}, {"contexts", kv_json(r)}};
  j["seconds"] = {{"tokenizer", r.tokenizer_seconds},
                  {"prepare", r.prepare_seconds},
                  {"train", r.train_seconds},
                  {"total", r.total_seconds}};
  j["commands"] = r.commands;
  return dump_json(j);
}

std::string kv_table(const DemoReport& r) {
  std::string out =
      fmt::format("{:>10} {:>16} {:>16} {:>10}\n", "tokens", "HySparse", "full attention", "smaller");
  for (size_t i = 0; i < r.kv.size(); ++i)
    out += fmt::format("{:>10} {:>16} {:>16} {:>9.2f}x\n", with_commas(r.kv[i].context),
                       with_commas(r.kv[i].total()), with_commas(r.kv_full[i].total()), ratio(r, i));
  return out;
}

std::string curve_text(const DemoReport& r) {
  std::vector<PlotSeries> series;
  for (const DemoModel& m : r.models) {
    series.push_back({m.attention, m.attention == "full" ? 'f' : 'h', {}});
    for (const EvalRecord& e : m.training.evals)
      series.back().points.emplace_back(static_cast<double>(e.step), e.bits_per_byte);
  }
  std::string out = text_plot(series, "step", "held-out bits/byte");
  for (const DemoModel& m : r.models)
    if (!m.training.evals.empty())
      out += fmt::format("{:<10} {:.4f} bits/byte held out after {} steps, {} tokens/s\n", m.attention,
                         m.training.evals.back().bits_per_byte, m.training.steps,
                         with_commas(static_cast<int64_t>(m.training.tokens_per_second)));
  return out;
}

}  // namespace hysparse
