// The header of a safetensors file: 8 bytes of length (little endian), then JSON
//   {"name": {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}, ..., "__metadata__": {text:
//   text}}
// then the data section, which the tensors fill without overlap or hole. Every number in it is the file's
// word against ours: nothing is sized, offset or read by one before it is checked.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "io/json_sax.h"
#include "io/safetensors_detail.h"

namespace hysparse::safetensors_detail {
namespace {

constexpr size_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr size_t kMaxRank = 64;

constexpr std::pair<std::string_view, int> kDTypes[] = {
    {"BOOL", 8},    {"U8", 8},      {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F4", 4},
    {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"I16", 16}, {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},
    {"U32", 32},    {"F32", 32},    {"I64", 64}, {"U64", 64},    {"F64", 64},    {"C64", 64}};

class HeaderReader : public json_detail::StrictSax<HeaderReader> {
 public:
  HeaderReader(const std::string& where, Header& out) : StrictSax(where), out_(out) {}

  void on_begin(bool object) {
    ++depth_;
    if (depth_ == 1 && !object) throw input_error(where(), "the header is not a JSON object");
    if (depth_ == 2 && !object) refuse("an object");
    if (depth_ == 3) {
      if (in_metadata_ || object || field_ == Field::dtype) refuse(expected());
      (field_ == Field::shape ? has_shape_ : has_offsets_) = true;
    }
    if (depth_ > 3) refuse("a number");
  }
  void on_end() {
    --depth_;
    if (depth_ == 1 && !in_metadata_) finish_entry();
  }
  void on_key(std::string&& key) {
    if (depth_ == 1) {
      name_ = std::move(key);
      in_metadata_ = name_ == "__metadata__";
      entry_ = {};
      has_dtype_ = has_shape_ = has_offsets_ = false;
      offset_count_ = 0;
    } else if (in_metadata_) {
      metadata_key_ = std::move(key);
    } else if (key == "dtype") {
      field_ = Field::dtype;
    } else if (key == "shape") {
      field_ = Field::shape;
    } else if (key == "data_offsets") {
      field_ = Field::offsets;
    } else {
      throw input_error(place(), "unknown key " + quote_text(key),
                        "a tensor has dtype, shape and data_offsets");
    }
  }
  void on_string(std::string&& text) {
    if (depth_ != 2) refuse(expected());
    if (in_metadata_) {
      out_.metadata.emplace(std::move(metadata_key_), std::move(text));
      return;
    }
    if (field_ != Field::dtype) refuse(expected());
    if (bits_of(text) == 0) throw input_error(place(), "unknown dtype " + quote_text(text));
    entry_.dtype = std::move(text);
    has_dtype_ = true;
  }
  void on_unsigned(uint64_t v) {
    if (depth_ != 3) refuse(expected());
    if (v > static_cast<uint64_t>(INT64_MAX)) refuse("a number below 2^63");
    if (field_ == Field::shape) {
      if (entry_.shape.size() == kMaxRank)
        throw input_error(place(), fmt::format("more than {} dimensions", kMaxRank));
      entry_.shape.push_back(static_cast<int64_t>(v));
    } else {
      if (offset_count_ == 2) refuse("two data_offsets");
      (offset_count_++ == 0 ? entry_.begin : entry_.end) = static_cast<size_t>(v);
    }
  }
  void on_integer(int64_t v) { throw expected_error(place(), expected(), std::to_string(v)); }
  void on_real(double, const std::string& text) {
    throw expected_error(place(), expected(), quote_text(text));
  }
  std::string key_place() const { return depth_ < 2 ? where() : place(); }
  void on_null() { refuse(expected()); }
  void on_bool(bool) { refuse(expected()); }

 private:
  enum class Field { dtype, shape, offsets };

  std::string place() const {
    if (depth_ == 0) return where();
    return where() + (in_metadata_ ? ": __metadata__" : ": tensor " + quote_text(name_));
  }
  std::string expected() const {
    if (depth_ == 0) return "a JSON object";
    if (depth_ == 1) return "an object";
    if (in_metadata_) return "texts only";
    if (field_ == Field::dtype) return "dtype to be a text";
    return std::string(field_ == Field::shape ? "shape" : "data_offsets") +
           " to be a list of non-negative integers";
  }
  [[noreturn]] void refuse(const std::string& wanted) const {
    throw input_error(place(), "expected " + wanted);
  }

  void finish_entry() {
    // depth_ is that of the name again
    if (!has_dtype_) throw input_error(place(), "has no dtype");
    if (!has_shape_) throw input_error(place(), "has no shape");
    if (!has_offsets_ || offset_count_ != 2) throw input_error(place(), "expected two data_offsets");
    if (entry_.begin > entry_.end)
      throw input_error(place(), fmt::format("data_offsets [{}, {}] are reversed", entry_.begin, entry_.end));
    // A zero among the dimensions makes the tensor empty but does not excuse the others: code that multiplies
    // them in another order must not overflow either.
    int64_t bits = bits_of(entry_.dtype);
    bool overflow = false, empty = false;
    for (int64_t d : entry_.shape) {
      empty |= d == 0;
      if (d > 0) overflow |= __builtin_mul_overflow(bits, d, &bits);
    }
    if (overflow)
      throw input_error(place(),
                        fmt::format("shape {} of {} overflows", shape_text(entry_.shape), entry_.dtype));
    if (empty) bits = 0;
    if (bits % 8 != 0)
      throw input_error(place(), fmt::format("shape {} of {} is no whole number of bytes",
                                             shape_text(entry_.shape), entry_.dtype));
    const auto bytes = static_cast<size_t>(bits / 8);
    if (bytes != entry_.end - entry_.begin)
      throw input_error(place(),
                        fmt::format("shape {} of {} takes {} bytes, but data_offsets [{}, {}] span {}",
                                    shape_text(entry_.shape), entry_.dtype, bytes, entry_.begin, entry_.end,
                                    entry_.end - entry_.begin));
    out_.entries.emplace(std::move(name_), std::move(entry_));
  }

  Header& out_;
  int depth_ = 0;  // open brackets: 1 in the header object, 2 in a tensor or the metadata, 3 in a list
  std::string name_, metadata_key_;
  bool in_metadata_ = false;
  SafetensorsEntry entry_;
  Field field_ = Field::dtype;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int offset_count_ = 0;
};

void check_layout(const Header& header, size_t data_size, const std::string& where) {
  using Item = std::pair<const std::string, SafetensorsEntry>;
  std::vector<const Item*> order;
  order.reserve(header.entries.size());
  for (const Item& item : header.entries) order.push_back(&item);
  std::sort(order.begin(), order.end(), [](const Item* a, const Item* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  const auto place = [&](const Item& item) { return where + ": tensor " + quote_text(item.first); };
  size_t at = 0;
  const Item* last = nullptr;
  for (const Item* item : order) {
    const SafetensorsEntry& e = item->second;
    if (e.begin < at)
      throw input_error(place(*item),
                        fmt::format("its bytes [{}, {}) overlap those of tensor {}, [{}, {})", e.begin, e.end,
                                    quote_text(last->first), last->second.begin, last->second.end));
    if (e.end > data_size)
      throw input_error(place(*item),
                        fmt::format("its bytes [{}, {}) pass the end of the data section, which has {}",
                                    e.begin, e.end, data_size),
                        "the file is cut short or damaged; copy it again");
    if (e.begin > at)
      throw input_error(
          place(*item),
          fmt::format("begins at byte {} of the data section, which leaves a hole from {}", e.begin, at));
    at = e.end;
    last = item;
  }
  if (at != data_size)
    throw input_error(where, fmt::format("{} bytes after the last tensor{}", data_size - at,
                                         last ? " " + quote_text(last->first) : ""));
}

}  // namespace

int bits_of(std::string_view dtype) {
  for (const auto& [name, bits] : kDTypes)
    if (name == dtype) return bits;
  return 0;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Header parse_header(std::span<const std::byte> file, const std::string& where) {
  if (file.empty()) throw input_error(where, "is empty, expected a safetensors file");
  if (file.size() < 8)
    throw input_error(where, fmt::format("has {} bytes, too few for a safetensors file", file.size()));
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= static_cast<uint64_t>(file[i]) << (8 * i);
  const size_t rest = file.size() - 8;
  if (length == 0) throw input_error(where, "header length 0, expected a JSON header");
  if (length > rest)
    throw input_error(
        where, fmt::format("header length {} passes the end of the file ({} bytes)", length, file.size()),
        "not a safetensors file, or cut short");
  if (length > kMaxHeader)
    throw input_error(where, fmt::format("header length {} is over the format's {}", length, kMaxHeader));
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, static_cast<size_t>(length));
  if (text.front() != '{')
    throw input_error(where, "the header is not a JSON object (it does not begin with '{')");
  Header header;
  header.data_begin = 8 + text.size();
  HeaderReader reader(where, header);
  json_detail::parse_strict(text, reader);
  check_layout(header, file.size() - header.data_begin, where);
  return header;
}

}  // namespace hysparse::safetensors_detail
