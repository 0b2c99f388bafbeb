// BC-38: documents packed into a row know nothing of each other: not in attention, windows, block scores,
// selections or gradients; also one-token documents, blocks that hold the end of one document and the start
// of the next, and a document that ends with the sequence.
#include <gtest/gtest.h>

#include "unit/model/tiny.h"

namespace hysparse {
namespace {

using tiny::Documents;
using tiny::Machine;

const std::vector<int64_t> kLengths = {100, 1, 1, 63, 64, 200};

ModelConfig config(AttentionKind kind) {
  return tiny::config(kind, [](ModelConfig& c) {
    c.num_hidden_layers = 5;
    c.hysparse_block_size = 64;
    c.hysparse_topk_tokens = 128;
    c.sliding_window = 128;
  });
}

// Document s of a pack, alone.
Documents alone(const Documents& pack, int64_t s) {
  Documents docs({pack.batch.q_len(s)});
  std::copy_n(pack.tokens.view().as<int32_t>() + pack.batch.cu_q[size_t(s)], docs.batch.tokens(),
              docs.tokens.view().as<int32_t>());
  docs.relabel();
  return docs;
}

// Only document s counts in the loss.
void only_labels_of(Documents& pack, int64_t s) {
  pack.relabel();
  for (int64_t t = 0; t < pack.batch.tokens(); ++t)
    if (t < pack.batch.cu_q[size_t(s)] || t >= pack.batch.cu_q[size_t(s) + 1])
      pack.labels.view().as<int32_t>()[t] = kIgnoreLabel;
}

struct Seen {
  std::vector<double> logits;
  Arena arena;
  Trace trace;
  Seen(Machine& m, const Documents& docs) {
    trace.arena = &arena;
    trace.want_scores = trace.want_selection = true;
    logits = tiny::logits(m, docs, {nullptr, &trace});
  }
};

std::vector<double> rows_of(const std::vector<double>& all, int64_t begin, int64_t end, int64_t width) {
  return {all.begin() + begin * width, all.begin() + end * width};
}

class Packing : public ::testing::TestWithParam<AttentionKind> {};
INSTANTIATE_TEST_SUITE_P(Model, Packing,
                         ::testing::Values(AttentionKind::full, AttentionKind::hysparse,
                                           AttentionKind::window, AttentionKind::hybrid_swa),
                         [](const auto& info) { return std::string(enum_name(info.param)); });

TEST_P(Packing, DocumentsAreAsIfAlone) {
  Machine m(config(GetParam()));
  Documents pack(kLengths);
  const Seen before(m, pack);
  for (int64_t i = 0; i < 100; ++i) {  // the first document becomes another
    int32_t& id = pack.tokens.view().as<int32_t>()[i];
    id = (id + 11) % 97;
  }
  const Seen after(m, pack);
  const int64_t vocab = 97, total = pack.batch.tokens();
  EXPECT_EQ(rows_of(before.logits, 100, total, vocab), rows_of(after.logits, 100, total, vocab));
  EXPECT_NE(rows_of(before.logits, 0, 100, vocab), rows_of(after.logits, 0, 100, vocab));

  for (int64_t s = 0; s < pack.batch.sequences(); ++s) {
    const int64_t begin = pack.batch.cu_q[size_t(s)], end = pack.batch.cu_q[size_t(s) + 1];
    const Seen single(m, alone(pack, s));
    EXPECT_EQ(rows_of(after.logits, begin, end, vocab), single.logits) << "document " << s;
    for (const auto& [layer, scores] : single.trace.block_scores) {
      const TensorView& packed = after.trace.block_scores.at(layer);
      const int64_t own = scores.dim(2), wide = packed.dim(2);
      for (int64_t row = 0; row < (end - begin) * 2; ++row)
        for (int64_t j = 0; j < wide; ++j)
          EXPECT_EQ(tiny::get(packed, (begin * 2 + row) * wide + j),
                    j < own ? tiny::get(scores, row * own + j) : -INFINITY)
              << "document " << s << " row " << row << " block " << j;
      EXPECT_EQ(rows_of(tiny::values(after.trace.selection.at(layer)), begin, end, 4),
                tiny::values(single.trace.selection.at(layer)));
    }
  }
}

TEST_P(Packing, GradientsAreAsIfAlone) {
  Machine m(config(GetParam()));
  Documents pack(kLengths);
  for (int64_t s : {0, 3, 4, 5}) {
    Documents single = alone(pack, s);
    const auto loss = tiny::train(m, single);
    const auto grads = tiny::gradients(m);
    only_labels_of(pack, s);
    const auto packed_loss = tiny::train(m, pack);
    const auto packed = tiny::gradients(m);
    EXPECT_EQ(rows_of(packed_loss, pack.batch.cu_q[size_t(s)], pack.batch.cu_q[size_t(s) + 1], 1), loss);
    for (size_t i = 0; i < grads.size(); ++i)
      EXPECT_LE(tiny::max_diff(packed[i], grads[i]), 1e-13 * (1 + tiny::max_abs(grads[i])))
          << "document " << s << " " << m.weights.all()[i]->name;
  }
  // A document of one token has no next token: nothing to learn, nothing to break.
  only_labels_of(pack, 1);
  EXPECT_EQ(tiny::max_abs(tiny::train(m, pack)), 0);
}

// The CPU kernels do not mix documents either: another first document changes no bit of the others.
TEST_P(Packing, CpuKernelsKeepDocumentsApart) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Machine m(config(GetParam()), dtype);
    Documents pack(kLengths);
    only_labels_of(pack, 5);
    const auto loss = tiny::train(m, pack);
    const auto grads = tiny::gradients(m);
    const auto logits = tiny::logits(m, pack);
    for (int64_t i = 0; i < 100; ++i) pack.tokens.view().as<int32_t>()[i] = static_cast<int32_t>(i % 97);
    EXPECT_EQ(tiny::train(m, pack), loss);
    EXPECT_EQ(rows_of(tiny::logits(m, pack), 100, pack.batch.tokens(), 97),
              rows_of(logits, 100, pack.batch.tokens(), 97));
    const auto again = tiny::gradients(m);
    const double epsilon = dtype == DType::f32 ? 1e-6 : 1e-2;
    for (size_t i = 0; i < grads.size(); ++i)
      EXPECT_LE(tiny::max_diff(again[i], grads[i]), epsilon * (1e-3 + tiny::max_abs(grads[i])))
          << m.weights.all()[i]->name;
  }
}

}  // namespace
}  // namespace hysparse
