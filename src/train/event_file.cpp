#include "train/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>

#include "io/files.h"

namespace hysparse {
namespace {

std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1u) ? (c >> 1) ^ 0x82f63b78u : c >> 1;
    table[i] = c;
  }
  return table;
}

// Little-endian integers of TFRecord and protobuf's fixed-width fields.
template <class T>
void put_fixed(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}
void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7f) | 0x80));
  out.push_back(static_cast<char>(value));
}
// Protobuf wire types.
constexpr int kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;
void put_key(std::string& out, int field, int wire) {
  put_varint(out, static_cast<uint64_t>(field << 3 | wire));
}
void put_bytes(std::string& out, int field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out.append(bytes);
}

constexpr std::string_view kPrefix = "events.out.tfevents.";

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5;
//         SessionLog session_log = 7; }
std::string event(int64_t step) {
  std::string e;
  put_key(e, 1, kFixed64);
  put_fixed(e, std::bit_cast<uint64_t>(wall_time()));
  put_key(e, 2, kVarint);
  put_varint(e, static_cast<uint64_t>(step));
  return e;
}

// Summary.Value of the `text` plugin: { tag = 1; TensorProto tensor = 8 { dtype = 1: DT_STRING 7;
// tensor_shape = 2 { dim = 2 { size = 1: 1 } }; string_val = 8 };
// metadata = 9 { plugin_data = 1 { plugin_name = 1 } } }
std::string text_value(const std::string& tag, const std::string& text) {
  std::string dim, shape, tensor, plugin, metadata, value;
  put_key(dim, 1, kVarint);
  put_varint(dim, 1);
  put_bytes(shape, 2, dim);
  put_key(tensor, 1, kVarint);
  put_varint(tensor, 7);
  put_bytes(tensor, 2, shape);
  put_bytes(tensor, 8, text);
  put_bytes(plugin, 1, "text");
  put_bytes(metadata, 1, plugin);
  put_bytes(value, 1, tag);
  put_bytes(value, 8, tensor);
  put_bytes(value, 9, metadata);
  return value;
}

std::string host_name() {
  char name[256] = "localhost";
  gethostname(name, sizeof name - 1);
  return name;
}

// Readers follow the files of a folder in the order of their names, which begin with ten digits of seconds:
// now, but always behind every file that is there, also when the clock was set back.
int64_t next_seconds(const std::filesystem::path& dir) {
  int64_t seconds = std::max<int64_t>(0, static_cast<int64_t>(wall_time()));
  std::error_code error;
  for (std::filesystem::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    constexpr size_t kDigits = 10;
    if (name.size() <= kPrefix.size() + kDigits || !name.starts_with(kPrefix)) continue;
    int64_t theirs = 0;
    const char* first = name.data() + kPrefix.size();
    if (std::from_chars(first, first + kDigits, theirs).ptr == first + kDigits)
      seconds = std::max(seconds, theirs + 1);
  }
  return seconds;
}

}  // namespace

uint32_t crc32c(std::string_view data) {
  static const std::array<uint32_t, 256> table = make_table();
  uint32_t c = 0xffffffffu;
  for (char byte : data) c = table[(c ^ static_cast<uint8_t>(byte)) & 0xff] ^ (c >> 8);
  return c ^ 0xffffffffu;
}

uint32_t masked_crc32c(std::string_view data) {
  const uint32_t c = crc32c(data);
  return ((c >> 15) | (c << 17)) + 0xa282ead8u;
}

EventFile::EventFile(const std::filesystem::path& dir, int64_t start_step) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) throw io_error(dir, "create the folder", error.value());
  const std::string stem = fmt::format("{}{:010}.{}", kPrefix, next_seconds(dir), host_name());
  for (int n = 0; fd_ < 0; ++n) {
    path_ = dir / fmt::format("{}.{}", stem, n);
    fd_ = open(path_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (fd_ < 0 && errno != EEXIST) throw io_error(path_, "create the event file", errno);
  }
  std::string first = event(0);
  put_bytes(first, 3, "brain.Event:2");
  record(first);
  if (start_step > 0) {
    std::string session, start = event(start_step);
    put_key(session, 1, kVarint);
    put_varint(session, 1);  // START: purge events of this step and later
    put_bytes(start, 7, session);
    record(start);
  }
  flush();
}

EventFile::~EventFile() {
  if (fd_ < 0) return;
  try {
    flush();
  } catch (const Error&) {  // the log is a convenience: a full disk shows where the checkpoint is written
  }
  close(fd_);
}

void EventFile::scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  std::string summary, e = event(step);
  for (const auto& [tag, number] : values) {
    std::string value;  // Summary.Value { string tag = 1; float simple_value = 2; }
    put_bytes(value, 1, tag);
    put_key(value, 2, kFixed32);
    put_fixed(value, std::bit_cast<uint32_t>(static_cast<float>(number)));
    put_bytes(summary, 1, value);
  }
  put_bytes(e, 5, summary);
  record(e);
}

void EventFile::text(int64_t step, const std::string& tag, const std::string& text) {
  std::string summary, e = event(step);
  put_bytes(summary, 1, text_value(tag, text));
  put_bytes(e, 5, summary);
  record(e);
}

// { uint64 length; uint32 masked crc of length; bytes; uint32 masked crc of bytes }
void EventFile::record(const std::string& payload) {
  std::string length;
  put_fixed(length, static_cast<uint64_t>(payload.size()));
  buffer_ += length;
  put_fixed(buffer_, masked_crc32c(length));
  buffer_ += payload;
  put_fixed(buffer_, masked_crc32c(payload));
}

void EventFile::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t n = write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw io_error(path_, "write", errno);
    done += static_cast<size_t>(n);
  }
  buffer_.clear();
}

}  // namespace hysparse
