// Who may ask, and how often.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace hysparse {

// Keys are compared by their digests, all of them each time, in time that depends on no byte of either.
class ApiKeys {
 public:
  ApiKeys() = default;
  // One key a line; empty lines and those that begin with # are passed over. Error(input) for a file without
  // one, and for keys of fewer than 16 characters.
  static ApiKeys read(const std::string& file);

  bool empty() const { return digests_.empty(); }
  // Which key an Authorization field ("Bearer KEY") holds; -1: none of them. 0 where no key is needed.
  int find(std::string_view authorization) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest digest(std::string_view key);
  std::vector<Digest> digests_;
};

// So many requests a minute for each caller, a few at once.
class RateLimit {
 public:
  explicit RateLimit(double per_minute) : per_minute_(per_minute) {}  // 0: no limit
  // Seconds to wait; 0: go ahead, it is counted.
  double take(const std::string& caller, std::chrono::steady_clock::time_point now);

 private:
  struct Bucket {
    double left;
    std::chrono::steady_clock::time_point at;
  };
  static constexpr size_t kCallers = 4096;  // that are remembered
  double per_minute_;
  std::unordered_map<std::string, Bucket> buckets_;
};

}  // namespace hysparse
