#include <algorithm>
#include <unordered_set>

#include "io/gguf_detail.h"
#include "io/json.h"

namespace hysparse {

using namespace gguf_detail;

namespace {

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put_text(std::string& out, std::string_view text) {
  put(out, static_cast<uint64_t>(text.size()));
  out += text;
}

size_t stored_bytes(const std::vector<int64_t>& shape, GgufDType dtype) {
  size_t n = static_cast<size_t>(shape.back() / block_size(dtype)) * block_bytes(dtype);
  for (size_t i = 0; i + 1 < shape.size(); ++i) n *= static_cast<size_t>(shape[i]);
  return n;
}

std::string padding(size_t at) {
  return std::string((kAlignment - at % kAlignment) % kAlignment, '\0');
}

void write_tensor(AtomicFile& file, const TensorSource& source, GgufDType dtype, const std::string& where) {
  constexpr int64_t kPiece = int64_t(1) << 18;  // elements
  const int64_t row = source.row_size();
  const int64_t block = source.shape.size() == 1 ? block_size(dtype) : 1;
  const int64_t step = std::max<int64_t>(1, kPiece / row / block) * block;
  std::vector<float> values;
  std::vector<std::byte> stored;
  for (int64_t first = 0; first < source.rows(); first += step) {
    const int64_t rows = std::min(step, source.rows() - first);
    const auto count = static_cast<size_t>(rows * row);
    values.resize(count);
    source.read(first, rows, values.data());
    stored.resize(count / static_cast<size_t>(block_size(dtype)) * block_bytes(dtype));
    const size_t bad = encode(dtype, values.data(), stored.data(), count);
    if (bad < count)
      throw input_error(where + ": tensor " + quote_text(source.name),
                        fmt::format("holds {}, beyond the range of {}", values[bad], name_of(dtype)),
                        "export as bf16 or f32");
    file.write(stored.data(), stored.size());
  }
}

}  // namespace

void GgufWriter::begin_value(std::string_view key, GgufType type) {
  put_text(metadata_, key);
  put(metadata_, static_cast<uint32_t>(type));
  ++keys_;
}

void GgufWriter::add_text(std::string_view key, std::string_view value) {
  begin_value(key, GgufType::text);
  put_text(metadata_, value);
}
void GgufWriter::add_u32(std::string_view key, int64_t value) {
  HYSPARSE_CHECK(value >= 0 && value <= int64_t(UINT32_MAX), "{}: {} is no u32", key, value);
  begin_value(key, GgufType::u32);
  put(metadata_, static_cast<uint32_t>(value));
}
void GgufWriter::add_f32(std::string_view key, double value) {
  begin_value(key, GgufType::f32);
  put(metadata_, static_cast<float>(value));
}
void GgufWriter::add_bool(std::string_view key, bool value) {
  begin_value(key, GgufType::boolean);
  put(metadata_, static_cast<uint8_t>(value));
}
void GgufWriter::add_texts(std::string_view key, const std::vector<std::string>& values) {
  begin_value(key, GgufType::array);
  put(metadata_, static_cast<uint32_t>(GgufType::text));
  put(metadata_, static_cast<uint64_t>(values.size()));
  for (const std::string& v : values) put_text(metadata_, v);
}
void GgufWriter::add_i32s(std::string_view key, const std::vector<int32_t>& values) {
  begin_value(key, GgufType::array);
  put(metadata_, static_cast<uint32_t>(GgufType::i32));
  put(metadata_, static_cast<uint64_t>(values.size()));
  for (const int32_t v : values) put(metadata_, v);
}

bool GgufWriter::quantisable(const std::vector<int64_t>& shape) {
  return shape.size() > 1 && shape.back() % block_size(GgufDType::q8_0) == 0;
}

void GgufWriter::add(TensorSource source, GgufDType dtype) {
  HYSPARSE_CHECK(!source.shape.empty() && source.shape.back() % block_size(dtype) == 0,
                 "{}: rows of {} in {}", source.name, source.shape.empty() ? 0 : source.shape.back(),
                 name_of(dtype));
  tensors_.push_back({std::move(source), dtype});
}

void GgufWriter::write(const std::filesystem::path& path) const {
  std::string header = "GGUF";
  put(header, uint32_t(3));
  put(header, static_cast<uint64_t>(tensors_.size()));
  put(header, keys_);
  header += metadata_;
  size_t at = 0;
  std::unordered_set<std::string> names;
  for (const Item& item : tensors_) {
    const TensorSource& s = item.source;
    HYSPARSE_CHECK(names.insert(s.name).second, "tensor {} twice", s.name);
    put_text(header, s.name);
    put(header, static_cast<uint32_t>(s.shape.size()));
    for (size_t i = s.shape.size(); i > 0; --i) put(header, static_cast<uint64_t>(s.shape[i - 1]));
    put(header, static_cast<uint32_t>(item.dtype));
    put(header, static_cast<uint64_t>(at));
    at += stored_bytes(s.shape, item.dtype);
    at += padding(at).size();
  }
  header += padding(header.size());

  AtomicFile file(path);
  file.write(header.data(), header.size());
  for (const Item& item : tensors_) {
    write_tensor(file, item.source, item.dtype, path.string());
    const std::string gap = padding(stored_bytes(item.source.shape, item.dtype));
    file.write(gap.data(), gap.size());
  }
  file.commit();
}

}  // namespace hysparse
