// TensorBoard event files: TFRecord framing around hand-encoded `Event` messages that carry scalars and
// texts. Format: docs/formats.md; https://github.com/tensorflow/tensorboard (event.proto, summary.proto).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hysparse {

// CRC-32C (Castagnoli) of `data`, and the rotated form that TFRecord stores.
uint32_t crc32c(std::string_view data);
uint32_t masked_crc32c(std::string_view data);

class EventFile {
 public:
  // Opens a new file in `dir` (created). start_step > 0: tells readers to drop what earlier files of the
  // folder hold from that step on (a resumed run writes those steps again).
  EventFile(const std::filesystem::path& dir, int64_t start_step);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // One event with all scalars of a step; tags such as "train/loss".
  void scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values);
  void text(int64_t step, const std::string& tag, const std::string& value);
  void flush();
  const std::filesystem::path& path() const { return path_; }

 private:
  void record(const std::string& payload);

  std::filesystem::path path_;
  int fd_ = -1;
  std::string buffer_;
};

}  // namespace hysparse
