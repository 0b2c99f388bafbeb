#include "train/event_file.h"

#include <bit>
#include <cstring>
#include <map>

#include "unit/train/tiny.h"

namespace hysparse {
namespace {

using tests::read_text;
using tests::TempDir;

TEST(EventFile, Crc32cOfKnownStrings) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);            // the check value of CRC-32C
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(masked_crc32c(""), 0xa282ead8u);
}

uint64_t fixed(const std::string& s, size_t at, size_t bytes) {
  uint64_t v = 0;
  for (size_t i = 0; i < bytes; ++i)
    v |= static_cast<uint64_t>(static_cast<uint8_t>(s.at(at + i))) << (8 * i);
  return v;
}

std::vector<std::string> records(const std::string& file) {
  std::vector<std::string> out;
  for (size_t at = 0; at < file.size();) {
    const uint64_t length = fixed(file, at, 8);
    EXPECT_EQ(fixed(file, at + 8, 4), masked_crc32c(std::string_view(file).substr(at, 8)));
    out.push_back(file.substr(at + 12, length));
    EXPECT_EQ(fixed(file, at + 12 + length, 4), masked_crc32c(out.back()));
    at += 16 + length;
  }
  return out;
}

// A message as field number -> values; numbers as they are on the wire, bytes as text.
struct Message {
  std::multimap<int, uint64_t> numbers;
  std::multimap<int, std::string> bytes;
};
Message parse(const std::string& m) {
  Message out;
  size_t at = 0;
  auto varint = [&] {
    uint64_t v = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(m.at(at++));
      v |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return v;
    }
  };
  while (at < m.size()) {
    const uint64_t key = varint();
    const int field = static_cast<int>(key >> 3);
    switch (key & 7) {
      case 0:
        out.numbers.emplace(field, varint());
        break;
      case 1:
        out.numbers.emplace(field, fixed(m, at, 8));
        at += 8;
        break;
      case 5:
        out.numbers.emplace(field, fixed(m, at, 4));
        at += 4;
        break;
      case 2: {
        const uint64_t n = varint();
        out.bytes.emplace(field, m.substr(at, n));
        at += n;
        break;
      }
      default:
        ADD_FAILURE() << "wire type " << (key & 7);
        return out;
    }
  }
  return out;
}

TEST(EventFile, HoldsWhatTensorBoardReads) {
  TempDir dir;
  std::filesystem::path path;
  {
    EventFile file(dir.path(), 0);
    file.scalars(300, {{"train/loss", 2.5}, {"train/lr", 1e-3}});
    file.text(301, "sample", std::string(200, 'x'));
    path = file.path();
  }
  EXPECT_EQ(path.filename().string().rfind("events.out.tfevents.", 0), 0u);
  const std::vector<std::string> all = records(read_text(path));
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(parse(all[0]).bytes.find(3)->second, "brain.Event:2");

  const Message event = parse(all[1]);
  EXPECT_EQ(event.numbers.find(2)->second, 300u);
  EXPECT_GT(std::bit_cast<double>(event.numbers.find(1)->second), 1.6e9);
  const Message summary = parse(event.bytes.find(5)->second);
  ASSERT_EQ(summary.bytes.count(1), 2u);
  const Message loss = parse(summary.bytes.find(1)->second);
  EXPECT_EQ(loss.bytes.find(1)->second, "train/loss");
  EXPECT_EQ(std::bit_cast<float>(static_cast<uint32_t>(loss.numbers.find(2)->second)), 2.5f);

  const Message text = parse(parse(parse(all[2]).bytes.find(5)->second).bytes.find(1)->second);
  EXPECT_EQ(parse(text.bytes.find(8)->second).bytes.find(8)->second, std::string(200, 'x'));
  EXPECT_EQ(parse(parse(text.bytes.find(9)->second).bytes.find(1)->second).bytes.find(1)->second, "text");
}

TEST(EventFile, AResumedRunPurgesLaterStepsAndNeverOverwrites) {
  TempDir dir;
  EventFile first(dir.path(), 0), second(dir.path(), 41);
  EXPECT_NE(first.path(), second.path());
  EXPECT_LT(first.path(), second.path());
  const std::vector<std::string> all = records(read_text(second.path()));
  ASSERT_EQ(all.size(), 2u);
  const Message start = parse(all[1]);
  EXPECT_EQ(start.numbers.find(2)->second, 41u);
  EXPECT_EQ(parse(start.bytes.find(7)->second).numbers.find(1)->second, 1u);  // SessionLog::START
}

// The clock was set back between two parts of a run: readers still meet the parts in their order.
TEST(EventFile, AClockSetBackKeepsTheOrderOfParts) {
  TempDir dir;
  tests::write_text(dir / "events.out.tfevents.9000000000.host.0", "of the future");
  tests::write_text(dir / "events.out.tfevents.garbage", "");
  const EventFile second(dir.path(), 5), third(dir.path(), 9);
  EXPECT_LT(dir / "events.out.tfevents.9000000000.host.0", second.path());
  EXPECT_LT(second.path(), third.path());
}

}  // namespace
}  // namespace hysparse
