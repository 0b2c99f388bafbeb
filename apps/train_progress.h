// How `train` and `demo` show a run: one live line on a terminal, plain lines elsewhere.
#pragma once

#include <functional>
#include <string>

#include "train/loop.h"

namespace hysparse {

// The mean is TrainProgress::smoothed_loss; the log holds each step's own loss.
// "step 120/900  mean loss 3.214  held-out 2.41 bits/byte  41,200 tokens/s  ETA 1:48"
std::string progress_line(const TrainProgress& progress);

// Writes to stderr. Not a terminal: a line at every evaluation and every `every` steps.
class ProgressPrinter {
 public:
  ProgressPrinter(bool terminal, int64_t every) : terminal_(terminal), every_(every) {}
  ~ProgressPrinter() { finish(); }
  void operator()(const TrainProgress& progress);
  // Ends the live line, so that other messages start on their own.
  void finish();

 private:
  bool terminal_;
  int64_t every_;
  bool open_ = false;
};

// "1,234,567"; "2:05", "1:02:05".
std::string with_commas(int64_t n);
std::string clock_text(double seconds);

// A sample for TrainRequest::sample: continues `prompt` at temperature 0.8 with a fixed seed.
std::string sample_text(Runtime& rt, Model& model, const Tokenizer& tokenizer, const std::string& prompt,
                        int64_t tokens);

}  // namespace hysparse
