#include "train/train_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/files.h"
#include "io/json_value.h"

namespace hysparse {
namespace {

// NaN and infinities have no JSON spelling: null.
Json number(double x) {
  return std::isfinite(x) ? Json(x) : Json();
}
Json numbers(const std::vector<double>& values) {
  Json out = Json::array();
  for (double x : values) out.push_back(number(x));
  return out;
}

// The lines that a run resumed after `completed_steps` keeps; a line that does not parse (cut by a crash) and
// whatever follows it go.
std::string kept_lines(const std::string& content, const std::string& where, int64_t completed_steps) {
  std::string kept;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = content.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string line = content.substr(begin, end - begin);
    begin = end + 1;
    try {
      const Json json = parse_json(line, where);
      const int64_t step = std::max(json.value("step", int64_t(0)), json.value("after_step", int64_t(0)));
      if (step <= completed_steps) kept += line + "\n";
    } catch (const std::exception&) {
      break;
    }
  }
  return kept;
}

// log.jsonl, open for appending behind the lines that are kept.
struct LogFile {
  std::filesystem::path path;
  int fd = -1;

  LogFile(std::filesystem::path file, int64_t completed_steps) : path(std::move(file)) {
    if (file_exists(path)) {
      const std::string content = read_file(path);
      const std::string kept = kept_lines(content, path.string(), completed_steps);
      if (kept != content) write_file_atomic(path, kept);
    }
    fd = open(path.c_str(), O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0666);
    if (fd < 0) throw io_error(path, "open for writing", errno);
  }
  ~LogFile() { close(fd); }
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;
};

// Nothing for a model without experts.
std::vector<std::pair<const char*, const std::vector<double>*>> of_experts(const TrainRecord& r) {
  if (r.expert_load_max.empty()) return {};
  return {{"expert_load_max", &r.expert_load_max}, {"expert_load_min", &r.expert_load_min},
          {"experts_idle", &r.experts_idle},       {"expert_load_entropy", &r.expert_load_entropy},
          {"router_entropy", &r.router_entropy},   {"router_balance_loss", &r.router_balance_loss},
          {"router_z_loss", &r.router_z_loss}};
}

}  // namespace

struct TrainLog::Impl {
  LogFile file;  // first: a folder that holds it holds a run, so that one killed before its first step can be
                 // resumed
  EventFile events;

  Impl(const std::filesystem::path& out, int64_t completed_steps)
      : file(out / "log.jsonl", completed_steps),
        events(out / "tensorboard", completed_steps > 0 ? completed_steps + 1 : 0) {}
  // One write a line, so that a crash cuts at most the last line.
  void line(const Json& json) {
    const std::string text = dump_json(json, -1) + "\n";
    for (size_t done = 0; done < text.size();) {
      const ssize_t n = write(file.fd, text.data() + done, text.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw io_error(file.path, "write", errno);
      done += static_cast<size_t>(n);
    }
    events.flush();
  }
};

TrainLog::TrainLog(const std::filesystem::path& out, int64_t completed_steps)
    : impl_(std::make_unique<Impl>(out, completed_steps)) {}
TrainLog::~TrainLog() = default;

void TrainLog::start(int64_t completed_steps, int64_t steps, int threads, const std::string& kernels) {
  const int64_t now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  impl_->line({{"kind", "start"},
               {"after_step", completed_steps},
               {"steps", steps},
               {"threads", threads},
               {"kernels", kernels},
               {"unix_time", now}});
}

void TrainLog::train(const TrainRecord& r) {
  impl_->events.scalars(r.step, [&] {
    std::vector<std::pair<std::string, double>> values = {{"train/loss", r.loss},
                                                          {"train/lr", r.lr},
                                                          {"train/grad_norm", r.grad_norm},
                                                          {"train/tokens", static_cast<double>(r.tokens)},
                                                          {"train/tokens_per_second", r.tokens_per_second}};
    auto add = [&](const char* name, const std::vector<double>& layers) {
      for (size_t i = 0; i < layers.size(); ++i)
        if (!std::isnan(layers[i])) values.emplace_back(fmt::format("layer_{:02}/{}", i, name), layers[i]);
    };
    add("sparse_gate_mean", r.sparse_gate_mean);
    add("window_gate_mean", r.window_gate_mean);
    add("selection_overlap", r.selection_overlap);
    add("sparse_sink_mean", r.sparse_sink_mean);
    add("window_sink_mean", r.window_sink_mean);
    for (const auto& [name, layers] : of_experts(r)) add(name, *layers);
    return values;
  }());
  Json line = {{"kind", "train"},
               {"step", r.step},
               {"tokens", r.tokens},
               {"loss", number(r.loss)},
               {"lr", number(r.lr)},
               {"grad_norm", number(r.grad_norm)},
               {"tokens_per_second", number(r.tokens_per_second)},
               {"sparse_gate_mean", numbers(r.sparse_gate_mean)},
               {"window_gate_mean", numbers(r.window_gate_mean)},
               {"selection_overlap", numbers(r.selection_overlap)},
               {"sparse_sink_mean", numbers(r.sparse_sink_mean)},
               {"window_sink_mean", numbers(r.window_sink_mean)}};
  for (const auto& [name, layers] : of_experts(r)) line[name] = numbers(*layers);
  impl_->line(line);
}

void TrainLog::eval(const EvalRecord& r) {
  impl_->events.scalars(
      r.step, {{"heldout/nats_per_token", r.nats_per_token}, {"heldout/bits_per_byte", r.bits_per_byte}});
  impl_->line({{"kind", "eval"},
               {"step", r.step},
               {"tokens", r.tokens},
               {"targets", r.targets},
               {"nats_per_token", number(r.nats_per_token)},
               {"bits_per_byte", number(r.bits_per_byte)}});
}

void TrainLog::sample(int64_t step, const std::string& prompt, const std::string& text) {
  impl_->events.text(step, "sample", prompt + text);
  impl_->line({{"kind", "sample"}, {"step", step}, {"prompt", prompt}, {"text", text}});
}

void TrainLog::skip(int64_t step, const std::string& reason, double loss, double grad_norm) {
  impl_->line({{"kind", "skip"},
               {"step", step},
               {"reason", reason},
               {"loss", number(loss)},
               {"grad_norm", number(grad_norm)}});
}

std::vector<EvalRecord> read_eval_records(const std::filesystem::path& out) {
  const std::filesystem::path path = out / "log.jsonl";
  const std::string content = read_file(path);
  std::vector<EvalRecord> records;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string line = content.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    const Json json = parse_json(line, path.string());
    if (json.value("kind", std::string()) != "eval") continue;
    EvalRecord r;
    r.step = json.at("step").get<int64_t>();
    r.tokens = json.at("tokens").get<int64_t>();
    r.targets = json.at("targets").get<int64_t>();
    r.nats_per_token = json.at("nats_per_token").is_null() ? NAN : json.at("nats_per_token").get<double>();
    r.bits_per_byte = json.at("bits_per_byte").is_null() ? NAN : json.at("bits_per_byte").get<double>();
    records.push_back(r);
  }
  return records;
}

}  // namespace hysparse
