// hysparse import: a model directory of ours from a GGUF file or from a Hugging Face directory.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/error.h"
#include "commands.h"
#include "common.h"
#include "io/files.h"
#include "io/gguf.h"
#include "model/checkpoint.h"
#include "model/gguf_model.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_gguf.h"

namespace hysparse {
namespace {

namespace fs = std::filesystem;

struct Flags {
  std::string from, out, tokenizer, dtype = "auto";
  bool no_tokenizer = false;
};

DType stored_dtype(const Flags& flags, bool fits_bf16) {
  if (flags.dtype == "auto") return fits_bf16 ? DType::bf16 : DType::f32;
  return flags.dtype == "bf16" ? DType::bf16 : DType::f32;
}

// The tokenizer of --tokenizer, which must have no more tokens than the model has rows.
void check_tokenizer(const Flags& flags, const ModelConfig& config) {
  if (flags.tokenizer.empty()) return;
  const int64_t size = Tokenizer::load(flags.tokenizer).vocab_size();
  if (size > config.vocab_size)
    throw expected_error("--tokenizer " + flags.tokenizer,
                         fmt::format("at most {} tokens, the model's vocabulary", config.vocab_size),
                         std::to_string(size), "it belongs to another model");
}

void save(const Flags& flags, const ModelConfig& config, const std::vector<TensorSource>& tensors, DType as,
          const std::function<void(const fs::path&)>& own_tokenizer) {
  check_tokenizer(flags, config);
  save_model_dir(flags.out, config, tensors, as, [&](const fs::path& temp) {
    if (flags.no_tokenizer) return;
    if (!flags.tokenizer.empty()) {
      const fs::path path = flags.tokenizer;
      copy_tokenizer_files(fs::is_directory(path) ? path : fs::absolute(path).parent_path(), temp);
    } else {
      own_tokenizer(temp);
    }
    if (interrupt_flag().load())
      throw Error(ErrorKind::interrupted, "interrupted; " + flags.out + " is as it was before");
  });
  int64_t parameters = 0;
  for (const TensorSource& t : tensors) parameters += t.rows() * t.row_size();
  std::printf(
      "%s: %lld parameters in %s, %s\n", flags.out.c_str(), static_cast<long long>(parameters),
      std::string(name_of(as)).c_str(),
      file_exists(fs::path(flags.out) / "tokenizer.json") ? "with a tokenizer" : "without a tokenizer");
}

void import_gguf(const Flags& flags) {
  const GgufFile file(flags.from);
  const ModelConfig config = gguf_config(file);
  const std::vector<TensorSource> tensors = gguf_tensors(file, config);
  std::optional<TokenizerFiles> tokenizer;
  if (!flags.no_tokenizer && flags.tokenizer.empty()) tokenizer = tokenizer_from_gguf(file);
  const DType as = stored_dtype(flags, flags.dtype == "auto" && fits_bf16(file));
  save(flags, config, tensors, as, [&](const fs::path& temp) {
    if (!tokenizer) return;
    write_file_atomic(temp / "tokenizer.json", tokenizer->tokenizer);
    write_file_atomic(temp / "tokenizer_config.json", tokenizer->config);
    if (!tokenizer->chat_template.empty())
      write_file_atomic(temp / "chat_template.jinja", tokenizer->chat_template);
  });
}

void import_directory(const Flags& flags) {
  const Log log = stderr_log();
  const fs::path from = flags.from;
  const ModelConfig config = load_model_config(from, {}, log);
  const SafetensorsSet files(from);
  const std::vector<TensorSource> tensors = model_dir_tensors(from, files, config, log);
  bool all_bf16 = true;
  for (const TensorSource& t : tensors) all_bf16 &= files.entry(t.name).dtype == "BF16";
  save(flags, config, tensors, stored_dtype(flags, all_bf16),
       [&](const fs::path& temp) { copy_tokenizer_files(from, temp); });
}

void run(const Flags& flags) {
  if (flags.from.empty()) throw expected_error("--from", "a GGUF file or a model directory", "an empty name");
  std::error_code error;
  if (fs::is_directory(flags.from, error)) {
    if (fs::equivalent(flags.from, flags.out, error))
      throw input_error("--out", fmt::format("{} is what --from reads and would be replaced", flags.out));
    import_directory(flags);
  } else {
    import_gguf(flags);
  }
}

}  // namespace

void add_import(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App& c =
      *app.add_subcommand("import", "make a model directory of a GGUF file or a Hugging Face directory");
  c.add_option("--from", flags->from,
               "GGUF file (llama, qwen2, qwen3; F32, F16, BF16, Q8_0, Q4_0, Q4_1), or a Hugging Face model "
               "directory (Llama, Qwen2, Qwen3, MiMo)")
      ->required();
  c.add_option("--out", flags->out, "model directory to write; an earlier one there is replaced")->required();
  c.add_option("--dtype", flags->dtype,
               "dtype of the weights: f32, bf16, or auto: bf16 where it holds every value exactly, else f32")
      ->check(CLI::IsMember({"auto", "f32", "bf16"}))
      ->capture_default_str();
  CLI::Option* tokenizer = c.add_option("--tokenizer", flags->tokenizer,
                                        "take this folder's tokenizer instead of the model's own");
  c.add_flag("--no-tokenizer", flags->no_tokenizer, "the weights alone; commands then take --tokens")
      ->excludes(tokenizer);
  c.footer(
      "The model is one with full attention (attention: full). Every command also reads a Hugging Face "
      "directory "
      "as it is; import rewrites it as one of ours.\n"
      "Example: hysparse import --from SmolLM2-135M-Instruct.Q4_1.gguf --out out/smollm2\n"
      "         hysparse generate --model out/smollm2 --prompt \"The capital of France is\" --temperature 0");
  c.callback([flags] { run(*flags); });
}

}  // namespace hysparse
