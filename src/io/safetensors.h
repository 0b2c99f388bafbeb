// safetensors: reading (one file or a sharded set with its index) and writing.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/files.h"
#include "io/tensor_source.h"
#include "tensor/tensor.h"

namespace hysparse {

struct SafetensorsEntry {
  std::string dtype;  // as in the file: "F32", "BF16", "I32", ...
  std::vector<int64_t> shape;
  size_t begin = 0, end = 0;  // bytes within the data section
};

// Values of a stored tensor that are no numbers.
struct NonFinite {
  int64_t nan = 0, infinite = 0;
  explicit operator bool() const { return nan > 0 || infinite > 0; }
};

// Maps a file and validates its header entirely (lengths, overlaps, holes, overflow, duplicate names) before
// anything is read. Unknown dtypes are refused; sub-byte ones (F4) are listed but cannot be read.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  bool has(const std::string& name) const { return entries_.count(name) > 0; }
  const SafetensorsEntry& entry(const std::string& name) const;  // Error(input) naming the file when absent
  // Converts into a contiguous host view of exactly the stored shape: F64/F32/F16/BF16 -> f64/f32/bf16 (one
  // rounding to nearest even), anything -> its own dtype (BOOL: u8). Errors name file and tensor.
  void read(const std::string& name, const TensorView& dst) const;
  // Reads the whole tensor: F64, F32, F16 or BF16; other dtypes are said to hold none.
  NonFinite count_nonfinite(const std::string& name) const;
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::byte* data(const SafetensorsEntry& e) const { return data_ + e.begin; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  MappedFile file_;
  const std::byte* data_ = nullptr;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

// A model directory's weights: model.safetensors, or model.safetensors.index.json and its shards. (A path to
// a single .safetensors file is taken too.) Completeness is checked both ways; all missing names are listed
// in one error; a stray shard is ignored and listed in notes(). An index beside a model.safetensors that it
// does not name is refused: either could be the stale one.
class SafetensorsSet {
 public:
  explicit SafetensorsSet(const std::filesystem::path& dir);
  std::vector<std::string> names() const;
  bool has(const std::string& name) const;
  const SafetensorsEntry& entry(const std::string& name) const;
  void read(const std::string& name, const TensorView& dst) const;  // as SafetensorsFile::read
  NonFinite count_nonfinite(const std::string& name) const;
  // A stored tensor (F64, F32, F16 or BF16) a few rows at a time; valid as long as this set is open.
  TensorSource source(const std::string& name) const;
  // Whether two stored tensors have one shape and the same numbers.
  bool same_values(const std::string& a, const std::string& b) const;
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  const SafetensorsFile& file_of(const std::string& name) const;
  void open_sharded(const std::filesystem::path& index);

  std::filesystem::path dir_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, size_t> where_;
  std::vector<std::string> notes_;
};

struct NamedTensor {
  std::string name;
  TensorView tensor;  // host, contiguous
  DType as;  // stored dtype: the tensor's own, or f64/f32/bf16 from f64/f32/bf16 (rounded to nearest even)
};
// Single file, written atomically. The header lists the tensors in the order given; their data follows in the
// same order within each element size, larger elements first, so that every tensor is aligned to its element.
// The bytes depend on the arguments alone.
void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});
// model.safetensors, or model-0000i-of-0000n.safetensors + index where the total passes `shard_bytes` (a
// larger tensor gets a shard of its own). Into an existing directory; model files of an earlier set there are
// removed at the end. Each file is atomic, the set is only inside publish_directory.
void write_safetensors_set(const std::filesystem::path& dir, const std::vector<NamedTensor>& tensors,
                           size_t shard_bytes = size_t(5) << 30,
                           const std::map<std::string, std::string>& metadata = {});
// The same from sources, stored as f32 or bf16: never more than a piece of a tensor is in memory.
void write_safetensors_set(const std::filesystem::path& dir, const std::vector<TensorSource>& tensors,
                           DType as, size_t shard_bytes = size_t(5) << 30,
                           const std::map<std::string, std::string>& metadata = {});

}  // namespace hysparse
