#include "eval/ruler/run.h"

#include <algorithm>
#include <chrono>
#include <deque>

#include "base/error.h"

namespace hysparse::ruler {
namespace {

struct Job {
  const Task* task;
  int64_t length, index;
};

struct Asked {
  Sample sample;
  std::unique_ptr<Answer> answer;
  std::string text;
  int64_t drawn = 0, prompt_tokens = 0;
  std::optional<FinishReason> finish;
  bool done = false;
};

Record record_of(Asked& a) {
  Sample& s = a.sample;
  Record r;
  r.task = s.task->name;
  r.length = s.length;
  r.index = s.index;
  r.prompt_tokens = static_cast<int64_t>(s.prompt.size());
  r.answer_tokens = s.answer_tokens;
  r.drawn = a.drawn;
  r.finish = enum_name(*a.finish);
  // As the original cleans answers: control characters are line ends.
  for (char& c : a.text)
    if (static_cast<unsigned char>(c) < ' ') c = '\n';
  r.answer = std::move(a.text);
  r.references = std::move(s.text.references);
  r.question = std::move(s.text.question);
  r.depths = std::move(s.text.depths);
  r.score = score_answer(r.references, s.task->any, r.question, r.answer);
  const bool ended_by_length = a.finish == FinishReason::length;
  r.cut = ended_by_length && a.drawn >= s.answer_tokens;
  r.truncated = a.prompt_tokens != r.prompt_tokens || (ended_by_length && a.drawn < s.answer_tokens) ||
                r.prompt_tokens + s.answer_tokens > s.length;
  r.exhausted = s.exhausted;
  r.form = s.form;
  return r;
}

class Runner {
 public:
  Runner(Engine& engine, ThreadPool& pool, const Prompter& prompter, const Materials& materials,
         const RunOptions& options, Results& results)
      : engine_(engine),
        pool_(pool),
        prompter_(prompter),
        materials_(materials),
        options_(options),
        results_(results) {
    for (const int64_t length : options.lengths)
      if (length < 1 || length > engine.context())
        throw expected_error("lengths", fmt::format("lengths from 1 to the context of {}", engine.context()),
                             std::to_string(length),
                             "raise --context and --kv-memory, or leave the length out");
    if (options.samples < 1 || options.samples > 1'000'000)
      throw expected_error("samples", "1 to 1000000", std::to_string(options.samples));
    if (options.answer_tokens < 0)
      throw expected_error("answer-tokens", "a number from 0 on", std::to_string(options.answer_tokens));
  }

  void run(const std::function<void(const Progress&)>& progress, const std::atomic<bool>* stop) {
    plan();
    const auto begin = std::chrono::steady_clock::now();
    // Enough that the engine never waits for samples to be made.
    const auto window = static_cast<size_t>(2 * engine_.memory_plan().max_sequences);
    while (!jobs_.empty() || !asked_.empty()) {
      if (stop && stop->load())
        throw Error(ErrorKind::interrupted,
                    results_.kept() ? "interrupted; the same command goes on from here" : "interrupted");
      if (!jobs_.empty() && asked_.size() < window - window / 4) ask(window - asked_.size());
      const bool worked = engine_.step();
      const bool any = collect();
      HYSPARSE_CHECK(worked || any, "the engine stopped before its requests were done");
      if (!any || !progress) continue;
      Progress p = progress_;
      p.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      progress(p);
    }
  }

 private:
  Sample make(const Job& job) const {
    return fit_sample(*job.task,
                      {.materials = materials_,
                       .prompter = prompter_,
                       .seed = options_.seed,
                       .length = job.length,
                       .index = job.index},
                      options_.answer_tokens);
  }

  // What is to do. One of each task and length is made at once: what cannot be asked is known before anything
  // is computed.
  void plan() {
    std::vector<Job> firsts;
    for (const int64_t length : options_.lengths)
      for (const Task* task : options_.tasks) {
        firsts.push_back({task, length, 0});
        for (int64_t i = 0; i < options_.samples; ++i) {
          ++progress_.total;
          if (results_.has({std::string(task->name), length, i}))
            ++progress_.done;
          else
            jobs_.push_back({task, length, i});
        }
      }
    pool_.parallel_for(static_cast<int64_t>(firsts.size()),
                       [&](int64_t i, int) { make(firsts[static_cast<size_t>(i)]); });
  }

  void ask(size_t count) {
    count = std::min(count, jobs_.size());
    std::vector<Asked> made(count);
    pool_.parallel_for(static_cast<int64_t>(count), [&](int64_t i, int) {
      made[static_cast<size_t>(i)].sample = make(jobs_[static_cast<size_t>(i)]);
    });
    jobs_.erase(jobs_.begin(), jobs_.begin() + static_cast<std::ptrdiff_t>(count));
    for (Asked& a : made) {
      Request request;
      request.prompt = a.sample.prompt;
      request.sampling.temperature = 0;
      request.max_new_tokens = a.sample.answer_tokens;
      request.cache_prompt = false;  // no sample begins as another does
      a.answer = engine_.submit(std::move(request));
      a.sample.text.user = {};  // long, and asked
      asked_.push_back(std::move(a));
    }
  }

  // Takes what is new; true when an answer ended.
  bool collect() {
    bool any = false;
    for (Asked& a : asked_) {
      while (auto e = a.answer->next(std::chrono::milliseconds(0))) {
        a.text += e->text;
        a.drawn += static_cast<int64_t>(e->tokens.size());
        if (e->finish) a.finish = e->finish;
        if (e->finish == FinishReason::error || e->finish == FinishReason::cancelled)
          throw failure(
              fmt::format("{}, length {}, sample {}", a.sample.task->name, a.sample.length, a.sample.index),
              e->error.empty() ? "it was cancelled" : e->error);
        if (!e->usage) continue;
        a.prompt_tokens = e->usage->prompt_tokens;
        a.done = any = true;
        ++progress_.done;
        progress_.tokens += a.prompt_tokens + a.drawn;
        results_.add(record_of(a));
      }
    }
    std::erase_if(asked_, [](const Asked& a) { return a.done; });
    return any;
  }

  Engine& engine_;
  ThreadPool& pool_;
  const Prompter& prompter_;
  const Materials& materials_;
  const RunOptions& options_;
  Results& results_;
  std::deque<Job> jobs_;
  std::deque<Asked> asked_;
  Progress progress_;
};

}  // namespace

void run(Engine& engine, ThreadPool& pool, const Prompter& prompter, const Materials& materials,
         const RunOptions& options, Results& results, const std::function<void(const Progress&)>& progress,
         const std::atomic<bool>* stop) {
  Runner(engine, pool, prompter, materials, options, results).run(progress, stop);
}

}  // namespace hysparse::ruler
