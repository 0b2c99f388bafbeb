#include "serve/access.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "io/files.h"

namespace hysparse {
namespace {

constexpr size_t kShortest = 16;

}  // namespace

ApiKeys::Digest ApiKeys::digest(std::string_view key) {
  Digest out{};
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), out.data());
  return out;
}

ApiKeys ApiKeys::read(const std::string& file) {
  ApiKeys out;
  const std::string text = read_file(file);
  size_t line = 1;
  for (size_t at = 0; at < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view key = std::string_view(text).substr(at, end - at);
    while (!key.empty() && (key.back() == '\r' || key.back() == ' ' || key.back() == '\t'))
      key.remove_suffix(1);
    at = end + 1;
    if (key.empty() || key.front() == '#') continue;
    if (key.size() < kShortest)
      throw input_error(fmt::format("{}: line {}", file, line),
                        fmt::format("a key of fewer than {} characters", kShortest),
                        "openssl rand -hex 32 makes one");
    out.digests_.push_back(digest(key));
  }
  if (out.empty()) throw input_error(file, "holds no key", "one key a line");
  return out;
}

int ApiKeys::find(std::string_view authorization) const {
  if (empty()) return 0;
  constexpr std::string_view kScheme = "Bearer ";
  const Digest given = digest(authorization.size() > kScheme.size() ? authorization.substr(kScheme.size())
                                                                    : std::string_view());
  int found = -1;
  for (size_t i = 0; i < digests_.size(); ++i) {
    const bool same = CRYPTO_memcmp(given.data(), digests_[i].data(), given.size()) == 0;
    found = same ? static_cast<int>(i) : found;
  }
  return authorization.starts_with(kScheme) ? found : -1;
}

double RateLimit::take(const std::string& caller, std::chrono::steady_clock::time_point now) {
  if (per_minute_ <= 0) return 0;
  const double most = std::max(1.0, per_minute_ / 6);  // ten seconds' worth at once
  if (buckets_.size() >= kCallers && buckets_.count(caller) == 0) {
    // Whoever would be full again is not worth remembering.
    std::erase_if(buckets_, [&](const auto& b) {
      return b.second.left + std::chrono::duration<double>(now - b.second.at).count() * per_minute_ / 60 >=
             most;
    });
    if (buckets_.size() >= kCallers) buckets_.clear();
  }
  Bucket& b = buckets_.try_emplace(caller, Bucket{most, now}).first->second;
  b.left = std::min(most, b.left + std::chrono::duration<double>(now - b.at).count() * per_minute_ / 60);
  b.at = now;
  if (b.left >= 1) {
    b.left -= 1;
    return 0;
  }
  return (1 - b.left) * 60 / per_minute_;
}

}  // namespace hysparse
