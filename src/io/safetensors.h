// safetensors: reading (one file or a sharded set with its index) and writing.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/files.h"
#include "tensor/tensor.h"

namespace hysparse {

struct SafetensorsEntry {
  std::string dtype;  // as in the file: "F32", "BF16", "I32", ...
  std::vector<int64_t> shape;
  size_t begin = 0, end = 0;  // bytes within the data section
};

// Maps a file and validates its header entirely (lengths, overlaps, holes, overflow, duplicate names) before
// anything is read.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
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

// A model directory's weights: model.safetensors, or model.safetensors.index.json and its shards.
// Completeness is checked both ways; all missing names are listed in one error; a stray shard is ignored and
// listed in notes().
class SafetensorsSet {
 public:
  explicit SafetensorsSet(const std::filesystem::path& dir);
  std::vector<std::string> names() const;
  bool has(const std::string& name) const;
  const SafetensorsEntry& entry(const std::string& name) const;
  // Converts (F64/F32/F16/BF16 -> dst dtype) into a contiguous host view of exactly the stored shape; errors
  // name file and tensor.
  void read(const std::string& name, const TensorView& dst) const;
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, size_t> where_;
  std::vector<std::string> notes_;
};

struct NamedTensor {
  std::string name;
  TensorView tensor;  // host, contiguous
  DType as;           // stored dtype (converted on the way out)
};
// Single file, written atomically.
void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});
// model.safetensors, or model-0000i-of-0000n.safetensors + index where the total passes `shard_bytes`. Into
// an existing directory.
void write_safetensors_set(const std::filesystem::path& dir, const std::vector<NamedTensor>& tensors,
                           size_t shard_bytes = size_t(5) << 30,
                           const std::map<std::string, std::string>& metadata = {});

}  // namespace hysparse
