#include "unit/train/small_data.h"

#include "tokenizer/tokenizer.h"
#include "train/prepare.h"
#include "train/token_file.h"
#include "unit/train/tiny.h"

namespace hysparse::tests {
namespace {

namespace fs = std::filesystem;

std::string sentences(Rng& rng, int count) {
  static const char* const who[] = {"the cat", "a dog", "the old man", "my sister", "nobody"};
  static const char* const does[] = {"sees", "likes", "follows", "forgets"};
  static const char* const how[] = {"today", "in the garden", "with great care", "again"};
  std::string out;
  for (int i = 0; i < count; ++i)
    out += fmt::format("{} {} {} {}.\n", who[rng.below(5)], does[rng.below(4)], who[rng.below(5)],
                       how[rng.below(4)]);
  return out;
}

struct Prepared {
  TempDir dir;
  explicit Prepared(uint64_t seed) {
    Rng rng(seed);
    std::vector<fs::path> files;
    for (int sentence_count : {1, 40, 3, 60, 2, 20}) {
      files.push_back(dir / fmt::format("{}.txt", files.size()));
      write_text(files.back(), sentences(rng, sentence_count));
    }
    ThreadPool pool(1);
    train_tokenizer(files, {.vocab_size = 290 + static_cast<int64_t>(seed)}, dir / "tokenizer", pool, {});
    prepare_data(dir / "tokenizer", files, dir / "data", {.holdout = 0.1}, pool, {});
  }
};

}  // namespace

fs::path small_data() {
  static const Prepared data(1);
  return data.dir / "data";
}

fs::path other_small_data() {
  static const Prepared data(2);
  return data.dir / "data";
}

int64_t small_data_tokens() {
  return TokenData(small_data(), "train").tokens() - 1;
}

fs::path data_without_targets() {
  static const TempDir dir;
  const fs::path out = dir / "data";
  if (fs::exists(out)) return out;
  fs::copy(small_data(), out);
  fs::remove(out / "train.tokens");
  const TokenData like(small_data(), "train");
  TokenFileHeader header;
  header.vocab_size = like.vocab_size();
  header.eos_id = like.eos_id();
  header.fingerprint = like.tokenizer_fingerprint();
  TokenFileWriter writer(out / "train.tokens", header);
  for (int i = 0; i < 400; ++i) writer.end_document(0);
  writer.finish();
  return out;
}

}  // namespace hysparse::tests
