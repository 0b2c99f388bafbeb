#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "io/gguf_detail.h"
#include "io/json.h"

namespace hysparse::gguf_detail {
namespace {

// Limits of the format and of what is reasonable.
constexpr uint64_t kMaxKey = 65535;
constexpr uint64_t kMaxName = 64;
constexpr uint32_t kMaxRank = 4;
constexpr int64_t kMaxAlignment = int64_t(1) << 20;

// ggml's type numbers that can stand in a file but are not read here, for messages.
constexpr std::pair<uint32_t, std::string_view> kOtherDTypes[] = {
    {6, "Q5_0"},   {7, "Q5_1"},    {9, "Q8_1"},   {10, "Q2_K"},    {11, "Q3_K"},   {12, "Q4_K"},
    {13, "Q5_K"},  {14, "Q6_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
    {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"}, {24, "I8"},
    {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},  {34, "TQ1_0"},
    {35, "TQ2_0"}, {39, "MXFP4"}};

size_t bytes_of(GgufType t) {
  switch (t) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::boolean:
      return 1;
    case GgufType::u16:
    case GgufType::i16:
      return 2;
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::f32:
      return 4;
    case GgufType::u64:
    case GgufType::i64:
    case GgufType::f64:
      return 8;
    case GgufType::text:
    case GgufType::array:
      return 0;
  }
  return 0;
}

// Takes the file apart from front to back; every step checks what is left.
class Reader {
 public:
  Reader(std::span<const std::byte> file, const std::string& where) : file_(file), place_(where) {}

  template <class T>
  T number() {
    T v;
    std::memcpy(&v, take(sizeof v).data(), sizeof v);
    return v;
  }
  std::span<const std::byte> take(uint64_t bytes) {
    if (bytes > file_.size() - at_)
      throw input_error(
          place_, fmt::format("needs {} bytes at offset {}, but the file has {}", bytes, at_, file_.size()),
          "the file is cut short or damaged; copy it again");
    const auto piece = file_.subspan(at_, static_cast<size_t>(bytes));
    at_ += static_cast<size_t>(bytes);
    return piece;
  }
  std::string_view text(uint64_t limit, const char* what) {
    const auto length = number<uint64_t>();
    if (length > limit)
      throw input_error(place_,
                        fmt::format("the length of {} is {}, expected at most {}", what, length, limit));
    const auto piece = take(length);
    return {reinterpret_cast<const char*>(piece.data()), piece.size()};
  }
  // A count of things of at least `least` bytes each: more than fit are refused before anything is made.
  uint64_t count(uint64_t n, uint64_t least, const char* what) const {
    if (n > (file_.size() - at_) / least)
      throw input_error(
          place_, fmt::format("{} {} do not fit in the {} bytes that follow", n, what, file_.size() - at_));
    return n;
  }
  void at_place(std::string place) { place_ = std::move(place); }
  const std::string& place() const { return place_; }
  size_t offset() const { return at_; }

 private:
  std::span<const std::byte> file_;
  std::string place_;
  size_t at_ = 0;
};

GgufType value_type(Reader& r) {
  const auto t = r.number<uint32_t>();
  if (t > static_cast<uint32_t>(GgufType::f64))
    throw expected_error(r.place(), "a value type from 0 to 12", std::to_string(t));
  return static_cast<GgufType>(t);
}

void check_booleans(const Reader& r, std::span<const std::byte> raw) {
  for (const std::byte b : raw)
    if (b > std::byte{1})
      throw expected_error(r.place(), "a boolean of 0 or 1", std::to_string(static_cast<int>(b)));
}

GgufValue value(Reader& r) {
  GgufValue v;
  v.type = v.element = value_type(r);
  if (v.type == GgufType::text) {
    v.texts = {r.text(UINT64_MAX, "the text")};
    return v;
  }
  if (v.type == GgufType::array) {
    v.element = value_type(r);
    if (v.element == GgufType::array)
      throw input_error(r.place(), "is an array of arrays, which is not supported");
    const bool texts = v.element == GgufType::text;
    const auto n = r.number<uint64_t>();
    v.count = static_cast<size_t>(r.count(n, texts ? 8 : bytes_of(v.element), "elements"));
    for (size_t i = 0; texts && i < v.count; ++i) v.texts.push_back(r.text(UINT64_MAX, "the text"));
    if (texts) return v;
  }
  v.raw = r.take(v.count * bytes_of(v.element));
  if (v.element == GgufType::boolean) check_booleans(r, v.raw);
  return v;
}

GgufDType tensor_dtype(const Reader& r, uint32_t t) {
  for (const GgufDType known :
       {GgufDType::f32, GgufDType::f16, GgufDType::bf16, GgufDType::q4_0, GgufDType::q4_1, GgufDType::q8_0})
    if (t == static_cast<uint32_t>(known)) return known;
  std::string got = fmt::format("type {}", t);
  for (const auto& [number, name] : kOtherDTypes)
    if (t == number) got = name;
  throw expected_error(r.place(), "F32, F16, BF16, Q8_0, Q4_0 or Q4_1", got,
                       "take or make a file in one of these");
}

GgufTensor tensor(Reader& r, const std::string& where) {
  GgufTensor t;
  t.name = r.text(kMaxName, "a tensor's name");
  r.at_place(where + ": tensor " + quote_text(t.name));
  const auto rank = r.number<uint32_t>();
  if (rank < 1 || rank > kMaxRank)
    throw expected_error(r.place(), fmt::format("1 to {} dimensions", kMaxRank), std::to_string(rank));
  for (uint32_t i = 0; i < rank; ++i) {
    const auto d = r.number<uint64_t>();
    if (d == 0 || d > static_cast<uint64_t>(INT64_MAX))
      throw expected_error(r.place(), "dimensions of at least 1", std::to_string(d));
    t.shape.insert(t.shape.begin(), static_cast<int64_t>(d));
  }
  t.dtype = tensor_dtype(r, r.number<uint32_t>());
  const auto offset = r.number<uint64_t>();
  const int64_t block = block_size(t.dtype), row = t.shape.back();
  if (row % block != 0)
    throw expected_error(r.place(), fmt::format("rows of whole blocks of {} in {}", block, name_of(t.dtype)),
                         fmt::format("rows of {}", row));
  size_t bytes = static_cast<size_t>(row / block);
  bool overflow = __builtin_mul_overflow(bytes, block_bytes(t.dtype), &bytes);
  int64_t elements = 1;  // whoever multiplies the shape must not overflow either
  for (const int64_t d : t.shape) overflow |= __builtin_mul_overflow(elements, d, &elements);
  for (size_t i = 0; i + 1 < t.shape.size(); ++i)
    overflow |= __builtin_mul_overflow(bytes, static_cast<size_t>(t.shape[i]), &bytes);
  overflow |= __builtin_add_overflow(bytes, static_cast<size_t>(offset), &t.end);
  if (overflow)
    throw input_error(r.place(),
                      fmt::format("shape [{}] at offset {} overflows", fmt::join(t.shape, ", "), offset));
  t.begin = static_cast<size_t>(offset);
  return t;
}

size_t alignment(const Header& h, const std::string& where) {
  const auto found = h.metadata.find("general.alignment");
  if (found == h.metadata.end()) return kAlignment;
  const std::optional<int64_t> n = found->second.integer();
  if (found->second.type != GgufType::u32 || !n || *n < 1 || *n > kMaxAlignment || (*n & (*n - 1)) != 0)
    throw expected_error(where + ": general.alignment",
                         fmt::format("a u32 that is a power of two, at most {}", kMaxAlignment),
                         n ? std::to_string(*n) : found->second.describe());
  return static_cast<size_t>(*n);
}

void check_layout(const Header& h, size_t file_size, size_t align, const std::string& where) {
  const size_t data_size = file_size - h.data_begin;
  std::vector<const GgufTensor*> order;
  for (const GgufTensor& t : h.tensors) order.push_back(&t);
  std::sort(order.begin(), order.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->begin < b->begin; });
  const GgufTensor* last = nullptr;
  for (const GgufTensor* t : order) {
    const std::string place = where + ": tensor " + quote_text(t->name);
    if (t->begin % align != 0)
      throw expected_error(place, fmt::format("an offset that is a multiple of {}", align),
                           std::to_string(t->begin));
    if (last && t->begin < last->end)
      throw input_error(place, fmt::format("its bytes [{}, {}) overlap those of tensor {}, [{}, {})",
                                           t->begin, t->end, quote_text(last->name), last->begin, last->end));
    if (t->end > data_size)
      throw input_error(place,
                        fmt::format("its bytes [{}, {}) pass the end of the data section, which has {}",
                                    t->begin, t->end, data_size),
                        "the file is cut short or damaged; copy it again");
    last = t;
  }
}

}  // namespace

Header parse_header(std::span<const std::byte> file, const std::string& where) {
  Reader r(file, where);
  if (file.size() < 4 || std::memcmp(file.data(), "GGUF", 4) != 0)
    throw input_error(where, "is not a GGUF file (it does not begin with \"GGUF\")");
  r.take(4);
  const auto version = r.number<uint32_t>();
  if (version != 2 && version != 3)
    throw expected_error(
        where, "GGUF version 2 or 3",
        version == 0x02000000 || version == 0x03000000 ? "a big-endian file" : std::to_string(version));
  const auto tensors = r.number<uint64_t>(), keys = r.number<uint64_t>();
  r.count(keys, 8 + 4 + 1, "metadata keys");
  r.count(tensors, 8 + 4 + 8 + 4 + 8, "tensors");

  Header h;
  for (uint64_t i = 0; i < keys; ++i) {
    r.at_place(fmt::format("{}: metadata key {}", where, i));
    const std::string key(r.text(kMaxKey, "a key"));
    r.at_place(fmt::format("{}: {}", where, quote_text(key)));
    if (!h.metadata.emplace(key, value(r)).second) throw input_error(r.place(), "the key is there twice");
  }
  std::set<std::string> names;
  for (uint64_t i = 0; i < tensors; ++i) {
    r.at_place(fmt::format("{}: tensor {}", where, i));
    h.tensors.push_back(tensor(r, where));
    if (!names.insert(h.tensors.back().name).second)
      throw input_error(r.place(), "the tensor is there twice");
  }
  const size_t align = alignment(h, where);
  h.data_begin = (r.offset() + align - 1) / align * align;
  if (h.data_begin > file.size()) {
    if (!h.tensors.empty())
      throw input_error(where, fmt::format("ends before its data section, at {} bytes", file.size()),
                        "the file is cut short or damaged; copy it again");
    h.data_begin = file.size();
  }
  check_layout(h, file.size(), align, where);
  return h;
}

}  // namespace hysparse::gguf_detail
