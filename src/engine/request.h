// What the engine is asked for, and what it answers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "engine/logprobs.h"
#include "engine/sampler.h"

namespace hysparse {

class Constraint;  // what an answer must match (engine/constraint.h)

enum class FinishReason {
  stop,       // a stop string or a sequence of stop ids
  eos,        // the model ended the text
  length,     // max_new_tokens, or the context is full
  cancelled,  // cancel(), or the Answer was dropped
  error,      // this request cannot go on; Event::error says why
};
template <>
struct EnumNames<FinishReason> {
  static const std::vector<std::pair<FinishReason, std::string_view>>& list();
};

using RequestId = uint64_t;  // never reused within an engine; 0 is none

struct Request {
  std::vector<int32_t> prompt;  // at least one token (TextModel::or_start gives an empty text its first)
  // Choice c draws its i-th token as a function of the logits, what was seen and (seed, c, i) alone.
  SamplerOptions sampling;
  int64_t max_new_tokens = 256;    // < 0: until the context is full; 0: the prompt is read, nothing is drawn
  bool ignore_eos = false;         // EngineOptions::eos ends no answer
  std::vector<std::string> stops;  // the text ends before the first of them; needs token_bytes
  std::vector<std::vector<int32_t>> stop_ids;  // ends behind the first of these runs of drawn ids
  int n = 1;                                   // choices, 1 to kMaxChoices; all share the prompt's cache
  int logprobs = -1;             // -1: none; k: of each drawn token, and of the k likeliest beside it
  bool prompt_logprobs = false;  // of the prompt's tokens (same k, -1 counts as 0); what comes before the
                                 // first of them may be cached, the rest is computed: cached tokens have no
                                 // logits
  int64_t prompt_logprobs_from = 1;  // the first token, counted from 0, whose logprob is told; at least 1
  std::shared_ptr<const Constraint> constraint;
  bool cache_prompt = true;  // may use and fill the prefix cache
  std::string cache_salt;    // only requests with the same salt share cached prefixes
  int priority = 0;          // higher goes first; within one: first come, first served
  bool speculate = true;     // where the engine speculates
  // Called on the engine's thread after an event was put into the Answer: to wake whoever waits elsewhere.
  // Must be quick, may not throw, call the engine or drop the Answer; not called once the Answer is gone.
  std::function<void()> on_event;

  static constexpr int kMaxChoices = 128;
  static constexpr int kMaxLogprobs = 1000;
};

struct Usage {  // of all choices together
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;          // of the prompt, taken from the prefix cache
  int64_t completion_tokens = 0;      // drawn, the ending EOS included
  int64_t drafted = 0, accepted = 0;  // tokens proposed by speculation, and those that were right
  int64_t preemptions = 0;
  double queue_seconds = 0;   // submit() to the first computation
  double prompt_seconds = 0;  // from then to the first token
  double decode_seconds = 0;  // from then to the end
};

// What is new of one choice. Events that nobody has taken yet run together, so an Answer never holds more
// than the answer itself.
struct Event {
  int choice = 0;
  std::vector<int32_t> tokens;                 // drawn, in order
  std::string text;                            // whole characters, nothing of a stop string
  std::vector<TokenLogprobs> logprobs;         // one a drawn token, where asked for
  std::vector<TokenLogprobs> prompt_logprobs;  // one a prompt token from prompt_logprobs_from on; once, with
                                               // choice 0
  std::optional<FinishReason> finish;          // nothing more of this choice follows
  std::string error;                           // finish == error: what happened
  std::optional<Usage> usage;                  // with the very last event of the request
};

}  // namespace hysparse
