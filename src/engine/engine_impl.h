// The engine's inside: requests, choices and their way through a step. Only engine*.cpp includes this.
//
// A request is n choices; a choice is one sequence. What a choice still has to feed is what its tokens have
// more than its cache: the prompt, later the one token drawn last, or everything again after it was preempted
// by recompute. When all is fed, the last row's logits draw its next token. So prompts, decoding and
// recomputation are one case.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/answer_writer.h"
#include "engine/engine.h"
#include "engine/mailbox.h"
#include "engine/paged_kv.h"
#include "engine/prefix_cache.h"

namespace hysparse {

struct Live;

struct Choice {
  Choice(Live& live, int index, AnswerOptions options)
      : live(live), index(index), writer(std::move(options)) {}
  Live& live;
  const int index;
  AnswerWriter writer;
  std::vector<int32_t> tokens;   // prompt and what was drawn
  int kv = -1;                   // its sequence of the cache; -1: it waits
  std::optional<KvImage> image;  // it was moved to host memory
  int64_t draft = 0;             // tokens to propose next time
  std::vector<TokenLogprobs> prompt_logprobs;
  Event event;  // of the running step

  bool in_step = false;  // it has a row of the step that is being planned
  bool told = false;     // its end was delivered

  bool running() const { return kv >= 0; }
  bool over() const { return writer.finished().has_value(); }
};

struct Live {  // a request from submit() to its last event
  RequestId id = 0;
  Request request;
  std::shared_ptr<Mailbox> mailbox;
  std::vector<std::unique_ptr<Choice>> choices;
  Usage usage;
  int64_t waited = 0;                                     // steps in which a choice of it waited
  uint64_t identity = 0;                                  // of the model, when the first choice started
  double submitted = 0, computed = -1, first_token = -1;  // seconds of the clock
  bool prompt_done = false;                               // the siblings of choice 0 may start
  bool looked_up = false;                                 // its hit or miss was counted
};

// One choice's part of a step.
struct Row {
  Choice* choice;
  int64_t count;  // tokens fed, drafts included
  bool prefill = false;
  std::vector<int32_t> drafts;  // the last ones of them
  int64_t first_logits = 0;     // its first row of the logits
  int64_t logits = 0;           // how many
  std::vector<int32_t> drawn;   // on the device, behind each draft and the token before them
  int64_t kept = 0;             // of count; set by the draws
};

// Grows `buffer` to rows [rows, columns] (columns 0: a vector of rows).
void ensure_rows(Tensor& buffer, DType dtype, int64_t rows, int64_t columns, Memory& memory);

struct Engine::Impl {
  Impl(Runtime& rt, StepModel& model, const EngineOptions& options);
  ~Impl();

  // ---- from any thread (mutex)
  std::unique_ptr<Answer> submit(Request request);
  void cancel(RequestId id);
  EngineStats stats() const;
  void check_request(const Request& request) const;

  // ---- the owner's
  bool step();
  void check() const;

  // engine_schedule.cpp: who runs, who waits, what goes into the step
  void take_submitted();
  void end_cancelled();
  void admit();
  bool admit(Choice& choice);
  bool move_in(Choice& choice, int id, int64_t running);
  bool start(Choice& choice, int id, int64_t running, bool use_cache);
  bool make_pages(Choice& choice, int64_t pages);  // at admission
  std::vector<Row> plan_step();
  bool plan_decode(Choice& choice, Row& row, int64_t budget);
  bool plan_prefill(Choice& choice, Row& row, int64_t budget);
  bool before(const Choice& a, const Choice& b) const;  // a goes first
  bool make_slot();
  Choice* victim(const Choice& choice, bool admission) const;
  int free_sequence() const;
  void preempt(Choice& choice);
  bool starving(const Live& live) const { return live.waited > options.starvation_steps; }
  int64_t waiting() const;

  // engine_draw.cpp: from logits to tokens
  void draw_on_device(std::vector<Row>& rows, const TensorView& logits);
  void draw(std::vector<Row>& rows);
  void draw_row(Row& row, SamplerScratch& scratch);

  // engine_results.cpp: what comes out of it
  void run(std::vector<Row>& rows);
  void forward(const std::vector<int>& ids, const RaggedBatch& batch, const TensorView& tokens,
               const TensorView& logits, bool drafts);
  void fork_choices(Row& row);
  void keep_prefix(Choice& choice, bool at_end);
  void fail(Choice& choice, const std::string& why);
  void finish(Choice& choice, FinishReason reason);
  void release(Choice& choice);  // what it holds of the cache
  bool deliver();  // events of the step, into the outbox; requests that are over leave; whether any were
  void post();
  void publish(double seconds, int64_t tokens);
  void break_down(const std::string& why);
  TensorView logits_row(int64_t row) const;
  PrefixKey key_of(const Live& live) const;

  Runtime& rt;
  StepModel& model;
  EngineOptions options;
  KvPlan plan;
  std::unique_ptr<PagedKv> kv;
  std::unique_ptr<PrefixCache> cache;
  int64_t vocab = 0, context = 0;
  bool invariant = false;

  std::vector<std::unique_ptr<Live>> live;  // by arrival
  std::vector<Choice*> of_kv;               // by sequence of the cache; null: free
  std::vector<SamplerScratch> scratch;      // a worker
  Tensor token_buffer, logits, host_logits, drawn;
  int64_t swapped_bytes = 0;
  uint64_t identity = 0;  // of the model, in this step
  EngineStats counted;    // the owner's; published is a copy

  const std::shared_ptr<WorkSignal> signal = std::make_shared<WorkSignal>();
  mutable std::mutex mutex;
  std::deque<std::unique_ptr<Live>> submitted;
  std::vector<std::pair<std::shared_ptr<Mailbox>, Event>> outbox;
  std::map<RequestId, std::weak_ptr<Mailbox>> mailboxes;
  RequestId last_id = 0;
  int64_t queued_choices = 0;  // waiting after the last step, and those submitted since
  EngineStats published;
  std::string broken;

  double now() const;
};

}  // namespace hysparse
