// The engine: requests that say what they would say alone, limits, cancellation, errors, events.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include "engine/constraint.h"
#include "engine/engine_thread.h"
#include "engine_rig.h"

namespace hysparse {
namespace {

using namespace tests;

TEST(Engine, ManyAtOnceSayWhatEachSaysAlone) {
  const EngineOptions options = rig_options(hash_config(), 200, 8);
  Rig rig(options);
  std::vector<std::unique_ptr<Answer>> answers;
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 12; ++i) {
    requests.push_back(request(ids(1 + int64_t(i) * 13, i), 10 + int64_t(i), i));
    answers.push_back(rig.engine.submit(requests.back()));
  }
  rig.run();
  EXPECT_EQ(rig.model.most_sequences, 8);
  for (size_t i = 0; i < answers.size(); ++i) {
    SCOPED_TRACE(i);
    Outcome out;
    out.take_all(*answers[i]);
    expect_same(out, alone(requests[i], options));
    ASSERT_TRUE(out.usage);
    EXPECT_EQ(out.usage->prompt_tokens, int64_t(requests[i].prompt.size()));
    EXPECT_EQ(out.usage->completion_tokens, 10 + int64_t(i));
    EXPECT_EQ(out.choices[0].finish, FinishReason::length);
  }
  const EngineStats s = rig.engine.stats();
  EXPECT_EQ(s.submitted, 12);
  EXPECT_EQ(s.finished, 12);
  EXPECT_EQ(s.running + s.queued, 0);
}

TEST(Engine, DecodingGoesOnWhileALongPromptIsRead) {
  EngineOptions options = rig_options(hash_config(), 200, 4);
  options.step_tokens = 20;
  Rig rig(options);
  const auto talker = rig.engine.submit(request(ids(5, 1), 100));
  rig.engine.step();
  const auto reader = rig.engine.submit(request(ids(400, 2), 5));
  Outcome out;
  out.take_all(*talker);
  for (size_t step = 0; step < 20; ++step) {  // 400 tokens, 19 at a time
    rig.engine.step();
    out.take_all(*talker);
    EXPECT_EQ(out.choices[0].tokens.size(), step + 2);
  }
  EXPECT_LE(rig.model.most_tokens, 20);
  rig.run();
}

// BC-12: the context is never passed, the impossible is refused at once.
TEST(Engine, StopsExactlyAtTheContext) {
  EngineOptions options = rig_options(hash_config(), 200, 4);
  for (const int64_t speculate : {0, 8}) {
    options.speculate = speculate;
    Rig rig(options);
    Request two = request(ids(500, 1), 400);
    two.n = 2;
    const auto a = rig.engine.submit(request(ids(511, 2), 400)),
               b = rig.engine.submit(request(ids(512, 3), 400)), c = rig.engine.submit(two);
    rig.run();
    Outcome first, second, third;
    first.take_all(*a);
    second.take_all(*b);
    third.take_all(*c);
    EXPECT_EQ(first.choices[0].tokens.size(), 1u);
    EXPECT_EQ(second.choices[0].tokens.size(), 0u);
    for (const Outcome& o : {first, second, third})
      for (const auto& choice : o.choices) EXPECT_EQ(choice.finish, FinishReason::length);
    ASSERT_EQ(third.choices.size(), 2u);
    EXPECT_EQ(third.choices[0].tokens.size(), 12u);
    EXPECT_EQ(third.choices[1].tokens.size(), 12u);
    try {
      rig.engine.submit(request(ids(513, 4), 1));
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::input);
      EXPECT_NE(std::string(e.what()).find("513"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("512"), std::string::npos) << e.what();
    }
  }
  // A pool smaller than the context: it is what the pages hold, and a request beyond is refused, not hung.
  Rig small(rig_options(hash_config(), 10, 2));
  EXPECT_EQ(small.engine.context(), 80);
  EXPECT_THROW(small.engine.submit(request(ids(81, 1), 1)), Error);
  const Outcome out = small.ask(request(ids(70, 1), 400));
  EXPECT_EQ(out.choices[0].tokens.size(), 10u);
  EXPECT_EQ(out.choices[0].finish, FinishReason::length);
  Request pair = request(ids(70, 1), 400);
  pair.n = 2;
  EXPECT_EQ(small.ask(pair).choices[1].tokens.size(), 10u);
}

TEST(Engine, RefusesWhatCanNeverBeServed) {
  Rig rig(rig_options(hash_config(), 50, 2));
  const auto refused = [&](auto set) {
    Request r = request(ids(5, 1), 5);
    set(r);
    try {
      rig.engine.submit(std::move(r));
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::input) << e.what();
    }
  };
  refused([](Request& r) { r.prompt.clear(); });
  refused([](Request& r) { r.prompt[2] = 61; });
  refused([](Request& r) { r.prompt[0] = -1; });
  refused([](Request& r) { r.n = 0; });
  refused([](Request& r) { r.n = Request::kMaxChoices + 1; });
  refused([](Request& r) { r.logprobs = -2; });
  refused([](Request& r) { r.logprobs = Request::kMaxLogprobs + 1; });
  refused([](Request& r) { r.stops = {"x"}; });
  refused([](Request& r) { r.stop_ids = {{}}; });
  refused([](Request& r) { r.sampling.temperature = std::nan(""); });
  refused([](Request& r) { r.sampling.logit_bias = {{61, 1.0}}; });
  EXPECT_FALSE(rig.engine.step());
  EXPECT_EQ(rig.engine.stats().submitted, 0);

  const auto bad = [&](auto set) {
    EngineOptions o = rig_options(hash_config(), 50, 2);
    set(o);
    EXPECT_THROW(Rig r(o), Error);
  };
  bad([](EngineOptions& o) { o.context = 4097; });
  bad([](EngineOptions& o) { o.step_tokens = 0; });
  bad([](EngineOptions& o) { o.speculate = -1; });
  bad([](EngineOptions& o) { o.memory.kv_bytes = 100; });
  bad([](EngineOptions& o) { o.memory.page_size = 6; });
  bad([](EngineOptions& o) { o.memory.snapshot_share = 1; });
}

TEST(Engine, AFullQueueIsRefused) {
  EngineOptions options = rig_options(hash_config(), 50, 1);
  options.max_queued = 2;
  Rig rig(options);
  const auto a = rig.engine.submit(request(ids(5, 1), 5)), b = rig.engine.submit(request(ids(5, 2), 5));
  try {
    rig.engine.submit(request(ids(5, 3), 5));
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::failure);
  }
  rig.engine.step();  // one of them runs now
  const auto c = rig.engine.submit(request(ids(5, 3), 5));
  rig.run();
  EXPECT_EQ(rig.engine.stats().finished, 3);
}

TEST(Engine, CancelsAnywhere) {
  EngineOptions options = rig_options(hash_config(), 100, 2);
  options.step_tokens = 20;
  Rig rig(options);
  const auto decoding = rig.engine.submit(request(ids(5, 1), 400));
  rig.engine.step();
  auto reading = rig.engine.submit(request(ids(300, 2), 5));
  rig.engine.step();
  rig.engine.step();
  const auto queued = rig.engine.submit(request(ids(5, 3), 5));
  rig.engine.step();
  EXPECT_EQ(rig.engine.stats().queued, 1);
  queued->cancel();
  rig.engine.step();
  EXPECT_EQ(rig.engine.stats().queued, 0);
  Outcome out;
  out.take_all(*queued);
  EXPECT_EQ(out.choices[0].finish, FinishReason::cancelled);
  EXPECT_TRUE(out.usage);
  EXPECT_TRUE(queued->done());
  reading.reset();  // dropped: as good as cancelled
  rig.engine.step();
  EXPECT_EQ(rig.engine.stats().running, 1);
  rig.engine.cancel(decoding->id());
  rig.engine.cancel(decoding->id());
  rig.engine.cancel(12345);
  rig.engine.step();
  EXPECT_EQ(rig.engine.stats().running, 0);
  EXPECT_EQ(rig.engine.stats().cancelled, 3);
  out = {};
  out.take_all(*decoding);
  EXPECT_EQ(out.choices[0].finish, FinishReason::cancelled);
  EXPECT_GT(out.choices[0].tokens.size(), 2u);
  EXPECT_FALSE(rig.engine.step());
}

TEST(Engine, EventsOfAnAnswerNobodyReadsRunTogether) {
  Rig rig(rig_options(hash_config(), 100, 2));
  Request r = request(ids(5, 1), 300);
  r.n = 2;
  const auto answer = rig.engine.submit(r);
  rig.run();
  Outcome out;
  out.take_all(*answer);
  ASSERT_EQ(out.choices.size(), 2u);
  EXPECT_EQ(out.choices[0].events, 1);
  EXPECT_EQ(out.choices[1].events, 1);
  EXPECT_EQ(out.choices[0].tokens.size(), 300u);
  EXPECT_FALSE(answer->next(0ms));
}

TEST(Engine, StopsOnIdsEosAndStrings) {
  EngineOptions options = rig_options(hash_config(), 100, 2);
  std::vector<std::string> texts;
  for (int i = 0; i < 61; ++i) texts.push_back(fmt::format("<{}>", i));
  options.token_bytes = [&](int32_t t) { return std::string_view(texts[size_t(t)]); };
  options.eos = {};
  Rig rig(options);
  const Outcome free = rig.ask(request(ids(9, 1), 40));
  const auto& said = free.choices[0].tokens;
  Request r = request(ids(9, 1), 40);
  r.stop_ids = {{60, 60, 60}, {said[9], said[10]}};
  Outcome out = rig.ask(r);
  EXPECT_EQ(out.choices[0].finish, FinishReason::stop);
  EXPECT_EQ(out.choices[0].tokens, std::vector<int32_t>(said.begin(), said.begin() + 11));
  r.stop_ids = {};
  r.stops = {texts[size_t(said[9])] + texts[size_t(said[10])]};
  out = rig.ask(r);
  EXPECT_EQ(out.choices[0].finish, FinishReason::stop);
  EXPECT_EQ(out.choices[0].text, free.choices[0].text.substr(0, free.choices[0].text.find(r.stops[0])));

  options.eos = {said[5]};
  options.speculate = 4;
  Rig ends(options);
  const size_t first = size_t(std::find(said.begin(), said.end(), said[5]) - said.begin());
  r.stops = {};
  out = ends.ask(r);
  EXPECT_EQ(out.choices[0].finish, FinishReason::eos);
  EXPECT_EQ(out.choices[0].tokens.size(), first + 1);
  r.ignore_eos = true;
  expect_same(ends.ask(r), free);
}

TEST(Engine, AConstraintHoldsWithDraftsToo) {
  EngineOptions options = rig_options(hash_config(), 100, 3);
  const std::string letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXY";
  options.token_bytes = [&](int32_t t) { return std::string_view(letters).substr(size_t(t), 1); };
  options.eos = {60};
  options.speculate = 6;
  const auto trie = std::make_shared<const TokenTrie>(
      61, [&](int32_t t) { return t < 60 ? std::string(1, letters[size_t(t)]) : std::string(); },
      options.eos);
  Rig rig(options);
  Request r = request(ids(30, 1), 60);
  r.constraint = Constraint::regex("(ab|cd){4,9}", trie);
  r.n = 3;
  const Outcome out = rig.ask(r);
  for (const auto& choice : out.choices) {
    EXPECT_TRUE(choice.finish == FinishReason::eos || choice.finish == FinishReason::stop);
    EXPECT_GE(choice.text.size(), 8u);
    EXPECT_LE(choice.text.size(), 18u);
    for (size_t i = 0; i + 1 < choice.text.size(); i += 2)
      EXPECT_TRUE(choice.text.substr(i, 2) == "ab" || choice.text.substr(i, 2) == "cd") << choice.text;
  }
  expect_same(out, alone(r, options));
  r.ignore_eos = true;  // the constraint ends the text all the same
  for (const auto& choice : rig.ask(r).choices) EXPECT_LE(choice.text.size(), 18u);
  r.constraint =
      Constraint::regex("a", std::make_shared<const TokenTrie>(
                                 50, [](int32_t) { return std::string("a"); }, std::vector<int64_t>{}));
  EXPECT_THROW(rig.engine.submit(r), Error);  // of another vocabulary
}

TEST(Engine, LogprobsOfPromptAndAnswer) {
  EngineOptions options = rig_options(hash_config(), 200, 4);
  options.step_tokens = 20;
  Rig rig(options);
  Request r = request(ids(100, 1), 10);
  r.logprobs = 3;
  r.prompt_logprobs = true;
  r.n = 2;
  const Outcome out = rig.ask(r), again = rig.ask(r);
  expect_same(out, alone(r, options));
  expect_same(again, out);  // a prompt that is cached has no logits: it was read again
  ASSERT_EQ(out.prompt_logprobs.size(), 99u);
  for (size_t i = 0; i < 99; ++i) {
    EXPECT_EQ(out.prompt_logprobs[i].token.token, r.prompt[i + 1]);
    EXPECT_EQ(out.prompt_logprobs[i].top.size(), 3u);
    EXPECT_LT(out.prompt_logprobs[i].token.logprob, 0);
  }
  ASSERT_EQ(out.choices[1].logprobs.size(), 10u);
  EXPECT_EQ(rig.engine.stats().cache_misses[size_t(CacheMiss::prompt_logprobs)], 2);
  // Scoring alone.
  r.max_new_tokens = 0;
  r.n = 1;
  const Outcome scored = rig.ask(r);
  EXPECT_EQ(scored.choices[0].tokens.size(), 0u);
  ASSERT_EQ(scored.prompt_logprobs.size(), 99u);
  for (size_t i = 0; i < 99; ++i) expect_same(scored.prompt_logprobs[i], out.prompt_logprobs[i]);
}

// Asked for from a token on, what comes before may be cached, and the rest is what the whole prompt gives.
TEST(Engine, PromptLogprobsFromATokenOn) {
  const EngineOptions options = rig_options(hash_config(), 200, 2);
  Request whole = request(ids(100, 1), 0);
  whole.logprobs = 2;
  whole.prompt_logprobs = true;
  whole.cache_prompt = false;
  const Outcome all = Rig(options).ask(whole);
  for (const int64_t from : {1, 2, 40, 70, 71, 72, 99, 100}) {
    SCOPED_TRACE(testing::Message() << "from " << from);
    Rig rig(options);
    Request context = request({whole.prompt.begin(), whole.prompt.begin() + 70}, 0);
    rig.ask(context);
    Request part = whole;
    part.cache_prompt = true;
    part.prompt_logprobs_from = from;
    const Outcome out = rig.ask(part);
    ASSERT_EQ(out.prompt_logprobs.size(), size_t(100 - from));
    for (size_t i = 0; i < out.prompt_logprobs.size(); ++i)
      expect_same(out.prompt_logprobs[i], all.prompt_logprobs[i + size_t(from) - 1]);
    const int64_t cached = out.usage->cached_tokens;
    EXPECT_EQ(cached, from == 70 ? 69 : from > 70 ? 70 : 0);
    EXPECT_EQ(rig.engine.stats().prompt_tokens, 70 + 100 - cached);
  }
  Rig rig(options);
  for (const int64_t from : {0, 101}) {
    whole.prompt_logprobs_from = from;
    EXPECT_THROW(rig.engine.submit(whole), Error);
  }
}

TEST(Engine, ABrokenRequestEndsAlone) {
  Rig rig(rig_options(hash_config(), 100, 4));
  rig.model.poisoned_token = 60;
  std::vector<int32_t> bad = ids(20, 1, 60), good = ids(20, 2, 60);
  bad.back() = 60;
  Request r = request(good, 10);
  r.sampling.logit_bias = {{60, -100.0}};
  const auto a = rig.engine.submit(request(bad, 10)), b = rig.engine.submit(r);
  rig.run();
  Outcome broken, fine;
  broken.take_all(*a);
  fine.take_all(*b);
  EXPECT_EQ(broken.choices[0].finish, FinishReason::error);
  EXPECT_NE(broken.choices[0].error.find("token 3"), std::string::npos) << broken.choices[0].error;
  EXPECT_EQ(fine.choices[0].tokens.size(), 10u);
  EXPECT_EQ(rig.engine.stats().failed, 1);
  EXPECT_EQ(rig.engine.stats().finished, 1);
}

TEST(Engine, ABrokenDeviceEndsAll) {
  Rig rig(rig_options(hash_config(), 100, 2));
  std::vector<std::unique_ptr<Answer>> answers;
  for (uint64_t i = 0; i < 4; ++i) answers.push_back(rig.engine.submit(request(ids(10, i), 50)));
  rig.engine.step();
  rig.model.broken = true;
  EXPECT_THROW(rig.engine.step(), Error);
  for (const auto& answer : answers) {
    Outcome out;
    out.take_all(*answer);
    EXPECT_EQ(out.choices[0].finish, FinishReason::error);
    EXPECT_NE(out.choices[0].error.find("the device is gone"), std::string::npos);
    EXPECT_TRUE(answer->done());
  }
  rig.engine.check();
  EXPECT_THROW(rig.engine.step(), Error);
  EXPECT_THROW(rig.engine.submit(request(ids(10, 1), 1)), Error);
}

TEST(Engine, AnAnswerOutlivesTheEngine) {
  std::unique_ptr<Answer> answer;
  {
    Rig rig(rig_options(hash_config(), 100, 2));
    answer = rig.engine.submit(request(ids(10, 1), 50));
    rig.engine.step();
  }
  Outcome out;
  out.take_all(*answer);
  EXPECT_EQ(out.choices[0].finish, FinishReason::cancelled);
  EXPECT_EQ(out.choices[0].tokens.size(), 1u);
  EXPECT_TRUE(answer->done());
  answer->cancel();
}

TEST(Engine, ThePriorityGoesFirstAndNobodyStarves) {
  EngineOptions options = rig_options(hash_config(), 100, 1);
  options.starvation_steps = 60;
  Rig rig(options);
  Request low = request(ids(10, 1), 20), high = request(ids(10, 2), 20);
  high.priority = 5;
  const auto first = rig.engine.submit(low);
  rig.engine.step();
  const auto urgent = rig.engine.submit(high);
  rig.engine.step();  // it takes the only place
  EXPECT_EQ(rig.engine.stats().preempted_swap, 1);
  // A stream of urgent ones; the other gets its turn all the same.
  std::vector<std::unique_ptr<Answer>> stream;
  int steps = 0;
  while (!first->done() && steps < 500) {
    if (rig.engine.stats().queued < 3) stream.push_back(rig.engine.submit(high));
    rig.engine.step();
    while (first->next(0ms)) {
    }
    ++steps;
  }
  EXPECT_LT(steps, 140);
  EXPECT_GT(steps, 60);
}

TEST(EngineThread, ManyCallersAtOnce) {
  EngineOptions options = rig_options(hash_config(), 60, 4);
  options.speculate = 4;
  Rig rig(options);
  EngineThread thread(rig.engine);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0}, cancelled{0};
  for (uint64_t t = 0; t < 4; ++t)
    callers.emplace_back([&, t] {
      for (uint64_t i = 0; i < 8; ++i) {
        Request r = request(ids(10 + int64_t(t) * 20, i), 20, t);
        std::atomic<int> calls{0};
        r.on_event = [&] { ++calls; };
        auto answer = rig.engine.submit(r);
        if (i % 4 == 3) answer->cancel();
        Outcome out;
        while (!answer->done())
          if (auto e = answer->next(1000ms)) out.take(std::move(*e));
        answer.reset();
        r.on_event = {};
        if (out.choices[0].finish == FinishReason::cancelled)
          ++cancelled;
        else if (out.choices[0].tokens != alone(r, options).choices[0].tokens || calls == 0)
          ++wrong;
        rig.engine.stats();
      }
    });
  for (std::thread& c : callers) c.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(thread.healthy(10));
  EXPECT_EQ(thread.failure(), "");
  rig.model.delay_ms = 300;
  const auto slow = rig.engine.submit(request(ids(5, 1), 3));
  std::this_thread::sleep_for(250ms);
  EXPECT_FALSE(thread.healthy(0.1));  // what a hung step looks like
  rig.model.delay_ms = 0;
  rig.model.broken = true;
  while (!slow->done()) slow->next(100ms);
  for (int i = 0; i < 100 && thread.failure().empty(); ++i) std::this_thread::sleep_for(10ms);
  EXPECT_NE(thread.failure().find("the device is gone"), std::string::npos);
  EXPECT_FALSE(thread.healthy(10));
  thread.stop();
}

}  // namespace
}  // namespace hysparse
