// Conversations: which tokens are answers, how documents fill rows, what training reads of them.
#include "train/chat_data.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/files.h"
#include "io/json_value.h"
#include "train/checkpoint.h"
#include "train/loop.h"
#include "train/prepare.h"
#include "train/token_file.h"
#include "unit/train/small_data.h"
#include "unit/train/tiny.h"

namespace hysparse {
namespace {

using namespace tests;
namespace fs = std::filesystem;

class Chat : public testing::Test {
 protected:
  // The small data's tokenizer, with ChatML's two special tokens where asked for.
  Tokenizer tokenizer(bool chatml) {
    const fs::path to = dir_ / (chatml ? "chatml" : "bare");
    fs::create_directories(to);
    Json json = read_json_file(small_data() / "tokenizer.json");
    int64_t next = Tokenizer::load(small_data()).vocab_size();
    for (const char* text : {"<|im_start|>", "<|im_end|>"})
      if (chatml)
        json["added_tokens"].push_back({{"id", next++},
                                        {"content", text},
                                        {"special", true},
                                        {"single_word", false},
                                        {"lstrip", false},
                                        {"rstrip", false},
                                        {"normalized", false}});
    write_text(to / "tokenizer.json", dump_json(json));
    write_text(to / "tokenizer_config.json", read_text(small_data() / "tokenizer_config.json"));
    return Tokenizer::load(to);
  }
  static Json conversation(const std::vector<std::pair<std::string, std::string>>& messages) {
    Json line;
    for (const auto& [role, content] : messages)
      line["messages"].push_back({{"role", role}, {"content", content}});
    return line;
  }
  // The learned tokens, a text for each run of them.
  static std::vector<std::string> learned(const Tokenizer& t, const ChatDocument& d) {
    std::vector<std::string> out;
    for (size_t i = 0; i < d.ids.size(); ++i) {
      if (!(d.flags[i] & kLearned)) continue;
      if (i == 0 || !(d.flags[i - 1] & kLearned)) out.emplace_back();
      out.back() += t.token_bytes(d.ids[i]);
    }
    return out;
  }
  static std::string text_of(const Tokenizer& t, const ChatDocument& d) {
    std::string out;
    for (const int32_t id : d.ids) out += t.token_bytes(id);
    return out;
  }
  static std::string error_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::input) << e.what();
      return e.what();
    }
    return "no error";
  }
  PrepareReport prepare(const std::string& tokenizer, const std::string& lines, const std::string& out,
                        int64_t row_tokens, double holdout = 0, const std::string& chat_template = "chatml",
                        int threads = 1) {
    write_text(dir_ / "chats.jsonl", lines);
    ThreadPool pool(threads);
    PrepareOptions o;
    o.chat = true;
    o.row_tokens = row_tokens;
    o.holdout = holdout;
    o.chat_template = chat_template;
    return prepare_data(dir_ / tokenizer, {dir_ / "chats.jsonl"}, dir_ / out, o, pool, {});
  }
  static std::string many_lines(int n) {
    std::string lines;
    for (int i = 0; i < n; ++i)
      lines += conversation({{"user", fmt::format("the cat {:x<{}}", "", i % 5)},
                             {"assistant", fmt::format("the dog {:y<{}}", "", i % 3)}})
                   .dump() +
               "\n";
    return lines;
  }
  TempDir dir_;
};

TEST_F(Chat, OnlyAnswersAndTheirEndsAreLearned) {
  const Tokenizer t = tokenizer(true);
  const ChatTemplate chatml = ChatTemplate::builtin("chatml");
  const ChatEncoder encoder(t, chatml, 0);
  const std::vector<ChatDocument> docs = encoder.encode(conversation({{"system", "be brief"},
                                                                      {"user", "hi"},
                                                                      {"assistant", "hello"},
                                                                      {"user", "bye <|im_end|>"},
                                                                      {"assistant", "see you"}}),
                                                        "x");
  ASSERT_EQ(docs.size(), 1u);
  const ChatDocument& d = docs[0];
  EXPECT_EQ(learned(t, d), (std::vector<std::string>{"hello<|im_end|>", "see you<|im_end|>"}));
  EXPECT_EQ(text_of(t, d),
            "<|im_start|>system\nbe "
            "brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n"
            "<|im_start|>user\nbye <|im_end|><|im_end|>\n<|im_start|>assistant\nsee you<|im_end|>\n");
  // What the user wrote is text: five messages, five ends.
  EXPECT_EQ(std::count(d.ids.begin(), d.ids.end(), t.find("<|im_end|>")), 5);
  EXPECT_EQ(std::count_if(d.flags.begin(), d.flags.end(), [](int32_t f) { return f & kDocumentEnd; }), 1);
  EXPECT_TRUE(d.flags.back() & kDocumentEnd);
  EXPECT_EQ(d.answer_bytes, 12);
  // The tokens in front of an answer are those of the prompt that is made for it.
  const MarkedText prompt = chatml.render(conversation({{"system", "be brief"}, {"user", "hi"}})["messages"],
                                          nullptr, Json::object(), {});
  const std::vector<int32_t> ids = t.encode_marked(prompt.text, prompt.trusted);
  EXPECT_TRUE(std::equal(ids.begin(), ids.end(), d.ids.begin()));
  EXPECT_TRUE(d.flags[ids.size()] & kLearned);
}

// Nothing ends an answer in the text itself: EOS does, behind the last one.
TEST_F(Chat, WithoutSpecialTokensEosEndsTheConversation) {
  const Tokenizer t = tokenizer(false);
  const ChatTemplate plain = ChatTemplate::builtin("plain");
  const ChatEncoder encoder(t, plain, 0);
  const std::vector<ChatDocument> docs = encoder.encode(
      conversation({{"user", "hi"}, {"assistant", "hello"}, {"user", "bye"}, {"assistant", "see you"}}), "x");
  ASSERT_EQ(docs.size(), 1u);
  EXPECT_EQ(docs[0].ids.back(), t.eos_id());
  const std::string eos(t.token_bytes(t.eos_id()));
  EXPECT_EQ(learned(t, docs[0]), (std::vector<std::string>{" hello\n\n", " see you\n\n" + eos}));
  EXPECT_TRUE(docs[0].flags.back() & kDocumentEnd);
}

// Templates that drop what earlier answers thought: each answer is learned behind the prompt that the model
// would see.
TEST_F(Chat, WhereEarlierTurnsAreRewrittenEachAnswerIsADocument) {
  const Tokenizer t = tokenizer(false);
  const ChatTemplate rewriting = ChatTemplate::parse(
      "{%- for m in messages %}{{ m.role[0] ~ ':' }}{% if m.role == 'assistant' and not loop.last %}...{% "
      "else %}{{ m.content }}{% endif %}{{ ';' }}"
      "{%- endfor %}{% if add_generation_prompt %}a:{% endif %}",
      "test");
  const ChatEncoder encoder(t, rewriting, 0);
  const std::vector<ChatDocument> docs = encoder.encode(
      conversation({{"user", "hi"}, {"assistant", "hello"}, {"user", "bye"}, {"assistant", "see you"}}), "x");
  ASSERT_EQ(docs.size(), 2u);
  const std::string eos(t.token_bytes(t.eos_id()));
  EXPECT_EQ(text_of(t, docs[0]), "u:hi;a:hello;" + eos);
  EXPECT_EQ(learned(t, docs[0]), (std::vector<std::string>{"hello;" + eos}));
  EXPECT_EQ(text_of(t, docs[1]), "u:hi;a:...;u:bye;a:see you;" + eos);
  EXPECT_EQ(learned(t, docs[1]), (std::vector<std::string>{"see you;" + eos}));
}

TEST_F(Chat, WhatIsNoConversationIsRefusedByName) {
  const Tokenizer t = tokenizer(false);
  const ChatTemplate plain = ChatTemplate::builtin("plain");
  const ChatEncoder encoder(t, plain, 0);
  const auto refusal = [&](const char* line) {
    return error_of([&] { encoder.encode(parse_json(line, "l"), "chats.jsonl:3"); });
  };
  EXPECT_NE(refusal(R"({"text": "x"})").find("chats.jsonl:3: no \"messages\""), std::string::npos);
  EXPECT_NE(refusal(R"([])").find("chats.jsonl:3: expected an object"), std::string::npos);
  EXPECT_NE(refusal(R"({"messages": []})").find("an empty one"), std::string::npos);
  EXPECT_NE(refusal(R"({"messages": [{"content": "x"}]})").find("messages[0]"), std::string::npos);
  EXPECT_NE(refusal(R"({"messages": [{"role": "user"}]})").find("neither"), std::string::npos);
  EXPECT_NE(refusal(R"({"messages": [{"role": "user", "content": "x"}]})").find("nothing to learn"),
            std::string::npos);
  const ChatTemplate odd =
      ChatTemplate::parse("{{ messages | length }}{% if add_generation_prompt %}?{% endif %}", "odd");
  const ChatEncoder other(t, odd, 0);
  EXPECT_NE(error_of([&] {
              other.encode(conversation({{"user", "x"}, {"assistant", "y"}}), "l");
            }).find("messages[1]"),
            std::string::npos);
}

TEST(RowPacker, FillsRowsWithWholeDocuments) {
  std::vector<int32_t> ids, flags;
  RowPacker packer(10, 7, [&](const std::vector<int32_t>& i, const std::vector<int32_t>& f) {
    EXPECT_EQ(i.size(), f.size());
    ids.insert(ids.end(), i.begin(), i.end());
    flags.insert(flags.end(), f.begin(), f.end());
  });
  Rng rng(5);
  int64_t tokens = 0;
  for (int n = 0; n < 300; ++n) {
    ChatDocument d;
    const size_t length = 1 + rng.below(12);
    d.ids.assign(length, 100 + n);
    d.flags.assign(length, 0);
    d.flags[std::min<size_t>(length - 1, 3)] = kLearned;
    d.flags.back() |= kDocumentEnd;
    tokens += static_cast<int64_t>(std::min<size_t>(length, 10));
    packer.add(d);
  }
  ChatDocument unlearned{std::vector<int32_t>(12, 9), std::vector<int32_t>(12, 0)};
  unlearned.flags.back() = kLearned;
  packer.add(unlearned);
  packer.finish();
  EXPECT_GT(packer.shortened(), 1);
  EXPECT_EQ(packer.dropped(), 1);
  ASSERT_EQ(ids.size() % 10, 1u);
  EXPECT_EQ(std::count_if(ids.begin(), ids.end(), [](int32_t i) { return i >= 100; }), tokens);
  EXPECT_LT(static_cast<double>(ids.size()), 1.1 * static_cast<double>(tokens));
  for (size_t row = 0; row + 1 < ids.size(); row += 10) {
    EXPECT_TRUE(flags[row + 9] & kDocumentEnd) << row;
    for (size_t i = row; i < row + 9; ++i)
      if (ids[i] != ids[i + 1]) {
        EXPECT_TRUE(flags[i] & kDocumentEnd) << i;
      } else {
        EXPECT_FALSE(flags[i] & kDocumentEnd) << i;
      }
  }
}

TEST_F(Chat, BatchesHoldWholeConversationsAndLabelsOfAnswers) {
  const Tokenizer t = tokenizer(true);
  const PrepareReport report = prepare("chatml", many_lines(40), "data", 48, 0.2);
  EXPECT_EQ(report.train.documents + report.holdout.documents, 40);
  EXPECT_EQ(report.holdout.documents, 8);
  const TokenData data(dir_ / "data", "train");
  EXPECT_EQ(data.row_tokens(), 48);
  const int64_t rows = (data.tokens() - 1) / 48;
  EXPECT_EQ(data.tokens(), rows * 48 + 1);
  const SampleOrder order(rows, 0, false);
  const TrainBatch batch = make_train_batch(data, order, 0, rows, 48, true);
  EXPECT_EQ(batch.targets, report.answer_tokens);
  int64_t conversations = 0, answers = 0;
  for (int64_t s = 0; s < batch.batch.sequences(); ++s) {
    const auto begin = static_cast<size_t>(batch.batch.cu_q[static_cast<size_t>(s)]),
               end = static_cast<size_t>(batch.batch.cu_q[static_cast<size_t>(s) + 1]);
    std::string labels, text;
    for (size_t i = begin; i < end; ++i) {
      text += t.token_bytes(batch.tokens[i]);
      if (batch.labels[i] != kIgnoreLabel) labels += t.token_bytes(batch.labels[i]);
    }
    if (labels.empty()) continue;  // what fills a row
    ++conversations;
    EXPECT_TRUE(text.starts_with("<|im_start|>user\nthe cat ")) << text;
    EXPECT_TRUE(labels.starts_with("the dog ") && labels.ends_with("<|im_end|>")) << labels;
    answers += labels.find("<|im_end|>") != std::string::npos;
  }
  EXPECT_EQ(conversations, 32);
  EXPECT_EQ(answers, 32);
  // Threads change nothing.
  prepare("chatml", many_lines(40), "again", 48, 0.2, "chatml", 3);
  for (const char* file :
       {"train.tokens", "train.flags.tokens", "holdout.tokens", "holdout.flags.tokens", "meta.json"})
    EXPECT_EQ(read_text(dir_ / "data" / file), read_text(dir_ / "again" / file)) << file;
  // Files that do not belong together.
  fs::copy_file(dir_ / "data/holdout.flags.tokens", dir_ / "again/train.flags.tokens",
                fs::copy_options::overwrite_existing);
  EXPECT_NE(error_of([&] { TokenData(dir_ / "again", "train"); }).find("does not belong to"),
            std::string::npos);
  fs::remove(dir_ / "again/train.flags.tokens");
  EXPECT_NE(error_of([&] { TokenData(dir_ / "again", "train"); }).find("missing: which tokens are answers"),
            std::string::npos);
}

TEST_F(Chat, PreparingWrongThingsIsRefused) {
  tokenizer(false);
  EXPECT_NE(error_of([&] { prepare("bare", many_lines(3), "x", 0); }).find("--seq-len"), std::string::npos);
  EXPECT_NE(error_of([&] { prepare("bare", many_lines(3), "x", 32, 0, ""); }).find("has no chat template"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              prepare("bare", many_lines(3) + "{\"messages\": 3}\n", "x", 32);
            }).find("chats.jsonl:4"),
            std::string::npos);
  EXPECT_NE(error_of([&] { prepare("bare", many_lines(3), "x", 4); }).find("no text for training"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(dir_ / "x"));
}

// From a checkpoint, on answers alone; the model keeps the template.
TEST_F(Chat, InstructionTuningFromACheckpoint) {
  tokenizer(false);
  prepare("bare", many_lines(60), "data", 64, 0.1, "plain");
  RunConfig c;
  c.model = tiny_config();
  c.model.vocab_size = kSmallVocab;
  c.train.steps = 3;
  c.train.seq_len = 64;
  c.train.global_batch_size = 4;
  c.train.log_interval = 1;
  c.train.lr = 3e-3;
  TestMachine machine;
  TrainRequest r;
  r.config = c;
  r.data = small_data();
  r.out = dir_ / "base";
  train(machine.rt, r);
  r.from = dir_ / "base";
  r.data = dir_ / "data";
  r.out = dir_ / "tuned";
  r.config.train.steps = 25;
  std::vector<double> losses;
  r.progress = [&](const TrainProgress& p) { losses.push_back(p.loss); };
  const TrainResult result = train(machine.rt, r);
  EXPECT_LT(losses.back(), 0.5 * losses.front());
  EXPECT_LT(result.evals.back().nats_per_token, 0.5 * losses.front());
  EXPECT_EQ(read_text(dir_ / "tuned/model/chat_template.jinja"), ChatTemplate::builtin("plain").source());
  r.config.train.seq_len = 32;
  r.out = dir_ / "other";
  EXPECT_NE(error_of([&] { train(machine.rt, r); }).find("the 64 tokens that rows of"), std::string::npos);
}

}  // namespace
}  // namespace hysparse
