// What a model's full layers select, looked at: the paper's premise that the same blocks matter from layer to
// layer, what the kernels rely on (neighbours select alike), and what a selection covers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "eval/recall_task.h"
#include "model/model.h"

namespace hysparse {

struct OracleMean {
  double sum = 0;
  int64_t count = 0;
  void add(double x) { sum += x, ++count; }
  double value() const;  // NaN where nothing was counted
};

// Only tokens count that have more blocks behind them than they may select: the others select everything.
// "Selected" is what sparse layers read; at a full layer that none reads, the blocks of largest score.
struct OracleLayer {
  int layer = 0;
  bool read = false;            // by sparse layers
  OracleMean neighbours;        // share of a token's blocks that its predecessor selected too, a KV head
  OracleMean neighbour_chance;  // what a random selection would share
  // Attention mass on the tokens of the selected blocks, a KV head. Where a KV head has several query heads,
  // a token's mass is the largest of theirs (what ranks it), and the share is of the sum of those.
  OracleMean mass;
  OracleMean share;  // of the blocks behind a token that are selected: the mass of an even attention
  std::map<int64_t, OracleMean>
      gold;  // by hop from 1: whether the asking token selects the block (any KV head)
  std::map<int64_t, OracleMean> gold_chance;
};
struct OracleResult {
  int64_t rows = 0, tokens = 0, counted = 0;
  std::vector<OracleLayer> layers;  // the full ones
  // [a][b]: share of the blocks of largest score of layer b (over its KV heads) that are among those of layer
  // a.
  std::vector<std::vector<OracleMean>> stability, stability_chance;
};

class Oracle {
 public:
  // Keeps the references. Looks at every full layer of `model`, whatever its attention kind.
  Oracle(Runtime& rt, Model& model);
  // One row: a document of its own. `answers`: of a made task, for the hits of gold blocks.
  void add(const std::vector<int32_t>& tokens, const std::vector<RecallAnswer>& answers = {});
  const OracleResult& result() const { return result_; }

 private:
  struct Seen;
  Seen look(const std::vector<int32_t>& tokens);
  void compare_layers(const Seen& seen);
  void count_gold(const Seen& seen, const std::vector<RecallAnswer>& answers);

  Runtime& rt_;
  Model& model_;
  Model tokenwise_;  // the same weights, scores of single tokens
  Arena arena_;
  OracleResult result_;
};

std::string oracle_json(const ModelConfig& config, const OracleResult& result);
std::string oracle_text(const ModelConfig& config, const OracleResult& result);
std::string oracle_html(const ModelConfig& config, const OracleResult& result, const std::string& title);

}  // namespace hysparse
