#include "eval/oracle.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "eval/recall_data.h"
#include "unit/eval/tiny.h"

namespace hysparse {
namespace {

RecallTask task() {
  RecallTask t;
  t.length = 60;
  t.pairs = 10;
  t.hops = {2};
  return t;
}
RecallRow row(uint64_t i) {
  return make_recall_row(task(), 1, kEvaluationRows + i);
}

// With queries of zero every score of a token is the same: what is selected, and what it covers, is known.
TEST(Oracle, AnEvenAttentionCoversItsShareAndTakesTheFirstBlocks) {
  for (const AttentionKind kind : {AttentionKind::full, AttentionKind::hysparse}) {
    tests::TinyModel m(kind);
    for (LayerWeights& l : m.weights.layers)
      if (l.q_proj.value) std::fill_n(l.q_proj.value.as<float>(), l.q_proj.value.numel(), 0.0f);
    Oracle oracle(m.rt, m.model);
    oracle.add(row(0).tokens, row(0).answers);
    const OracleResult& r = oracle.result();
    EXPECT_EQ(r.counted, 60 - 8);  // tokens with more than 2 blocks of 4
    ASSERT_EQ(r.layers.size(), kind == AttentionKind::full ? 5u : 3u);
    double covered = 0, share = 0;
    for (int64_t t = 8; t < 60; ++t) {
      covered += 8.0 / double(t + 1);
      share += 2.0 / double(t / 4 + 1);
    }
    for (const OracleLayer& l : r.layers) {
      EXPECT_NEAR(l.mass.value(), covered / 52, 1e-5);
      EXPECT_NEAR(l.share.value(), share / 52, 1e-12);
      EXPECT_EQ(l.neighbours.value(), 1.0);  // blocks 0 and 1, always
      // Gold blocks are hit where they are 0 or 1.
      for (const auto& [hop, mean] : l.gold) {
        double hits = 0;
        for (const RecallAnswer& a : row(0).answers) hits += a.gold[size_t(hop) - 1] < 8;
        EXPECT_DOUBLE_EQ(mean.value(), hits / 4);
      }
      EXPECT_EQ(l.gold.size(), 2u);
    }
    EXPECT_EQ(r.stability[0][1].value(), 1.0);
  }
}

TEST(Oracle, SharesAreBetweenChanceAndOneAndALayerAgreesWithItself) {
  tests::TinyModel m(AttentionKind::hysparse);
  Oracle oracle(m.rt, m.model);
  for (uint64_t i = 0; i < 3; ++i) oracle.add(row(i).tokens, row(i).answers);
  const OracleResult& r = oracle.result();
  EXPECT_EQ(r.rows, 3);
  EXPECT_EQ(r.tokens, 180);
  ASSERT_EQ(r.layers.size(), 3u);  // 0, 2 and the last
  EXPECT_TRUE(r.layers[0].read);
  EXPECT_FALSE(r.layers[2].read);
  for (size_t l = 0; l < 3; ++l) {
    EXPECT_EQ(r.stability[l][l].value(), 1.0);
    EXPECT_GT(r.layers[l].mass.value(), r.layers[l].share.value());  // the largest blocks cover more than any
    EXPECT_LE(r.layers[l].mass.value(), 1.0);
  }
  const std::string json = oracle_json(m.config, r), text = oracle_text(m.config, r),
                    html = oracle_html(m.config, r, "a title");
  EXPECT_NE(json.find("\"stability\""), std::string::npos);
  EXPECT_NE(text.find("gold block, hop 2"), std::string::npos);
  EXPECT_NE(html.find("<svg"), std::string::npos);
}

TEST(Oracle, RandomSelectionsAreSeenAsTheyAre) {
  ModelConfig c = tests::tiny_recall_config(AttentionKind::hysparse);
  c.hysparse_selection = SelectionMode::random;
  tests::TinyModel m(c);
  Oracle oracle(m.rt, m.model);
  for (uint64_t i = 0; i < 20; ++i) oracle.add(row(i).tokens, row(i).answers);
  const OracleLayer& l = oracle.result().layers[0];
  EXPECT_NEAR(l.neighbours.value(), l.neighbour_chance.value(), 0.05);
}

TEST(Oracle, TokensBeyondTheVocabularyAreRefused) {
  tests::TinyModel m(AttentionKind::full);
  Oracle oracle(m.rt, m.model);
  const auto beyond = static_cast<int32_t>(m.model.config().vocab_size);
  for (const int32_t id : {-1, beyond}) EXPECT_THROW(oracle.add({1, 2, id, 3}), Error) << id;
  EXPECT_EQ(oracle.result().rows, 0);
}

TEST(Oracle, RowsBeyondTheMemoryAreRefusedBeforeAnythingIsComputed) {
  tests::TinyModel m(AttentionKind::full);
  Oracle oracle(m.rt, m.model);
  try {
    oracle.add(std::vector<int32_t>(8 << 20, 40));
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::input);
    EXPECT_NE(std::string(e.what()).find("shorter rows"), std::string::npos) << e.what();
  }
}

TEST(Oracle, AModelWithoutFullLayersIsRefused) {
  tests::TinyModel m(AttentionKind::window);
  EXPECT_THROW(Oracle(m.rt, m.model), Error);
}

}  // namespace
}  // namespace hysparse
