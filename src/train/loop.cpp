#include "train/loop.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>

#include "base/error.h"
#include "base/rng.h"
#include "io/files.h"
#include "train/balance.h"
#include "train/checkpoint.h"
#include "train/data.h"
#include "train/evaluate.h"
#include "train/memory_plan.h"
#include "train/optimizer.h"
#include "train/run_folder.h"
#include "train/schedule.h"
#include "train/step.h"

namespace hysparse {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

// Held while a process trains in a folder; the kernel drops it with the process.
class RunLock {
 public:
  explicit RunLock(const fs::path& out) {
    std::error_code error;
    fs::create_directories(out, error);
    if (error) throw io_error(out, "create the folder", error.value());
    const fs::path path = out / ".lock";
    fd_ = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
    if (fd_ < 0) throw io_error(path, "create the lock file", errno);
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      close(fd_);
      throw input_error(out.string(), "another process is training there", "choose another --out");
    }
  }
  ~RunLock() { close(fd_); }
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_ = -1;
};

// NaN where the layer has no such weight.
double mean_of(const Weight& w, Memory& memory) {
  if (!w) return std::numeric_limits<double>::quiet_NaN();
  const size_t n = static_cast<size_t>(w.value.numel());
  double sum = 0.0;
  if (w.value.dtype == DType::f64) {
    std::vector<double> values(n);
    memory.to_host(values.data(), w.value.data, w.value.bytes());
    for (double x : values) sum += x;
  } else {
    std::vector<float> values(n);
    memory.to_host(values.data(), w.value.data, w.value.bytes());
    for (float x : values) sum += x;
  }
  return sum / static_cast<double>(n);
}

// Tells prepared data apart without reading all of it.
std::string data_fingerprint(const TokenData& data) {
  uint64_t h = hash_words({static_cast<uint64_t>(data.tokens()), static_cast<uint64_t>(data.vocab_size()),
                           static_cast<uint64_t>(data.eos_id())});
  constexpr int64_t kProbes = 4096;
  for (int64_t i = 0; i < std::min(kProbes, data.tokens()); ++i) {
    const int64_t at = data.tokens() <= kProbes ? i : i * (data.tokens() / kProbes);
    h = hash_words({h, static_cast<uint64_t>(data.at(at))});
    if (data.row_tokens() > 0) h = hash_words({h, data.learned(at), data.ends_document(at)});
  }
  return fmt::format("{:016x}-{}", h, data.tokenizer_fingerprint());
}

bool asked_to_stop(const TrainRequest& request) {
  return request.stop && request.stop->load();
}

// What the request means for this data; throws where they do not fit.
RunConfig fit_config(const Runtime& rt, const TrainRequest& request, const TokenData& data) {
  RunConfig c = request.config;
  validate_run_config(c, "config");
  if (c.train.seq_len > c.model.max_position_embeddings)
    throw expected_error("train.seq_len",
                         fmt::format("at most max_position_embeddings {}", c.model.max_position_embeddings),
                         std::to_string(c.train.seq_len));
  if (data.vocab_size() > c.model.vocab_size)
    throw expected_error(
        "vocab_size",
        fmt::format("at least the {} ids of the tokenizer of {}", data.vocab_size(), request.data.string()),
        std::to_string(c.model.vocab_size), "set vocab_size, or prepare the data with the model's tokenizer");
  if (data.tokens() <= c.train.seq_len)
    throw expected_error(request.data.string(),
                         fmt::format("more training tokens than train.seq_len {}", c.train.seq_len),
                         std::to_string(data.tokens()), "prepare more text or lower train.seq_len");
  if (data.row_tokens() > 0 && data.row_tokens() != c.train.seq_len)
    throw expected_error("train.seq_len",
                         fmt::format("the {} tokens that rows of {} were packed for", data.row_tokens(),
                                     request.data.string()),
                         std::to_string(c.train.seq_len),
                         "set it, or prepare the conversations again with another --seq-len");
  if (c.model.eos_token_id.empty() && data.eos_id() >= 0) c.model.eos_token_id = {data.eos_id()};
  if (c.train.state_dtype == StateDType::bf16 && rt.memory.device() == DeviceKind::cpu)
    throw expected_error("train.state_dtype", "f32 on a CPU", "bf16", "train with --device cuda");
  if (rt.comm.size() > c.train.global_batch_size)
    throw expected_error("train.global_batch_size",
                         fmt::format("at least a row for each of {} ranks", rt.comm.size()),
                         std::to_string(c.train.global_batch_size));
  check_memory(c, rt);
  return c;
}

// A model reads ids as its tokenizer made them; another one of the same size would pass unnoticed.
void check_tokenizer(const fs::path& dir, const std::optional<Tokenizer>& tokenizer,
                     const std::string& expected) {
  if (tokenizer && tokenizer->fingerprint() != expected)
    throw expected_error((dir / "tokenizer.json").string(), "the tokenizer that the data was prepared with",
                         "another one", "prepare the data with this tokenizer");
}

class Run {
 public:
  Run(Runtime& rt, const TrainRequest& request);
  TrainResult operator()();

 private:
  void begin();
  void check_ranks_agree();
  void resume_from(const fs::path& dir);
  bool step();  // false: asked to stop on the way, nothing changed
  std::vector<TrainBatch> next_batches() const;
  void skip(const std::string& reason, double loss, double norm);
  void log_step(const StepGradient& g, double lr, double norm);
  void evaluate();
  void generate_sample();
  void save();
  void write_checkpoint();
  void finish_step(bool last);
  void report(bool evaluated);
  bool due(int64_t interval) const { return interval > 0 && state_.step % interval == 0; }
  [[noreturn]] void interrupted();
  [[noreturn]] void give_up();

  Runtime& rt_;
  const TrainRequest& request_;
  const bool is_root_;  // of the ranks: the one that writes
  const bool has_held_out_;
  std::unique_ptr<RunLock> lock_;
  TokenData data_;
  std::optional<TokenData> held_out_;
  std::optional<Tokenizer> tokenizer_;
  const RunConfig config_;
  const TrainConfig& train_;
  SampleOrder order_;
  const LayerPlan plan_;
  Weights weights_;
  Model model_;
  Optimizer optimizer_;

  TrainState state_;
  std::optional<TrainLog> log_;
  std::optional<EvalRecord> latest_eval_;
  TrainProgress progress_;
  std::vector<std::string> samples_;
  int64_t saved_step_ = -1;  // the newest step that is on disk
  Clock::time_point began_;
  double earlier_seconds_ = 0.0, step_seconds_ = 0.0;
  double loss_sum_ = 0.0, loss_weight_ = 0.0;  // of the smoothed loss
  int64_t first_step_ = 0, first_tokens_ = 0;  // where this part began
};

Run::Run(Runtime& rt, const TrainRequest& request)
    : rt_(rt),
      request_(request),
      is_root_(rt.comm.rank() == 0),
      has_held_out_(check_data_folder(request.data)),
      lock_(is_root_ ? std::make_unique<RunLock>(request.out) : nullptr),
      data_(request.data, "train"),
      config_(fit_config(rt, request, data_)),
      train_(config_.train),
      order_((data_.tokens() - 1) / train_.seq_len, static_cast<uint64_t>(train_.seed), config_.data.shuffle),
      plan_(build_layer_plan(config_.model)),
      weights_(config_.model, plan_, weight_options(train_, rt.comm), rt.memory),
      model_(config_.model, weights_),
      optimizer_(weights_) {
  if (has_held_out_) held_out_.emplace(request.data, "holdout");
  if (file_exists(request.data / "tokenizer.json")) tokenizer_.emplace(Tokenizer::load(request.data));
  check_tokenizer(request.data, tokenizer_, data_.tokenizer_fingerprint());
}

void Run::begin() {
  const std::vector<CheckpointInfo> checkpoints = list_checkpoints(request_.out);
  const bool has_run = holds_run(request_.out);
  if (has_run && !request_.resume)
    throw input_error(request_.out.string(), "already holds a training run",
                      "--resume continues it; another --out starts anew");
  if (!has_run && request_.resume)
    throw input_error(request_.out.string(), "holds no training run to resume", "start it without --resume");
  rt_.comm.barrier();  // all have looked before one writes
  if (is_root_) remove_stale_checkpoints(request_.out);
  state_.config = config_;
  state_.data_fingerprint = data_fingerprint(data_);
  if (!checkpoints.empty()) {
    resume_from(checkpoints.back().dir);
  } else if (!request_.from.empty()) {
    const bool is_run = !file_exists(request_.from / "config.json") && file_exists(request_.from / "model");
    const fs::path from = is_run ? request_.from / "model" : request_.from;
    std::optional<Tokenizer> theirs;
    if (file_exists(from / "tokenizer.json")) theirs.emplace(Tokenizer::load(from));
    check_tokenizer(from, theirs, data_.tokenizer_fingerprint());
    load_master_weights(from, weights_, rt_.log);
  } else {
    weights_.init_random(config_.model, plan_, static_cast<uint64_t>(train_.seed), &rt_.pool);
  }
  if (!has_held_out_)
    log(rt_.log, LogLevel::info,
        fmt::format("{} has no held-out part: training goes without held-out evaluation",
                    request_.data.string()));
  check_ranks_agree();
  if (is_root_) {
    log_.emplace(request_.out, state_.step);
    log_->start(state_.step, train_.steps, rt_.pool.threads(), rt_.ops.name());
  }
  first_step_ = state_.step;
  first_tokens_ = state_.tokens;
  began_ = Clock::now();
}

// Ranks of different mind would train nonsense, and some ways to differ end in a rank that waits for ever.
void Run::check_ranks_agree() {
  if (rt_.comm.size() == 1) return;
  uint64_t h = static_cast<uint64_t>(state_.step);
  for (const char c : run_config_json(config_) + state_.data_fingerprint)
    h = hash_words({h, static_cast<uint64_t>(c)});
  // Halves that f64 holds exactly.
  const double own[] = {static_cast<double>(h >> 32), static_cast<double>(h & 0xffffffffu)};
  double largest[] = {own[0], own[1]};
  rt_.comm.all_reduce_values(largest, Reduce::max);
  const bool differs = rt_.comm.any(largest[0] != own[0] || largest[1] != own[1]);
  if (differs)
    throw input_error("ranks", "differ in their configs, data or checkpoints",
                      "start all with the same flags, on the same files");
}

void Run::resume_from(const fs::path& dir) {
  TrainState saved = read_checkpoint_state(dir);
  if (saved.data_fingerprint != state_.data_fingerprint)
    throw input_error(request_.data.string(), "is not the data this run was trained on",
                      "resume with the same --data, or start a new stage with --from");
  // What the weights and the data position mean; everything else may change on the way, and is said.
  for (const ConfigChange& c : config_changes(saved.config, config_)) {
    const bool settings = c.key.rfind("train.", 0) == 0 || c.key.rfind("data.", 0) == 0;
    if (!settings || c.key == "train.seq_len" || c.key == "train.seed" || c.key == "data.shuffle")
      throw input_error(dir.string(), fmt::format("{} was {} and is now {}", c.key, c.before, c.after),
                        "resume with the same model and data order, or start a new stage with --from");
    log(rt_.log, LogLevel::warning, fmt::format("{} was {} before and is now {}", c.key, c.before, c.after));
  }
  if (train_.steps < saved.step)
    throw Error(
        ErrorKind::input,
        fmt::format("train.steps {} lies before the run's step {}", train_.steps, saved.step),
        fmt::format("set train.steps to more than {} to go on, or start a shorter run in another --out",
                    saved.step));
  load_checkpoint(dir, saved, weights_, optimizer_);
  if (is_root_) publish_model(request_.out, dir);
  saved.config = config_;
  state_ = std::move(saved);
  if (state_.heldout_nats_per_token)
    latest_eval_ = EvalRecord{state_.step, state_.tokens, 0, *state_.heldout_nats_per_token,
                              state_.heldout_bits_per_byte.value_or(NAN)};
  earlier_seconds_ = state_.seconds;
  saved_step_ = state_.step;
  log(rt_.log, LogLevel::info, fmt::format("resumed {} at step {}", dir.string(), state_.step));
}

// Of the step's rows each rank has a run of neighbours.
std::vector<TrainBatch> Run::next_batches() const {
  std::vector<TrainBatch> batches;
  const int64_t all = train_.global_batch_size, ranks = rt_.comm.size(), rank = rt_.comm.rank();
  const int64_t end = all * (rank + 1) / ranks;
  for (int64_t row = all * rank / ranks; row < end; row += train_.micro_rows()) {
    const int64_t rows = std::min(train_.micro_rows(), end - row);
    batches.push_back(make_train_batch(data_, order_, state_.samples + row, rows, train_.seq_len,
                                       config_.data.document_mask, row));
    batches.back().batch.step = static_cast<uint64_t>(state_.step + 1);
  }
  return batches;
}

bool Run::step() {
  const Clock::time_point start = Clock::now();
  std::vector<TrainBatch> batches = next_batches();
  const int64_t number = state_.step + 1;
  const bool logged = number % train_.log_interval == 0 || number == train_.steps || number == 1;
  const StepGradient g = accumulate_gradient(rt_, model_, batches, train_.recompute, logged, request_.stop,
                                             {train_.router_aux_loss_coef, train_.router_z_loss_coef});
  if (g.stopped) return false;
  const double lr = learning_rate(train_, state_.step);
  state_.step = number;
  state_.samples += train_.global_batch_size;
  state_.tokens += g.tokens;
  optimizer_.reduce_gradients(rt_);
  const double norm = optimizer_.gradient_norm(rt_);
  progress_.loss = g.mean_loss();
  progress_.lr = lr;
  progress_.grad_norm = norm;
  progress_.skipped = true;
  if (g.targets == 0) {
    skip("no_targets", 0.0, 0.0);
  } else if (!std::isfinite(norm) || !std::isfinite(g.loss_sum)) {
    ++state_.nonfinite_run;
    skip("nonfinite", g.mean_loss(), norm);
    if (state_.nonfinite_run >= train_.max_nonfinite_steps) give_up();
  } else {
    optimizer_.step(rt_, train_, lr, norm);
    balance_experts(weights_, train_.router_bias_rate);
    state_.nonfinite_run = 0;
    progress_.skipped = false;
    loss_sum_ = 0.95 * loss_sum_ + 0.05 * progress_.loss;
    loss_weight_ = 0.95 * loss_weight_ + 0.05;
    progress_.smoothed_loss = loss_sum_ / loss_weight_;
  }
  const double seconds = seconds_since(start);
  step_seconds_ = step_seconds_ == 0.0 ? seconds : 0.9 * step_seconds_ + 0.1 * seconds;
  progress_.tokens_per_second = static_cast<double>(g.tokens) / step_seconds_;
  if (log_ && logged && !progress_.skipped) log_step(g, lr, norm);
  return true;
}

void Run::skip(const std::string& reason, double loss, double norm) {
  if (log_) log_->skip(state_.step, reason, loss, norm);
  log(rt_.log, LogLevel::warning,
      reason == "no_targets"
          ? fmt::format("step {}: no token of the step has a label; skipped, weights unchanged", state_.step)
          : fmt::format("step {}: gradients are not finite (loss {}, norm {}); skipped, weights unchanged",
                        state_.step, loss, norm));
}

// Everything is as after the last good step but for the counters.
void Run::give_up() {
  const int64_t run = state_.nonfinite_run;
  state_.nonfinite_run = 0;
  state_.heldout_nats_per_token.reset();
  state_.heldout_bits_per_byte.reset();
  write_checkpoint();
  throw failure(
      "training",
      fmt::format("gradients were not finite in {} steps in a row, {} to {}; the weights from before them "
                  "are saved in {}",
                  run, state_.step - run + 1, state_.step,
                  checkpoint_path(request_.out, state_.step).string()),
      "lower train.lr or train.grad_clip, or look at the data of these steps; --resume goes on behind them");
}

void Run::log_step(const StepGradient& g, double lr, double norm) {
  TrainRecord r;
  r.step = state_.step;
  r.tokens = state_.tokens;
  r.loss = g.mean_loss();
  r.lr = lr;
  r.grad_norm = norm;
  r.tokens_per_second = progress_.tokens_per_second;
  r.sparse_gate_mean = g.stats.sparse_gate_mean;
  r.window_gate_mean = g.stats.window_gate_mean;
  r.selection_overlap = g.stats.selection_overlap;
  for (const LayerWeights& layer : weights_.layers) {
    r.sparse_sink_mean.push_back(mean_of(layer.sparse_sinks, rt_.memory));
    r.window_sink_mean.push_back(mean_of(layer.sinks, rt_.memory));
  }
  if (config_.model.n_routed_experts > 0) {
    for (const LayerWeights& layer : weights_.layers) {
      const ExpertLoad load = expert_load(layer, rt_.memory);
      r.expert_load_max.push_back(load.max_over_mean);
      r.expert_load_min.push_back(load.min_over_mean);
      r.experts_idle.push_back(load.idle);
      r.expert_load_entropy.push_back(load.entropy);
    }
    r.router_entropy = g.stats.router_entropy;
    r.router_balance_loss = g.stats.balance_loss;
    r.router_z_loss = g.stats.z_loss;
  }
  log_->train(r);
}

void Run::evaluate() {
  if (!held_out_) return;
  HeldOutOptions o;
  o.seq_len = train_.seq_len;
  o.rows = train_.micro_rows();
  o.max_tokens = train_.eval_tokens;
  o.document_mask = config_.data.document_mask;
  for (int32_t id = 0; tokenizer_ && id < tokenizer_->vocab_size(); ++id)
    o.token_bytes.push_back(
        tokenizer_->is_special(id) ? 0 : static_cast<int32_t>(tokenizer_->token_bytes(id).size()));
  const HeldOut h = evaluate_held_out(rt_, model_, *held_out_, o);
  latest_eval_ = EvalRecord{state_.step, state_.tokens, h.targets, h.nats_per_token, h.bits_per_byte};
  if (log_) log_->eval(*latest_eval_);
}

void Run::generate_sample() {
  if (!is_root_ || !request_.sample || !tokenizer_) return;
  const std::string text =
      request_.sample(rt_, model_, *tokenizer_, train_.sample_prompt, train_.sample_tokens);
  log_->sample(state_.step, train_.sample_prompt, text);
  samples_.push_back(text);
}

void Run::save() {
  const bool evaluated =
      latest_eval_ && latest_eval_->step == state_.step && std::isfinite(latest_eval_->nats_per_token);
  state_.heldout_nats_per_token = evaluated ? std::optional(latest_eval_->nats_per_token) : std::nullopt;
  const bool has_text = evaluated && std::isfinite(latest_eval_->bits_per_byte);  // made ids stand for none
  state_.heldout_bits_per_byte = has_text ? std::optional(latest_eval_->bits_per_byte) : std::nullopt;
  write_checkpoint();
  if (is_root_) prune_checkpoints(request_.out, train_.keep_last);
}

void Run::write_checkpoint() {
  state_.applied = optimizer_.applied();
  state_.seconds = earlier_seconds_ + seconds_since(began_);
  save_checkpoint(request_.out, state_, weights_, optimizer_, request_.data, rt_.comm);
  rt_.comm.barrier();  // it is there: whoever leaves now may leave
  saved_step_ = state_.step;
}

void Run::interrupted() {
  if (saved_step_ != state_.step) save();
  throw Error(ErrorKind::interrupted,
              fmt::format("interrupted: step {} of {} is saved in {}", state_.step, train_.steps,
                          checkpoint_path(request_.out, state_.step).string()),
              "--resume continues");
}

void Run::finish_step(bool last) {
  const bool save_now = last || due(train_.checkpoint_interval);
  const bool evaluate_now = save_now || due(train_.eval_interval);
  if (evaluate_now) evaluate();
  if (evaluate_now && is_root_ && request_.probe) request_.probe(rt_, model_, state_.step);
  if (train_.sample_interval > 0 && (last || due(train_.sample_interval))) generate_sample();
  if (save_now) save();
  report(evaluate_now);
}

void Run::report(bool evaluated) {
  if (!is_root_ || !request_.progress) return;
  progress_.step = state_.step;
  progress_.steps = train_.steps;
  progress_.eta_seconds = seconds_since(began_) / static_cast<double>(state_.step - first_step_) *
                          static_cast<double>(train_.steps - state_.step);
  progress_.held_out = latest_eval_;
  progress_.evaluated = evaluated;
  request_.progress(progress_);
}

TrainResult Run::operator()() {
  begin();
  if (state_.step >= train_.steps)
    log(rt_.log, LogLevel::info,
        fmt::format("all {} steps are done; a larger train.steps goes on", train_.steps));
  while (state_.step < train_.steps) {
    if (rt_.comm.any(asked_to_stop(request_)) || !step()) interrupted();
    const bool out_of_time =
        train_.time_limit_seconds > 0 &&
        rt_.comm.any(earlier_seconds_ + seconds_since(began_) >= train_.time_limit_seconds);
    finish_step(state_.step == train_.steps || out_of_time);
    if (out_of_time) break;
  }
  TrainResult r;
  r.steps = state_.step;
  r.finished = state_.step >= train_.steps;
  r.tokens = state_.tokens;
  r.seconds = earlier_seconds_ + seconds_since(began_);
  r.tokens_per_second =
      static_cast<double>(state_.tokens - first_tokens_) / std::max(1e-9, seconds_since(began_));
  r.parameters = weights_.parameters();
  if (is_root_) r.evals = read_eval_records(request_.out);
  r.samples = samples_;
  return r;
}

}  // namespace

TrainResult train(Runtime& rt, const TrainRequest& request) {
  return Run(rt, request)();
}

}  // namespace hysparse
