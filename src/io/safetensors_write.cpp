#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <unordered_set>

#include "io/json.h"
#include "io/json_value.h"
#include "io/safetensors.h"
#include "io/safetensors_detail.h"

namespace hysparse {
namespace {

using namespace safetensors_detail;
namespace fs = std::filesystem;

std::string json_text(const std::string& s, const std::string& where) {
  try {
    return Json(s).dump();
  } catch (const nlohmann::detail::exception&) {
    throw failure(where, "the name " + quote_text(s) + " is not valid UTF-8");
  }
}

// A tensor as the file shows it, and how its data gets there.
struct Stored {
  std::string name;
  std::vector<int64_t> shape;
  DType as;
  std::function<void(AtomicFile&)> write;

  size_t bytes() const {
    size_t n = size_of(as);
    for (int64_t d : shape) n *= static_cast<size_t>(d);
    return n;
  }
};

void check(const std::vector<Stored>& tensors, const std::string& where) {
  std::unordered_set<std::string> seen;
  for (const Stored& t : tensors)
    HYSPARSE_CHECK(t.name != "__metadata__" && seen.insert(t.name).second,
                   "{}: tensor {} twice or a reserved name", where, t.name);
}

constexpr size_t kPiece = size_t(1) << 17;  // elements

void write_data(AtomicFile& file, const NamedTensor& t) {
  const auto* from = static_cast<const std::byte*>(t.tensor.data);
  const auto n = static_cast<size_t>(t.tensor.numel());
  if (t.as == t.tensor.dtype) {
    file.write(from, n * size_of(t.as));
    return;
  }
  std::vector<std::byte> buffer(std::min(n, kPiece) * size_of(t.as));
  for (size_t i = 0; i < n; i += kPiece) {
    const size_t count = std::min(kPiece, n - i);
    convert_to_stored(from + i * size_of(t.tensor.dtype), t.tensor.dtype, buffer.data(), t.as, count);
    file.write(buffer.data(), count * size_of(t.as));
  }
}

void write_data(AtomicFile& file, const TensorSource& t, DType as) {
  const int64_t row = std::max<int64_t>(1, t.row_size());
  const int64_t step = std::max<int64_t>(1, static_cast<int64_t>(kPiece) / row);
  std::vector<float> values;
  std::vector<std::byte> buffer;
  for (int64_t first = 0; first < t.rows(); first += step) {
    const int64_t rows = std::min(step, t.rows() - first);
    values.resize(static_cast<size_t>(rows * row));
    buffer.resize(values.size() * size_of(as));
    t.read(first, rows, values.data());
    convert_to_stored(reinterpret_cast<const std::byte*>(values.data()), DType::f32, buffer.data(), as,
                      values.size());
    file.write(buffer.data(), buffer.size());
  }
}

std::vector<Stored> stored(const std::vector<NamedTensor>& tensors, const std::string& where) {
  std::vector<Stored> out;
  for (const NamedTensor& t : tensors) {
    HYSPARSE_CHECK(t.tensor.contiguous(), "{}: tensor {} is a strided view {}", where, t.name,
                   t.tensor.describe());
    HYSPARSE_CHECK(convert_to_stored(nullptr, t.tensor.dtype, nullptr, t.as, 0),
                   "{}: tensor {} is {}, cannot be stored as {}", where, t.name, name_of(t.tensor.dtype),
                   name_of(t.as));
    const auto& shape = t.tensor.shape;
    out.push_back({t.name, {shape.begin(), shape.begin() + t.tensor.rank}, t.as, [&t](AtomicFile& file) {
                     write_data(file, t);
                   }});
  }
  check(out, where);
  return out;
}

std::vector<Stored> stored(const std::vector<TensorSource>& tensors, DType as, const std::string& where) {
  std::vector<Stored> out;
  for (const TensorSource& t : tensors)
    out.push_back({t.name, t.shape, as, [&t, as](AtomicFile& file) { write_data(file, t, as); }});
  check(out, where);
  return out;
}

// The files that a set may consist of.
bool is_model_file(const std::string& name) {
  if (name == "model.safetensors" || name == "model.safetensors.index.json") return true;
  constexpr std::string_view kPattern = "model-#####-of-#####.safetensors";
  return name.size() == kPattern.size() &&
         std::equal(name.begin(), name.end(), kPattern.begin(),
                    [](char c, char p) { return p == '#' ? c >= '0' && c <= '9' : c == p; });
}

void write_file(const fs::path& path, const std::vector<Stored>& tensors,
                const std::map<std::string, std::string>& metadata) {
  const std::string where = path.string();
  std::vector<size_t> order(tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return size_of(tensors[a].as) > size_of(tensors[b].as); });
  std::vector<size_t> begin(tensors.size());
  size_t at = 0;
  for (size_t i : order) {
    begin[i] = at;
    at += tensors[i].bytes();
  }

  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (header.back() != '{') header += ',';
      header += json_text(key, where) + ':' + json_text(value, where);
    }
    header += '}';
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Stored& t = tensors[i];
    if (header.size() > 1) header += ',';
    header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                          json_text(t.name, where), stored_name(t.as), fmt::join(t.shape, ","), begin[i],
                          begin[i] + t.bytes());
  }
  header += '}';
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i)
    length[i] = static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));

  AtomicFile file(path);
  header.insert(0, length);
  file.write(header.data(), header.size());
  for (size_t i : order) tensors[i].write(file);
  file.commit();
}

void write_set(const fs::path& dir, const std::vector<Stored>& tensors, size_t shard_bytes,
               const std::map<std::string, std::string>& metadata) {
  std::vector<std::vector<Stored>> shards(1);
  size_t in_shard = 0, total = 0;
  for (const Stored& t : tensors) {
    const size_t bytes = t.bytes();
    if (!shards.back().empty() && in_shard + bytes > shard_bytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(t);
    in_shard += bytes;
    total += bytes;
  }

  std::set<std::string> written;
  if (shards.size() == 1) {
    written.insert("model.safetensors");
    write_file(dir / "model.safetensors", tensors, metadata);
  } else {
    Json weight_map = Json::object();
    auto& members = static_cast<Json::object_t::Container&>(weight_map.get_ref<Json::object_t&>());
    for (size_t s = 0; s < shards.size(); ++s) {
      const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
      for (const Stored& t : shards[s])
        members.emplace_back(t.name, name);  // names are unique: checked above
      write_file(dir / name, shards[s], metadata);
      written.insert(name);
    }
    const std::string index = "model.safetensors.index.json";
    const Json json = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}};
    write_file_atomic(dir / index, dump_json(json));
    written.insert(index);
  }
  std::vector<fs::path> stale;
  std::error_code error;
  for (const auto& e : fs::directory_iterator(dir, error)) {
    const std::string name = e.path().filename().string();
    if (is_model_file(name) && !written.count(name)) stale.push_back(e.path());
  }
  for (const fs::path& p : stale)
    if (!fs::remove(p, error)) throw io_error(p, "remove the file of an earlier set", error.value());
}

}  // namespace

void write_safetensors(const fs::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  write_file(path, stored(tensors, path.string()), metadata);
}

void write_safetensors_set(const fs::path& dir, const std::vector<NamedTensor>& tensors, size_t shard_bytes,
                           const std::map<std::string, std::string>& metadata) {
  write_set(dir, stored(tensors, dir.string()), shard_bytes, metadata);
}

void write_safetensors_set(const fs::path& dir, const std::vector<TensorSource>& tensors, DType as,
                           size_t shard_bytes, const std::map<std::string, std::string>& metadata) {
  write_set(dir, stored(tensors, as, dir.string()), shard_bytes, metadata);
}

}  // namespace hysparse
