// A little prepared data that a tiny model can learn: sentences of a few words, in documents of several
// lengths.
#pragma once

#include <cstdint>
#include <filesystem>

namespace hysparse::tests {

inline constexpr int64_t kSmallVocab = 320;  // rows of the model; the tokenizer has fewer ids

// Made once a process; lives until its end.
std::filesystem::path small_data();
std::filesystem::path other_small_data();  // other text, another tokenizer
int64_t small_data_tokens();               // inputs of one epoch
// The training part has nothing to predict: every document is EOS alone.
std::filesystem::path data_without_targets();

}  // namespace hysparse::tests
