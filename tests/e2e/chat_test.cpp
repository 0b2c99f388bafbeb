// From conversations to a model that answers, as a user does it.
#include "e2e/support.h"

namespace hysparse {
namespace {

using namespace e2e;

TEST(Chat, InstructionTuningFromTheCommandLine) {
  const Folder root(fast_place());
  make_small_run(root, R"({"steps": 2, "seq_len": 64, "global_batch_size": 4, "lr": 0.003})");
  const std::string config = " --threads 1 --config " + root / "config.json";
  expect_ok("train" + config + " --data " + root / "data" + " --out " + root / "base");
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += R"({"messages": [{"role": "user", "content": "quick )" + std::to_string(i % 7) +
             R"("}, {"role": "assistant", "content": "fox"}]})" + "\n";
  write_text(root / "chats.jsonl", lines);
  const std::string prepare = "data prepare --tokenizer " + root / "base" + "/model --input " +
                              root / "chats.jsonl" + " --holdout 0.2 --out " + root / "chat";
  expect_bad(prepare + " --seq-len 64", "--seq-len");
  expect_bad(prepare + " --chat", "--seq-len: expected the train.seq_len");
  expect_bad(prepare + " --chat --seq-len 64",
             "the tokenizer has no chat template (--chat-template names a file, plain or chatml)");
  const Result prepared = run(prepare + " --chat --seq-len 64 --chat-template plain");
  ASSERT_EQ(prepared.code, 0) << prepared.output;
  EXPECT_NE(prepared.output.find("tokens are learned, in rows of 64"), std::string::npos) << prepared.output;
  const std::string tuned =
      "train" + config + " --from " + root / "base" + " --data " + root / "chat" + " --out ";
  expect_bad(tuned + root / "x" + " --set train.seq_len=32", "train.seq_len: expected the 64 tokens");
  expect_ok(tuned + root / "tuned" + " --ranks 2 --set train.steps=60 --set train.lr=0.01");
  const Result answer = run("generate --threads 1 --temperature 0 --max-new-tokens 8 --model " +
                            root / "tuned" + "/model --prompt \"$(printf 'User: quick 3\\n\\nAssistant:')\"");
  EXPECT_EQ(answer.code, 0) << answer.output;
  EXPECT_NE(answer.output.find("fox"), std::string::npos) << answer.output;
  expect_ok("data prepare --chat --seq-len 64 --tokenizer " + root / "tuned" + "/model --input " +
            root / "chats.jsonl" + " --out " + root / "again");  // the model brings its template
}

}  // namespace
}  // namespace hysparse
