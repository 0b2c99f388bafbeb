// Tokenizers and materials for tests of the evaluation.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "../tokenizer/small_tokenizer.h"
#include "base/thread_pool.h"
#include "eval/ruler/sample.h"
#include "reader.h"

namespace hysparse::tests {

inline const std::string& source_dir() {
  static const std::string dir = HYSPARSE_SOURCE_DIR;
  return dir;
}

inline std::shared_ptr<const Tokenizer> bytes_tokenizer() {
  static const auto one = std::make_shared<const Tokenizer>(test::load(test::tokenizer_json()));
  return one;
}
inline std::shared_ptr<const Tokenizer> shipped_tokenizer() {
  static const auto one =
      std::make_shared<const Tokenizer>(Tokenizer::load(source_dir() + "/models/hysparse-14m"));
  return one;
}
// Trained on one text: few tokens for prose, many for numbers.
inline std::shared_ptr<const Tokenizer> prose_tokenizer() {
  static const auto one = [] {
    test::TempDir dir;
    ThreadPool pool(1);
    train_tokenizer({source_dir() + "/data/en/carroll-alice-in-wonderland.txt"}, {.vocab_size = 1500},
                    dir / "tok", pool, {});
    return std::make_shared<const Tokenizer>(Tokenizer::load(dir / "tok"));
  }();
  return one;
}

inline const ruler::Materials& stand_ins() {
  static const ruler::Materials m = [] {
    ruler::Materials out;
    out.essay = std::make_shared<const ruler::Essay>(
        ruler::read_essays({source_dir() + "/data/en/carroll-alice-in-wonderland.txt"}, "a novel"));
    out.squad = std::make_shared<const ruler::QuestionSet>(ruler::invented_questions(false, 2000));
    out.hotpot = std::make_shared<const ruler::QuestionSet>(ruler::invented_questions(true, 2000));
    return out;
  }();
  return m;
}

inline const ruler::Task& task_named(const std::string& name) {
  return *ruler::find_tasks({name}).front();
}

}  // namespace hysparse::tests
