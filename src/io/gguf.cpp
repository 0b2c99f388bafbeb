#include "io/gguf.h"

#include <cmath>
#include <cstring>

#include "io/gguf_detail.h"
#include "io/json.h"

namespace hysparse {

using namespace gguf_detail;

namespace {

constexpr std::string_view kTypeNames[] = {"u8",   "i8",    "u16", "i16", "u32", "i32", "f32",
                                           "bool", "texts", "",    "u64", "i64", "f64"};

template <class T>
T element(const GgufValue& v, size_t i) {
  T x;
  std::memcpy(&x, v.raw.data() + i * sizeof x, sizeof x);
  return x;
}

}  // namespace

std::string_view name_of(GgufDType t) {
  switch (t) {
    case GgufDType::f32:
      return "F32";
    case GgufDType::f16:
      return "F16";
    case GgufDType::q4_0:
      return "Q4_0";
    case GgufDType::q4_1:
      return "Q4_1";
    case GgufDType::q8_0:
      return "Q8_0";
    case GgufDType::bf16:
      return "BF16";
  }
  return "?";
}

std::optional<int64_t> GgufValue::integer(size_t i) const {
  if (i >= count) return {};
  switch (element) {
    case GgufType::u8:
      return hysparse::element<uint8_t>(*this, i);
    case GgufType::i8:
      return hysparse::element<int8_t>(*this, i);
    case GgufType::u16:
      return hysparse::element<uint16_t>(*this, i);
    case GgufType::i16:
      return hysparse::element<int16_t>(*this, i);
    case GgufType::u32:
      return hysparse::element<uint32_t>(*this, i);
    case GgufType::i32:
      return hysparse::element<int32_t>(*this, i);
    case GgufType::i64:
      return hysparse::element<int64_t>(*this, i);
    case GgufType::u64: {
      const auto x = hysparse::element<uint64_t>(*this, i);
      return x > static_cast<uint64_t>(INT64_MAX) ? std::nullopt : std::optional(static_cast<int64_t>(x));
    }
    default:
      return {};
  }
}

std::optional<double> GgufValue::real(size_t i) const {
  if (i >= count) return {};
  if (element == GgufType::f32) return static_cast<double>(hysparse::element<float>(*this, i));
  if (element == GgufType::f64) return hysparse::element<double>(*this, i);
  const std::optional<int64_t> whole = integer(i);
  return whole ? std::optional(static_cast<double>(*whole)) : std::nullopt;
}

std::string GgufValue::describe() const {
  if (type == GgufType::array)
    return fmt::format("an array of {} {}", count, kTypeNames[static_cast<size_t>(element)]);
  if (type == GgufType::text) return quote_text(texts[0], 40);
  const std::optional<int64_t> whole = integer();
  const std::string name(kTypeNames[static_cast<size_t>(type)]);
  if (whole) return fmt::format("{} ({})", *whole, name);
  if (const std::optional<double> number = real()) return fmt::format("{} ({})", *number, name);
  return "a " + name;
}

GgufFile::GgufFile(const std::filesystem::path& path) : path_(path), file_(std::in_place, path) {
  open(file_->bytes());
}

GgufFile::GgufFile(std::span<const std::byte> bytes, const std::filesystem::path& name) : path_(name) {
  open(bytes);
}

void GgufFile::open(std::span<const std::byte> bytes) {
  Header h = parse_header(bytes, path_.string());
  data_ = bytes.data() + h.data_begin;
  metadata_ = std::move(h.metadata);
  tensors_ = std::move(h.tensors);
  for (size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

const GgufValue* GgufFile::value(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

std::optional<int64_t> GgufFile::integer(std::string_view key) const {
  const GgufValue* v = value(key);
  if (!v) return {};
  const std::optional<int64_t> n = v->type == GgufType::array ? std::nullopt : v->integer();
  if (!n) throw expected_error(fmt::format("{}: {}", path_.string(), key), "a whole number", v->describe());
  return n;
}

std::optional<double> GgufFile::real(std::string_view key) const {
  const GgufValue* v = value(key);
  if (!v) return {};
  const std::optional<double> x = v->type == GgufType::array ? std::nullopt : v->real();
  if (!x || !std::isfinite(*x))
    throw expected_error(fmt::format("{}: {}", path_.string(), key), "a finite number", v->describe());
  return x;
}

std::optional<bool> GgufFile::boolean(std::string_view key) const {
  const GgufValue* v = value(key);
  if (!v) return {};
  if (v->type != GgufType::boolean)
    throw expected_error(fmt::format("{}: {}", path_.string(), key), "true or false", v->describe());
  return v->raw[0] != std::byte{0};
}

std::optional<std::string> GgufFile::text(std::string_view key) const {
  const GgufValue* v = value(key);
  if (!v) return {};
  if (v->type != GgufType::text)
    throw expected_error(fmt::format("{}: {}", path_.string(), key), "a text", v->describe());
  return std::string(v->texts[0]);
}

const GgufValue* GgufFile::array(std::string_view key) const {
  const GgufValue* v = value(key);
  if (v && v->type != GgufType::array)
    throw expected_error(fmt::format("{}: {}", path_.string(), key), "an array", v->describe());
  return v;
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

TensorSource GgufFile::source(const GgufTensor& tensor) const {
  TensorSource s{tensor.name, tensor.shape, {}};
  const GgufDType dtype = tensor.dtype;
  const auto row = static_cast<size_t>(s.row_size());
  // A row of a vector is one element, which lies inside a block.
  HYSPARSE_CHECK(row % static_cast<size_t>(block_size(dtype)) == 0 || tensor.shape.size() == 1,
                 "blocks of {}", tensor.name);
  const std::byte* data = data_ + tensor.begin;
  if (tensor.shape.size() == 1 && block_size(dtype) > 1) {
    s.read = [=](int64_t first, int64_t count, float* out) {
      const int64_t block = block_size(dtype), begin = first / block,
                    end = (first + count + block - 1) / block;
      std::vector<float> values(static_cast<size_t>((end - begin) * block));
      decode(dtype, data + static_cast<size_t>(begin) * block_bytes(dtype), values.data(), values.size());
      std::copy_n(values.begin() + (first - begin * block), count, out);
    };
    return s;
  }
  const size_t row_bytes = row / static_cast<size_t>(block_size(dtype)) * block_bytes(dtype);
  s.read = [=](int64_t first, int64_t count, float* out) {
    decode(dtype, data + static_cast<size_t>(first) * row_bytes, out, static_cast<size_t>(count) * row);
  };
  return s;
}

}  // namespace hysparse
