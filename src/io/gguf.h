// GGUF, the model files of llama.cpp (versions 2 and 3, little-endian).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/files.h"
#include "io/tensor_source.h"

namespace hysparse {

// How a tensor's numbers are stored. The quantised kinds hold blocks of 32 with a scale (and a minimum) each.
enum class GgufDType : uint32_t { f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q8_0 = 8, bf16 = 30 };
std::string_view name_of(GgufDType t);

struct GgufTensor {
  std::string name;
  GgufDType dtype = GgufDType::f32;
  std::vector<int64_t> shape;  // rows first, the reverse of the file's order
  size_t begin = 0, end = 0;   // bytes within the data section
};

enum class GgufType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, text, array, u64, i64, f64 };

// A metadata value; texts and raw elements point into the file.
struct GgufValue {
  GgufType type = GgufType::u8;
  GgufType element = GgufType::u8;  // of an array; else the type itself
  size_t count = 1;                 // elements of an array
  std::span<const std::byte> raw;   // the numbers
  std::vector<std::string_view> texts;

  // Element i where it is a whole number that int64 holds, a number, a text; nothing otherwise.
  std::optional<int64_t> integer(size_t i = 0) const;
  std::optional<double> real(size_t i = 0) const;
  std::string describe() const;  // "an array of 3 f32"
};

// Maps a file and validates all of its structure (counts, lengths, types, alignment, offsets, overlaps,
// duplicates) before anything is read.
class GgufFile {
 public:
  explicit GgufFile(const std::filesystem::path& path);
  // Of bytes in memory, which must outlive it; `name` stands for the path.
  GgufFile(std::span<const std::byte> bytes, const std::filesystem::path& name);
  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in the file's order

  // A metadata value by its key, nothing when absent; Error(input) when it is of another kind.
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> real(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  const GgufValue* array(std::string_view key) const;

  const GgufTensor* find(std::string_view name) const;
  // Its rows, dequantised; valid as long as this file is open.
  TensorSource source(const GgufTensor& tensor) const;

 private:
  void open(std::span<const std::byte> bytes);
  const GgufValue* value(std::string_view key) const;

  std::filesystem::path path_;
  std::optional<MappedFile> file_;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string_view, size_t> by_name_;
  const std::byte* data_ = nullptr;
};

// Collects metadata and tensors, then streams them into one file.
class GgufWriter {
 public:
  void add_text(std::string_view key, std::string_view value);
  void add_u32(std::string_view key, int64_t value);
  void add_f32(std::string_view key, double value);
  void add_bool(std::string_view key, bool value);
  void add_texts(std::string_view key, const std::vector<std::string>& values);
  void add_i32s(std::string_view key, const std::vector<int32_t>& values);

  // `source` is read when the file is written. Rows must be whole blocks (quantisable()).
  void add(TensorSource source, GgufDType dtype);
  static bool quantisable(const std::vector<int64_t>& shape);

  // Atomically. Error(input) where a value does not fit its dtype (f16).
  void write(const std::filesystem::path& path) const;

 private:
  void begin_value(std::string_view key, GgufType type);

  struct Item {
    TensorSource source;
    GgufDType dtype;
  };
  std::string metadata_;
  uint64_t keys_ = 0;
  std::vector<Item> tensors_;
};

}  // namespace hysparse
