// hysparse export: a GGUF file of a model with full attention, for llama.cpp.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "commands.h"
#include "common.h"
#include "io/files.h"
#include "io/gguf.h"
#include "model/checkpoint.h"
#include "model/gguf_model.h"
#include "tokenizer/tokenizer_gguf.h"

namespace hysparse {
namespace {

namespace fs = std::filesystem;

struct Flags {
  std::string model, out, dtype = "f16", name;
  bool no_tokenizer = false;
};

GgufDType stored_dtype(const std::string& name) {
  if (name == "f32") return GgufDType::f32;
  if (name == "bf16") return GgufDType::bf16;
  return name == "q8_0" ? GgufDType::q8_0 : GgufDType::f16;
}

// A name for people: the folder's.
std::string model_name(const Flags& flags) {
  if (!flags.name.empty()) return flags.name;
  const std::string name = fs::absolute(flags.model).lexically_normal().filename().string();
  return name.empty() ? "hysparse" : name;
}

void run(const Flags& flags) {
  const Log log = stderr_log();
  const fs::path dir = flags.model;
  const ModelConfig config = load_model_config(dir, {}, log);
  const SafetensorsSet files(dir);
  GgufWriter out;
  add_gguf_model(out, config, model_dir_tensors(dir, files, config, log), stored_dtype(flags.dtype),
                 model_name(flags), log);
  const bool tokenizer = !flags.no_tokenizer && file_exists(dir / "tokenizer.json");
  add_tokenizer(out, tokenizer ? dir : fs::path(), config.vocab_size, config.eos_token_id,
                config.bos_token_id, config.pad_token_id, log);
  out.write(flags.out);
  std::printf("%s: %s, %s, %llu bytes\n", flags.out.c_str(), flags.dtype.c_str(),
              tokenizer ? "with its tokenizer" : "without a tokenizer",
              static_cast<unsigned long long>(fs::file_size(flags.out)));
}

}  // namespace

void add_export(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App& c =
      *app.add_subcommand("export", "write a GGUF file of a model with full attention, for llama.cpp");
  c.add_option("--model", flags->model, "model directory (ours, or a Hugging Face one)")->required();
  c.add_option("--out", flags->out, "GGUF file to write")->required();
  c.add_option("--dtype", flags->dtype,
               "dtype of the matrices: f16, bf16, f32 or q8_0; vectors are always f32")
      ->check(CLI::IsMember({"f16", "bf16", "f32", "q8_0"}))
      ->capture_default_str();
  c.add_option("--name", flags->name, "general.name of the file; default: the folder's name");
  c.add_flag("--no-tokenizer", flags->no_tokenizer, "the weights alone");
  c.footer(
      "llama.cpp knows no sparse layers: what it can run is a full twin (--set attention=full in train or "
      "init).\n"
      "Example: hysparse export --model out/smollm2 --out smollm2.gguf --dtype q8_0");
  c.callback([flags] { run(*flags); });
}

}  // namespace hysparse
