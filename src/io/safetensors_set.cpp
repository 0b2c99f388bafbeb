// A model directory's weights as one set of tensors.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "io/json.h"
#include "io/json_value.h"
#include "io/safetensors.h"
#include "io/safetensors_detail.h"

namespace hysparse {
namespace {

using namespace safetensors_detail;
namespace fs = std::filesystem;

constexpr size_t kListed = 100;  // names in one error message

std::string list_names(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), kListed); ++i)
    out += (i ? ", " : "") + quote_text(names[i], 160);
  if (names.size() > kListed) out += fmt::format(" and {} more", names.size() - kListed);
  return out;
}

// name -> shard, in the order of the file.
std::vector<std::pair<std::string, std::string>> read_weight_map(const fs::path& index) {
  const Json json = read_json_file(index);
  const std::string where = index.string();
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    throw input_error(where, "has no object \"weight_map\"");
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& [name, shard] : json["weight_map"].items()) {
    const std::string place = where + ": weight_map: " + quote_text(name);
    if (!shard.is_string()) throw input_error(place, "expected the name of a file");
    const auto& file = shard.get_ref<const std::string&>();
    const fs::path path = fs::path(file).lexically_normal();
    if (file.find('\0') != std::string::npos || path.is_absolute() || !path.has_filename() ||
        *path.begin() == "." || *path.begin() == "..")
      throw input_error(place, "expected a file inside the model's folder, got " + quote_text(file));
    out.emplace_back(name, path.string());
  }
  if (out.empty()) throw input_error(where, "weight_map is empty");
  return out;
}

std::vector<fs::path> weight_files(const fs::path& dir) {
  std::vector<fs::path> out;
  for (const auto& e : fs::directory_iterator(dir))
    if (e.path().extension() == ".safetensors") out.push_back(e.path());
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

SafetensorsSet::SafetensorsSet(const fs::path& dir) : dir_(dir) {
  std::error_code error;
  const fs::path single = dir / "model.safetensors", index = dir / "model.safetensors.index.json";
  if (fs::exists(index, error)) {
    open_sharded(index);
  } else {
    const bool is_file = fs::exists(dir, error) && !fs::is_directory(dir, error);
    const fs::path path = is_file ? dir : single;
    if (!is_file && !fs::exists(single, error)) {
      if (!fs::is_directory(dir, error))
        throw input_error(dir.string(), "no such folder, expected a model directory");
      const auto found = weight_files(dir);
      if (found.empty()) throw input_error(dir.string(), "holds no weights, expected model.safetensors");
      throw input_error(dir.string(),
                        "expected model.safetensors or model.safetensors.index.json, found only " +
                            quote_text(found.front().filename().string()),
                        "shards need their index");
    }
    files_.push_back(std::make_unique<SafetensorsFile>(path));
    for (const auto& e : files_[0]->entries()) where_.emplace(e.first, 0);
  }
  if (!fs::is_directory(dir, error)) return;
  std::set<fs::path> used;
  for (const auto& f : files_) used.insert(f->path());
  for (const fs::path& p : weight_files(dir))
    if (!used.count(p)) notes_.push_back(p.string() + " belongs to no set and is ignored");
}

void SafetensorsSet::open_sharded(const fs::path& index) {
  const auto weight_map = read_weight_map(index);
  std::map<std::string, std::vector<std::string>> expected;  // shard -> names
  for (const auto& [name, shard] : weight_map) expected[shard].push_back(name);
  std::error_code error;
  if (fs::exists(dir_ / "model.safetensors", error) && !expected.count("model.safetensors"))
    throw input_error(dir_.string(),
                      "holds model.safetensors and also model.safetensors.index.json, which does not name it",
                      "remove the one that is out of date");

  std::vector<std::string> missing, problems;
  for (const auto& [shard, names] : expected) {
    try {
      files_.push_back(std::make_unique<SafetensorsFile>(dir_ / shard));
    } catch (const Error& e) {
      problems.push_back(e.what());
      missing.insert(missing.end(), names.begin(), names.end());
      continue;
    }
    const SafetensorsFile& file = *files_.back();
    size_t absent = 0;
    for (const std::string& name : names) {
      if (file.has(name)) continue;
      missing.push_back(name);
      ++absent;
    }
    if (absent > 0)
      problems.push_back(fmt::format("{}: lacks {} of the {} tensors that the index places there",
                                     file.path().string(), absent, names.size()));
  }
  if (!missing.empty()) {
    std::sort(missing.begin(), missing.end());
    throw input_error(index.string(),
                      fmt::format("{} of {} tensors are missing: {}; {}", missing.size(), weight_map.size(),
                                  list_names(missing), fmt::join(problems, "; ")),
                      "copy the model again");
  }

  // The other way: every tensor of a shard is in the index, and in one shard only.
  std::vector<std::string> unlisted;
  const std::set<std::pair<std::string, std::string>> listed(weight_map.begin(), weight_map.end());
  for (size_t f = 0; f < files_.size(); ++f) {
    const std::string shard = files_[f]->path().lexically_relative(dir_).string();
    for (const auto& e : files_[f]->entries()) {
      const auto [at, fresh] = where_.emplace(e.first, f);
      if (!fresh)
        throw input_error(dir_.string(),
                          fmt::format("tensor {} is in two shards, {} and {}", quote_text(e.first),
                                      files_[at->second]->path().filename().string(), shard));
      if (!listed.count({e.first, shard})) unlisted.push_back(e.first);
    }
  }
  if (!unlisted.empty())
    throw input_error(index.string(),
                      fmt::format("does not list {} tensors that its shards hold: {}", unlisted.size(),
                                  list_names(unlisted)),
                      "the index belongs to another set of shards");
}

const SafetensorsFile& SafetensorsSet::file_of(const std::string& name) const {
  const auto found = where_.find(name);
  if (found != where_.end()) return *files_[found->second];
  const std::string near = nearest_name(name, names());
  throw input_error(dir_.string(), "has no tensor " + quote_text(name),
                    near.empty() ? "" : "the nearest is " + quote_text(near));
}

std::vector<std::string> SafetensorsSet::names() const {
  std::vector<std::string> out;
  for (const auto& e : where_) out.push_back(e.first);
  return out;
}

bool SafetensorsSet::has(const std::string& name) const {
  return where_.count(name) > 0;
}

const SafetensorsEntry& SafetensorsSet::entry(const std::string& name) const {
  return file_of(name).entry(name);
}

NonFinite SafetensorsSet::count_nonfinite(const std::string& name) const {
  return file_of(name).count_nonfinite(name);
}

void SafetensorsSet::read(const std::string& name, const TensorView& dst) const {
  file_of(name).read(name, dst);
}

TensorSource SafetensorsSet::source(const std::string& name) const {
  const SafetensorsFile& file = file_of(name);
  const SafetensorsEntry& e = file.entry(name);
  if (!convert_stored(nullptr, e.dtype, nullptr, DType::f32, 0))
    throw input_error(file.path().string() + ": tensor " + quote_text(name),
                      fmt::format("stored as {}, which cannot be read as f32", e.dtype));
  TensorSource s{name, e.shape, {}};
  const auto row = static_cast<size_t>(s.row_size());
  const size_t row_bytes = row * static_cast<size_t>(bits_of(e.dtype)) / 8;
  s.read = [from = file.data(e), dtype = e.dtype, row, row_bytes](int64_t first, int64_t count, float* out) {
    convert_stored(from + static_cast<size_t>(first) * row_bytes, dtype, out, DType::f32,
                   static_cast<size_t>(count) * row);
  };
  return s;
}

bool SafetensorsSet::same_values(const std::string& a, const std::string& b) const {
  const SafetensorsFile &file_a = file_of(a), &file_b = file_of(b);
  const SafetensorsEntry &x = file_a.entry(a), &y = file_b.entry(b);
  if (x.shape != y.shape) return false;
  const std::byte *p = file_a.data(x), *q = file_b.data(y);
  if (x.dtype == y.dtype && std::equal(p, p + (x.end - x.begin), q)) return true;
  size_t count = 1;
  for (int64_t d : x.shape) count *= static_cast<size_t>(d);
  constexpr size_t kPiece = size_t(1) << 16;
  std::vector<double> u(std::min(count, kPiece)), v(u.size());
  for (size_t i = 0; i < count; i += kPiece) {
    const size_t n = std::min(kPiece, count - i);
    const auto convert = [&](const std::byte* from, const std::string& dtype, std::vector<double>& to) {
      return convert_stored(from + i * static_cast<size_t>(bits_of(dtype)) / 8, dtype, to.data(), DType::f64,
                            n);
    };
    if (!convert(p, x.dtype, u) || !convert(q, y.dtype, v) ||
        !std::equal(u.begin(), u.begin() + static_cast<std::ptrdiff_t>(n), v.begin()))
      return false;
  }
  return true;
}

}  // namespace hysparse
