#include "train/run_folder.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/files.h"
#include "io/json_value.h"
#include "train/checkpoint.h"

namespace hysparse {

namespace fs = std::filesystem;

bool check_data_folder(const fs::path& data) {
  constexpr const char* kHint = "make the folder with `hysparse data prepare`";
  if (!fs::is_directory(data)) throw input_error(data.string(), "is no folder of prepared data", kHint);
  const auto need = [&](const char* name) {
    if (!file_exists(data / name)) throw input_error((data / name).string(), "is missing", kHint);
  };
  need("meta.json");
  need("train.tokens");
  const fs::path meta = data / "meta.json";
  const Json json = read_json_file(meta);
  // Made ids (eval/recall_data.h) stand for no text.
  if (!json.is_object() || !json.contains("recall")) need("tokenizer.json");
  if (!json.is_object() || !json.contains("splits") || !json.at("splits").is_object())
    throw input_error(meta.string(), "lists no splits", kHint);
  const bool listed = json.at("splits").contains("holdout");
  const bool there = file_exists(data / "holdout.tokens");
  if (listed && !there)
    throw input_error((data / "holdout.tokens").string(), "is missing, but meta.json lists held-out tokens",
                      "prepare the data again, with --holdout 0 to train without held-out evaluation");
  return listed;
}

bool holds_run(const fs::path& out) {
  return file_exists(out / "log.jsonl") || !list_checkpoints(out).empty();
}

void check_run_folder(const fs::path& out) {
  if (out.empty()) throw input_error("--out", "expected the name of a folder");
  if (!file_exists(out)) return;
  if (!fs::is_directory(out)) throw input_error(out.string(), "is a file, expected a folder for the run");
  if (holds_run(out)) return;
  const fs::path target = fs::canonical(out), here = fs::current_path();
  if (std::mismatch(target.begin(), target.end(), here.begin(), here.end()).first == target.end())
    throw input_error(out.string(), "is the current folder or one above it", "name a folder of its own");
  for (const auto& e : fs::directory_iterator(out)) {
    const std::string name = e.path().filename().string();
    if (name == ".lock" || (name == "checkpoints" && fs::is_empty(e.path()))) continue;
    throw input_error(out.string(), fmt::format("holds {} and no training run", name),
                      "choose another folder or empty this one");
  }
}

}  // namespace hysparse
