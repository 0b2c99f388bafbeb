#include <algorithm>
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

size_t stored_bytes(const NamedTensor& t) {
  return static_cast<size_t>(t.tensor.numel()) * size_of(t.as);
}

void check(const std::vector<NamedTensor>& tensors, const std::string& where) {
  std::unordered_set<std::string> seen;
  for (const NamedTensor& t : tensors) {
    HYSPARSE_CHECK(t.tensor.contiguous(), "{}: tensor {} is a strided view {}", where, t.name,
                   t.tensor.describe());
    HYSPARSE_CHECK(t.name != "__metadata__" && seen.insert(t.name).second,
                   "{}: tensor {} twice or a reserved name", where, t.name);
    HYSPARSE_CHECK(convert_to_stored(nullptr, t.tensor.dtype, nullptr, t.as, 0),
                   "{}: tensor {} is {}, cannot be stored as {}", where, t.name, name_of(t.tensor.dtype),
                   name_of(t.as));
  }
}

void write_data(AtomicFile& file, const NamedTensor& t, std::vector<std::byte>& buffer) {
  const auto* from = static_cast<const std::byte*>(t.tensor.data);
  const auto n = static_cast<size_t>(t.tensor.numel());
  if (t.as == t.tensor.dtype) {
    file.write(from, n * size_of(t.as));
    return;
  }
  constexpr size_t kPiece = size_t(1) << 17;  // elements
  buffer.resize(std::min(n, kPiece) * size_of(t.as));
  for (size_t i = 0; i < n; i += kPiece) {
    const size_t count = std::min(kPiece, n - i);
    convert_to_stored(from + i * size_of(t.tensor.dtype), t.tensor.dtype, buffer.data(), t.as, count);
    file.write(buffer.data(), count * size_of(t.as));
  }
}

// The files that a set may consist of.
bool is_model_file(const std::string& name) {
  if (name == "model.safetensors" || name == "model.safetensors.index.json") return true;
  constexpr std::string_view kPattern = "model-#####-of-#####.safetensors";
  return name.size() == kPattern.size() &&
         std::equal(name.begin(), name.end(), kPattern.begin(),
                    [](char c, char p) { return p == '#' ? c >= '0' && c <= '9' : c == p; });
}

}  // namespace

void write_safetensors(const fs::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::string where = path.string();
  check(tensors, where);
  std::vector<size_t> order(tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return size_of(tensors[a].as) > size_of(tensors[b].as); });
  std::vector<size_t> begin(tensors.size());
  size_t at = 0;
  for (size_t i : order) {
    begin[i] = at;
    at += stored_bytes(tensors[i]);
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
    const NamedTensor& t = tensors[i];
    if (header.size() > 1) header += ',';
    header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                          json_text(t.name, where), stored_name(t.as),
                          fmt::join(t.tensor.shape.begin(), t.tensor.shape.begin() + t.tensor.rank, ","),
                          begin[i], begin[i] + stored_bytes(t));
  }
  header += '}';
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i)
    length[i] = static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));

  AtomicFile file(path);
  header.insert(0, length);
  file.write(header.data(), header.size());
  std::vector<std::byte> buffer;
  for (size_t i : order) write_data(file, tensors[i], buffer);
  file.commit();
}

void write_safetensors_set(const fs::path& dir, const std::vector<NamedTensor>& tensors, size_t shard_bytes,
                           const std::map<std::string, std::string>& metadata) {
  check(tensors, dir.string());
  std::vector<std::vector<NamedTensor>> shards(1);
  size_t in_shard = 0, total = 0;
  for (const NamedTensor& t : tensors) {
    const size_t bytes = stored_bytes(t);
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
    write_safetensors(dir / "model.safetensors", tensors, metadata);
  } else {
    Json weight_map = Json::object();
    auto& members = static_cast<Json::object_t::Container&>(weight_map.get_ref<Json::object_t&>());
    for (size_t s = 0; s < shards.size(); ++s) {
      const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
      for (const NamedTensor& t : shards[s])
        members.emplace_back(t.name, name);  // names are unique: checked above
      write_safetensors(dir / name, shards[s], metadata);
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

}  // namespace hysparse
