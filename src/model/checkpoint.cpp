#include "model/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "io/files.h"
#include "io/safetensors.h"

namespace hysparse {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr size_t kShardBytes = size_t(5) << 30;
constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "tokenizer_config.json",
                                           "special_tokens_map.json", "generation_config.json",
                                           "chat_template.jinja"};

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// The first names of a list and how many more there are.
std::string some(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  std::string text = fmt::format(
      "{}", fmt::join(names.begin(),
                      names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kShown)), ", "));
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

// Buffers that old checkpoints carry although they follow from the config.
bool derived_buffer(const std::string& name) {
  constexpr std::string_view suffix = ".rotary_emb.inv_freq";
  return name.size() > suffix.size() && name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
}

// MiMo's layers that predict the tokens after the next: no part of the model proper.
bool mtp_tensor(const std::string& name) {
  return name.rfind("model.mtp_layers.", 0) == 0;
}

Tensor host_tensor(DType dtype, const std::vector<int64_t>& shape) {
  return shape.size() == 1 ? Tensor(dtype, {shape[0]}) : Tensor(dtype, {shape[0], shape[1]});
}

// A tied head may be stored if it is the embedding.
void check_tied_head(const fs::path& dir, const SafetensorsSet& files) {
  if (!files.same_values(kHead, kEmbedding))
    throw input_error(
        (dir / "config.json").string(),
        fmt::format("tie_word_embeddings is true, but {} is there and differs from {}", kHead, kEmbedding),
        "state tie_word_embeddings false, or remove the tensor");
}

void check_tensors(const fs::path& dir, const ModelConfig& config, const std::vector<WeightSpec>& specs,
                   const SafetensorsSet& files, const Log& sink) {
  std::vector<std::string> missing, unexpected, mtp;
  std::set<std::string> known;
  for (const WeightSpec& spec : specs) {
    known.insert(spec.name);
    if (!files.has(spec.name)) missing.push_back(spec.name);
  }
  for (const std::string& name : files.names()) {
    if (known.count(name) || (name == kHead && config.tie_word_embeddings)) continue;
    if (derived_buffer(name))
      log(sink, LogLevel::debug, fmt::format("{}: {} is ignored", dir.string(), name));
    else if (mtp_tensor(name))
      mtp.push_back(name);
    else
      unexpected.push_back(name);
  }
  if (!mtp.empty())
    log(sink, LogLevel::info,
        fmt::format("{}: {} tensors of multi-token prediction are left out: {}", dir.string(), mtp.size(),
                    some(mtp)));
  if (missing == std::vector<std::string>{kHead})
    throw input_error(dir.string(),
                      fmt::format("tensor {} is missing, and tie_word_embeddings is false", kHead),
                      "state tie_word_embeddings true if the head is the embedding");
  if (!missing.empty())
    throw input_error(
        dir.string(),
        fmt::format("{} tensors of the config are missing: {}{}", missing.size(), some(missing),
                    unexpected.empty() ? "" : fmt::format("; not of the config: {}", some(unexpected))),
        "config.json and the weights do not belong together");
  if (!unexpected.empty())
    throw input_error(
        dir.string(),
        fmt::format("{} tensors that the config does not know: {}", unexpected.size(), some(unexpected)),
        "config.json and the weights do not belong together");
  for (const WeightSpec& spec : specs)
    if (files.entry(spec.name).shape != spec.shape)
      throw expected_error(fmt::format("{}: {}", dir.string(), spec.name),
                           fmt::format("shape {} by the config", shape_text(spec.shape)),
                           shape_text(files.entry(spec.name).shape));
  for (const WeightSpec& spec : specs) {
    const std::string& dtype = files.entry(spec.name).dtype;
    if (dtype != "F32" && dtype != "BF16" && dtype != "F16" && dtype != "F64")
      throw expected_error(fmt::format("{}: {}", dir.string(), spec.name), "F32, BF16, F16 or F64", dtype);
  }
  if (config.tie_word_embeddings && files.has(kHead)) check_tied_head(dir, files);
}

// Into memory of any kind.
void read_into(const SafetensorsSet& files, const std::string& name, const TensorView& dst, Memory& memory) {
  if (memory.device() == DeviceKind::cpu) return files.read(name, dst);
  const Tensor host = host_tensor(dst.dtype, {dst.shape.begin(), dst.shape.begin() + dst.rank});
  files.read(name, host);
  memory.from_host(dst.data, host.view().data, dst.bytes());
}

}  // namespace

fs::path config_file(const fs::path& path) {
  std::error_code unreadable;  // what is wrong with the path shows when the file is opened
  if (fs::is_directory(path, unreadable)) return path / "config.json";
  if (path.extension() == ".gguf")
    throw expected_error(path.string(), "a model directory", "a GGUF file",
                         fmt::format("make one of it: hysparse import --from {} --out DIR", path.string()));
  return path;
}

ModelConfig load_model_config(const fs::path& path, const std::vector<std::string>& overrides,
                              const Log& log) {
  const fs::path file = config_file(path);
  ModelConfig config = parse_model_config(read_file(file), file.string(), overrides, log);
  read_generation_config(path, config);
  return config;
}

void read_generation_config(const fs::path& path, ModelConfig& config) {
  const fs::path file = path / "generation_config.json";
  std::error_code unreadable;
  if (!fs::is_directory(path, unreadable) || !file_exists(file)) return;
  add_end_ids(config, read_file(file), file.string());
  config.finalize(file.string());
}

void check_model_dir(const fs::path& dir, const ModelConfig& config, const Log& sink) {
  const SafetensorsSet files(dir);
  check_tensors(dir, config, weight_specs(config, build_layer_plan(config)), files, sink);
}

std::vector<TensorSource> model_dir_tensors(const fs::path& dir, const SafetensorsSet& files,
                                            const ModelConfig& config, const Log& sink) {
  const std::vector<WeightSpec> specs = weight_specs(config, build_layer_plan(config));
  for (const std::string& note : files.notes()) log(sink, LogLevel::warning, note);
  check_tensors(dir, config, specs, files, sink);
  std::vector<TensorSource> out;
  for (const WeightSpec& spec : specs) out.push_back(files.source(spec.name));
  return out;
}

void load_weights(const fs::path& dir, const ModelConfig& config, Weights& weights, const Log& sink) {
  HYSPARSE_CHECK(weights.options().ranks == 1, "weights that ranks share are loaded by training");
  const SafetensorsSet files(dir);
  for (const std::string& note : files.notes()) log(sink, LogLevel::warning, note);
  check_tensors(dir, config, weight_specs(config, build_layer_plan(config)), files, sink);
  bool separate_masters = false;
  for (Weight* w : weights.all()) {
    HYSPARSE_CHECK(!w->panels, "{}: packed already", w->name);
    const bool master = w->master && w->master.data != w->value.data;
    separate_masters |= master;
    if (w->scales) {
      const Tensor wide(DType::f32, {w->value.dim(0), w->value.dim(1)});
      files.read(w->name, wide);
      weights.set_quantised(*w, 0, w->value.dim(0), wide.view().as<float>());
    } else {
      read_into(files, w->name, master ? w->master : w->value, weights.memory());
    }
    ++w->version;
  }
  if (separate_masters) weights.master_to_value();
}

LoadedModel load_model_dir(const fs::path& dir, const LoadOptions& options) {
  LoadedModel loaded;
  loaded.config = load_model_config(dir, options.overrides, options.log);
  log(options.log, LogLevel::info, fmt::format("{}: RoPE {}", dir.string(), describe_rope(loaded.config)));
  Memory& memory = options.memory ? *options.memory : host_memory();
  loaded.weights =
      std::make_unique<Weights>(loaded.config, build_layer_plan(loaded.config), options.weights, memory);
  load_weights(dir, loaded.config, *loaded.weights, options.log);
  loaded.model = std::make_unique<Model>(loaded.config, *loaded.weights);
  return loaded;
}

void save_model_dir(const fs::path& dir, const ModelConfig& config, Weights& weights, DType as,
                    const fs::path& tokenizer_dir) {
  HYSPARSE_CHECK(weights.options().ranks == 1, "weights that ranks share are saved by training");
  std::vector<Tensor> copies;  // of what lives on a device
  std::vector<NamedTensor> tensors;
  for (Weight* w : weights.all()) {
    HYSPARSE_CHECK(!w->scales, "{}: weights in 8 bits are not saved", w->name);
    HYSPARSE_CHECK(!w->panels, "{}: weights packed for inference are not saved", w->name);
    TensorView from = w->master ? w->master : w->value;
    if (weights.memory().device() != DeviceKind::cpu) {
      copies.push_back(host_tensor(from.dtype, {from.shape.begin(), from.shape.begin() + from.rank}));
      weights.memory().to_host(copies.back().view().data, from.data, from.bytes());
      from = copies.back().view();
    }
    tensors.push_back({w->name, from, as});
  }
  publish_directory(dir, [&](const fs::path& temp) {
    write_file_atomic(temp / "config.json", model_config_json(config));
    write_safetensors_set(temp, tensors, kShardBytes, {{"format", "pt"}});
    if (!tokenizer_dir.empty()) copy_tokenizer_files(tokenizer_dir, temp);
  });
}

void save_model_dir(const fs::path& dir, const ModelConfig& config, const std::vector<TensorSource>& tensors,
                    DType as, const std::function<void(const fs::path&)>& also) {
  publish_directory(dir, [&](const fs::path& temp) {
    write_file_atomic(temp / "config.json", model_config_json(config));
    write_safetensors_set(temp, tensors, as, kShardBytes, {{"format", "pt"}});
    also(temp);
  });
}

void copy_tokenizer_files(const fs::path& from, const fs::path& to) {
  for (const char* name : kTokenizerFiles)
    if (file_exists(from / name)) write_file_atomic(to / name, read_file(from / name));
}

}  // namespace hysparse
