#include "train/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <list>
#include <map>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/error.h"
#include "io/files.h"
#include "io/json_fields.h"
#include "io/json_value.h"
#include "io/safetensors.h"
#include "model/checkpoint.h"
#include "train/token_file.h"

namespace hysparse {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFormat = 1;
constexpr const char* kStateFile = "state.json";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kStepPrefix = "step-";
constexpr const char* kRemovedPrefix = ".removed-";

Json state_json(const TrainState& s) {
  Json j;
  j["format_version"] = kFormat;
  j["step"] = s.step;
  j["samples"] = s.samples;
  j["tokens"] = s.tokens;
  j["applied_steps"] = s.applied;
  j["nonfinite_run"] = s.nonfinite_run;
  j["seconds"] = s.seconds;
  j["heldout_nats_per_token"] = s.heldout_nats_per_token ? Json(*s.heldout_nats_per_token) : Json();
  j["heldout_bits_per_byte"] = s.heldout_bits_per_byte ? Json(*s.heldout_bits_per_byte) : Json();
  j["data_fingerprint"] = s.data_fingerprint;
  j["train"] = write_fields(s.config.train);
  j["data"] = write_fields(s.config.data);
  return j;
}

std::map<std::string, std::string> step_metadata(const TrainState& s) {
  return {{"format", "pt"}, {"step", std::to_string(s.step)}};
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}
std::vector<int64_t> shape_of(const TensorView& t) {
  return {t.shape.begin(), t.shape.begin() + t.rank};
}

// What ranks keep of a flat tensor, joined on the host of rank 0 (where there is one rank: a HostCopy).
class Gathered {
 public:
  Gathered(const TensorView& share, Memory& memory, Comm& comm) : own_(share, memory) {
    if (comm.size() == 1) return;
    const int64_t n = share.numel(), ranks = comm.size();
    is_whole_ = comm.rank() == 0;
    if (is_whole_) whole_ = Tensor(share.dtype, {n * ranks});
    // In pieces: the other ranks keep none of it.
    constexpr int64_t kPiece = int64_t(1) << 20;
    const Tensor pieces(share.dtype, {std::min(kPiece, n) * ranks});
    for (int64_t at = 0; at < n; at += kPiece) {
      const int64_t size = std::min(kPiece, n - at);
      const TensorView all = pieces.view().rows(0, size * ranks);
      comm.host().all_gather(own_.view().rows(at, at + size), all);
      for (int64_t r = 0; whole_ && r < ranks; ++r) {
        const TensorView piece = all.rows(r * size, (r + 1) * size);
        std::memcpy(whole_.view().rows(r * n + at, r * n + at + size).data, piece.data, piece.bytes());
      }
    }
  }
  bool is_whole() const { return is_whole_; }
  // Elements [begin, begin + numel of `like`), in its shape, of a whole.
  TensorView at(int64_t begin, const TensorView& like) const {
    const TensorView& flat = whole_ ? whole_.view() : own_.view();
    TensorView out = like;
    out.dtype = flat.dtype;
    out.data = flat.rows(begin, begin + like.numel()).data;
    return out;
  }

 private:
  HostCopy own_;
  Tensor whole_;
  bool is_whole_ = true;
};

// By weight: where its state is. Rank 0's; the others have nothing to show.
using Gathering = std::map<const Weight*, TensorView>;
void add_group(Gathering& to, const WeightGroup& group, const Gathered& from) {
  for (const WeightGroup::Part& part : group.parts)
    if (from.is_whole()) to[part.weight] = from.at(part.begin, part.weight->value);
}

void write_weights(const fs::path& dir, const TrainState& state, Weights& weights, Comm& comm) {
  std::list<Gathered> groups;
  std::list<HostCopy> loose;
  Gathering masters;
  for (const WeightGroup& group : weights.groups()) {
    if (group.masters.dtype == group.values.dtype)  // every rank has all
      add_group(masters, group, groups.emplace_back(group.values, weights.memory(), self_comm()));
    else
      add_group(masters, group, groups.emplace_back(group.masters, weights.memory(), comm));
  }
  if (comm.rank() != 0) return;
  std::vector<NamedTensor> tensors;
  for (Weight* w : weights.all()) {
    if (!masters.contains(w)) masters[w] = loose.emplace_back(w->value, weights.memory()).view();
    tensors.push_back({w->name, masters[w], masters[w].dtype});
  }
  write_safetensors_set(dir, tensors, size_t(5) << 30, step_metadata(state));
}

void write_moments(const fs::path& dir, const TrainState& state, Weights& weights, Optimizer& optimizer,
                   Comm& comm) {
  std::list<Gathered> groups;
  Gathering m, v;
  for (size_t g = 0; g < weights.groups().size(); ++g) {
    const Optimizer::Moments& moments = optimizer.moments()[g];
    add_group(m, weights.groups()[g], groups.emplace_back(moments.m, weights.memory(), comm));
    add_group(v, weights.groups()[g], groups.emplace_back(moments.v, weights.memory(), comm));
  }
  if (comm.rank() != 0) return;
  std::vector<NamedTensor> tensors;
  for (const Weight* w : weights.all()) {
    if (!m.contains(w)) continue;
    tensors.push_back({"m." + w->name, m[w], m[w].dtype});
    tensors.push_back({"v." + w->name, v[w], v[w].dtype});
  }
  write_safetensors(dir / kOptimizerFile, tensors, step_metadata(state));
}

void check_shape(const std::string& where, const SafetensorsEntry& entry, const TensorView& like) {
  if (entry.shape != shape_of(like))
    throw expected_error(where, "shape " + shape_text(shape_of(like)), shape_text(entry.shape));
}

Tensor host_tensor(DType dtype, const TensorView& like) {
  return like.rank == 1 ? Tensor(dtype, {like.dim(0)}) : Tensor(dtype, {like.dim(0), like.dim(1)});
}

template <class From>
void convert(const std::byte* source, const TensorView& dst) {
  const auto* from = reinterpret_cast<const From*>(source);
  const int64_t n = dst.numel();
  if (dst.dtype == DType::f64)
    std::transform(from, from + n, dst.as<double>(), [](From x) {
      if constexpr (std::is_same_v<From, double>) return x;
      return static_cast<double>(static_cast<float>(x));
    });
  else if (dst.dtype == DType::bf16)
    std::transform(from, from + n, dst.as<bf16>(), [](From x) { return bf16(static_cast<float>(x)); });
  else
    std::transform(from, from + n, dst.as<float>(), [](From x) { return static_cast<float>(x); });
}

// Elements of `slot`'s weight that this rank keeps, from the stored tensor of the whole, into `dst`.
void read_moment(const SafetensorsFile& file, const std::string& name, const Optimizer::Slot& slot,
                 const TensorView& dst, Memory& memory) {
  const auto found = file.entries().find(name);
  const std::string where = file.path().string() + ": " + name;
  if (found == file.entries().end())
    throw input_error(where, "tensor is missing", "the checkpoint is damaged");
  const SafetensorsEntry& entry = found->second;
  if (entry.dtype != "F32" && entry.dtype != "F64" && entry.dtype != "BF16")
    throw expected_error(where, "F32, F64 or BF16", entry.dtype);
  check_shape(where, entry, slot.weight->value);
  const Tensor copy = memory.device() == DeviceKind::cpu ? Tensor() : host_tensor(dst.dtype, dst);
  const TensorView host = copy ? copy.view() : dst;
  const auto read = [&](auto tag) {
    using From = decltype(tag);
    convert<From>(file.data(entry) + static_cast<size_t>(slot.weight->master_begin) * sizeof(From), host);
  };
  if (entry.dtype == "F32")
    read(float{});
  else if (entry.dtype == "BF16")
    read(bf16{});
  else
    read(double{});
  if (copy) memory.from_host(dst.data, host.data, dst.bytes());
}

// Maps the file, so that its size does not matter.
std::string file_checksum(const fs::path& path) {
  const MappedFile file(path);
  TokenChecksum sum;
  sum.add(file.bytes().data(), file.bytes().size());
  return fmt::format("{:016x}", sum.value());
}

// Of several files at once: of a large model, reading them back takes as long as writing them.
std::vector<std::string> file_checksums(const std::vector<fs::path>& paths) {
  constexpr size_t kAtOnce = 8;
  std::vector<std::string> sums(paths.size());
  for (size_t first = 0; first < paths.size(); first += kAtOnce) {
    std::vector<std::future<std::string>> running;
    for (size_t i = first; i < std::min(paths.size(), first + kAtOnce); ++i)
      running.push_back(std::async(std::launch::async, file_checksum, paths[i]));
    for (size_t i = 0; i < running.size(); ++i) sums[first + i] = running[i].get();
  }
  return sums;
}

std::string damaged_hint(const fs::path& dir) {
  return fmt::format(
      "the checkpoint is damaged: restore the file, or remove {} to resume from the one before",
      dir.string());
}

// Of state.json: everything in it but this very sum.
std::string state_checksum(Json state) {
  state.erase("checksum");
  const std::string text = dump_json(state);
  TokenChecksum sum;
  sum.add(text.data(), text.size());
  return fmt::format("{:016x}", sum.value());
}

Json read_state_file(const fs::path& dir) {
  const fs::path path = dir / kStateFile;
  if (!file_exists(path)) throw input_error(path.string(), "is missing", damaged_hint(dir));
  try {
    return read_json_file(path);
  } catch (const Error& e) {
    throw Error(e.kind(), e.what(), damaged_hint(dir));
  }
}

// files: name -> what was listed of it.
void check_contents(const fs::path& dir, const std::vector<std::pair<std::string, Json>>& files) {
  std::vector<fs::path> paths;
  for (const auto& [name, listed] : files) paths.push_back(dir / name);
  const std::vector<std::string> sums = file_checksums(paths);
  for (size_t i = 0; i < files.size(); ++i)
    if (sums[i] != files[i].second.at("checksum").get<std::string>())
      throw input_error(paths[i].string(), "its content is not what was saved: the checksum differs",
                        damaged_hint(dir));
}

bool holds_tensors(const std::string& name) {
  return fs::path(name).extension() == ".safetensors";
}

// "model.layers.1.x, model.layers.2.x, norm" -> "model.layers.*.x (2 layers), norm"
std::string by_layer(const std::vector<std::string>& names) {
  std::vector<std::pair<std::string, int>> kinds;
  for (const std::string& name : names) {
    constexpr std::string_view kLayers = ".layers.";
    std::string kind = name;
    if (const size_t at = name.find(kLayers); at != std::string::npos) {
      const size_t begin = at + kLayers.size(), end = name.find('.', begin);
      if (end != std::string::npos) kind = name.substr(0, begin) + "*" + name.substr(end);
    }
    const auto known =
        std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.first == kind; });
    if (known == kinds.end())
      kinds.emplace_back(kind, 1);
    else
      ++known->second;
  }
  std::string text;
  for (const auto& [kind, count] : kinds)
    text +=
        (text.empty() ? "" : ", ") + kind +
        (kind.find(".*.") == std::string::npos ? ""
                                               : fmt::format(" ({} layer{})", count, count == 1 ? "" : "s"));
  return text;
}

void check_step(const SafetensorsFile& file, int64_t step) {
  const auto found = file.metadata().find("step");
  const std::string got = found == file.metadata().end() ? "none" : found->second;
  if (got != std::to_string(step))
    throw expected_error(file.path().string(), fmt::format("a file of step {}", step), "step " + got,
                         "files of several checkpoints were mixed");
}

}  // namespace

fs::path checkpoint_path(const fs::path& out, int64_t step) {
  return out / "checkpoints" / fmt::format("{}{:08}", kStepPrefix, step);
}

std::vector<CheckpointInfo> list_checkpoints(const fs::path& out) {
  std::vector<CheckpointInfo> found;
  std::error_code error;
  for (fs::directory_iterator it(out / "checkpoints", error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const std::string digits =
        name.rfind(kStepPrefix, 0) == 0 ? name.substr(std::string(kStepPrefix).size()) : "";
    if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos ||
        !it->is_directory())
      continue;
    found.push_back({it->path(), std::stoll(digits)});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

void save_checkpoint(const fs::path& out, const TrainState& state, Weights& weights, Optimizer& optimizer,
                     const fs::path& tokenizer_dir, Comm& comm) {
  if (comm.rank() != 0) {
    write_weights({}, state, weights, comm);
    write_moments({}, state, weights, optimizer, comm);
    return;
  }
  const fs::path dir = checkpoint_path(out, state.step);
  std::error_code error;
  fs::create_directories(dir.parent_path(), error);
  if (error) throw io_error(dir.parent_path(), "create the folder", error.value());
  publish_directory(dir, [&](const fs::path& temp) {
    write_weights(temp, state, weights, comm);
    write_moments(temp, state, weights, optimizer, comm);
    write_file_atomic(temp / "config.json", model_config_json(state.config.model));
    if (!tokenizer_dir.empty()) copy_tokenizer_files(tokenizer_dir, temp);
    Json json = state_json(state);
    Json files = Json::object();
    std::vector<fs::path> names;
    for (const auto& e : fs::directory_iterator(temp)) names.push_back(e.path());
    std::sort(names.begin(), names.end());
    const std::vector<std::string> sums = file_checksums(names);
    for (size_t i = 0; i < names.size(); ++i)
      files[names[i].filename().string()] = {{"bytes", fs::file_size(names[i])}, {"checksum", sums[i]}};
    json["files"] = files;
    json["checksum"] = state_checksum(json);
    write_file_atomic(temp / kStateFile, dump_json(json));
  });
  publish_model(out, dir);
}

// The same files without what only training needs. Checkpoint files are never written in place, so sharing
// their blocks is safe.
void publish_model(const fs::path& out, const fs::path& checkpoint) {
  publish_directory(out / "model", [&](const fs::path& temp) {
    for (const auto& e : fs::directory_iterator(checkpoint)) {
      const std::string name = e.path().filename().string();
      if (name == kStateFile || name == kOptimizerFile) continue;
      std::error_code error;
      fs::create_hard_link(e.path(), temp / name, error);
      if (error) fs::copy_file(e.path(), temp / name);
    }
  });
}

TrainState read_checkpoint_state(const fs::path& dir) {
  const fs::path path = dir / kStateFile;
  const std::string where = path.string();
  const Json json = read_state_file(dir);
  try {
    const int64_t format = json.at("format_version").get<int64_t>();
    if (format != kFormat)
      throw expected_error(where, fmt::format("format_version {}", kFormat), std::to_string(format),
                           "resume with the program that wrote it");
    if (json.at("checksum").get<std::string>() != state_checksum(json))
      throw input_error(where, "its content is not what was saved: the checksum differs", damaged_hint(dir));
    for (const auto& [name, listed] : json.at("files").items()) {
      const fs::path file = dir / name;
      if (!file_exists(file)) throw input_error(file.string(), "is missing", damaged_hint(dir));
      const auto bytes = listed.at("bytes").get<uint64_t>();
      if (fs::file_size(file) != bytes)
        throw expected_error(file.string(), fmt::format("{} bytes", bytes),
                             fmt::format("{} bytes", fs::file_size(file)), damaged_hint(dir));
      if (!holds_tensors(name)) check_contents(dir, {{name, listed}});
    }
    TrainState s;
    s.step = json.at("step").get<int64_t>();
    s.samples = json.at("samples").get<int64_t>();
    s.tokens = json.at("tokens").get<int64_t>();
    s.applied = json.at("applied_steps").get<int64_t>();
    s.nonfinite_run = json.at("nonfinite_run").get<int64_t>();
    s.seconds = json.at("seconds").get<double>();
    if (!json.at("heldout_nats_per_token").is_null())
      s.heldout_nats_per_token = json.at("heldout_nats_per_token").get<double>();
    if (!json.at("heldout_bits_per_byte").is_null())
      s.heldout_bits_per_byte = json.at("heldout_bits_per_byte").get<double>();
    s.data_fingerprint = json.at("data_fingerprint").get<std::string>();
    read_fields(json.at("train"), s.config.train, where + ": train");
    read_fields(json.at("data"), s.config.data, where + ": data");
    s.config.model = parse_model_config(read_file(dir / "config.json"), (dir / "config.json").string());
    return s;
  } catch (const Json::exception& e) {
    throw input_error(where, std::string("is not a training state: ") + e.what(), damaged_hint(dir));
  }
}

void load_master_weights(const fs::path& model_dir, Weights& weights, const Log& sink) {
  const SafetensorsSet set(model_dir);
  std::vector<std::string> missing;
  for (Weight* w : weights.all())
    if (!set.has(w->name)) missing.push_back(w->name);
  if (!missing.empty())
    throw input_error(model_dir.string(), "lacks tensors that the config asks for: " + by_layer(missing),
                      "the config must describe the same model");
  std::vector<std::string> left;
  for (const std::string& name : set.names())
    if (!weights.find(name)) left.push_back(name);
  if (!left.empty())
    log(sink, LogLevel::warning,
        fmt::format("{}: {} tensors have no place in this config and are left behind: {}", model_dir.string(),
                    left.size(), by_layer(left)));
  for (Weight* w : weights.all()) {
    check_shape(model_dir.string() + ": " + w->name, set.entry(w->name), w->value);
    const Tensor host = host_tensor(accumulation_dtype(w->value.dtype), w->value);
    set.read(w->name, host);
    weights.assign(*w, host);
  }
}

void load_checkpoint(const fs::path& dir, const TrainState& state, Weights& weights, Optimizer& optimizer) {
  const Json json = read_state_file(dir);
  std::vector<std::pair<std::string, Json>> large;
  for (const auto& [name, listed] : json.at("files").items())
    if (holds_tensors(name)) large.emplace_back(name, listed);
  check_contents(dir, large);
  const SafetensorsFile moments(dir / kOptimizerFile);
  check_step(moments, state.step);
  for (const auto& e : fs::directory_iterator(dir))
    if (e.path().extension() == ".safetensors") check_step(SafetensorsFile(e.path()), state.step);
  load_master_weights(dir, weights);
  for (Optimizer::Slot& slot : optimizer.slots()) {
    read_moment(moments, "m." + slot.weight->name, slot, slot.m, weights.memory());
    read_moment(moments, "v." + slot.weight->name, slot, slot.v, weights.memory());
  }
  optimizer.set_applied(state.applied);
}

void prune_checkpoints(const fs::path& out, int64_t keep_last) {
  std::vector<std::pair<CheckpointInfo, TrainState>> whole;
  for (const CheckpointInfo& c : list_checkpoints(out)) {
    try {
      whole.emplace_back(c, read_checkpoint_state(c.dir));
    } catch (const Error&) {  // damaged: left for its owner to look at
    }
  }
  const CheckpointInfo* best = nullptr;
  double best_loss = 0.0;
  for (const auto& [info, state] : whole) {
    if (!state.heldout_nats_per_token || (best && *state.heldout_nats_per_token >= best_loss)) continue;
    best = &info;
    best_loss = *state.heldout_nats_per_token;
  }
  for (size_t i = 0; i + static_cast<size_t>(keep_last) < whole.size(); ++i) {
    const fs::path& dir = whole[i].first.dir;
    if (best && dir == best->dir) continue;
    // Out of sight in one stroke, so that a half-removed folder is never taken for a checkpoint.
    const fs::path hidden = dir.parent_path() / (kRemovedPrefix + dir.filename().string());
    fs::rename(dir, hidden);
    fs::remove_all(hidden);
  }
}

void remove_stale_checkpoints(const fs::path& out) {
  std::vector<fs::path> stale;
  std::error_code error;
  for (const fs::path& folder : {out, out / "checkpoints"})
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      const bool unfinished = (name.rfind(".step-", 0) == 0 || name.rfind(".model.", 0) == 0) &&
                              name.find(".tmp-") != std::string::npos;
      if (unfinished || name.rfind(kRemovedPrefix, 0) == 0) stale.push_back(it->path());
    }
  for (const fs::path& p : stale) fs::remove_all(p, error);
}

}  // namespace hysparse
