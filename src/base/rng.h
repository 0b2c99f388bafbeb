// Counter-based random numbers: a value depends on (seed, stream, counter) alone, so every thread count,
// device and resume draws the same ones.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace hysparse {

// SplitMix64 finaliser: a bijection of 64-bit words with full avalanche.
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Order-dependent hash of a list of words; used for random block selection (spec section 8) on every device.
constexpr uint64_t hash_words(std::initializer_list<uint64_t> words) {
  uint64_t h = 0x243f6a8885a308d3ull;
  for (uint64_t w : words) h = mix64(h ^ w);
  return h;
}

// [0, 1) with 53 bits.
constexpr double to_unit(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

class Rng {
 public:
  explicit Rng(uint64_t seed, uint64_t stream = 0, uint64_t counter = 0)
      : key_(hash_words({seed, stream})), counter_(counter) {}
  uint64_t next() { return mix64(key_ ^ mix64(counter_++)); }
  double uniform() { return to_unit(next()); }
  // Uniform in [0, n), n > 0, without modulo bias worth speaking of (128-bit multiply).
  uint64_t below(uint64_t n) {
    __extension__ typedef unsigned __int128 Wide;
    return static_cast<uint64_t>((static_cast<Wide>(next()) * n) >> 64);
  }
  // Standard normal (Box-Muller, two draws a value).
  double normal() {
    const double u = 1.0 - uniform();
    const double v = uniform();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586476925 * v);
  }
  uint64_t counter() const { return counter_; }

 private:
  uint64_t key_;
  uint64_t counter_;
};

}  // namespace hysparse
