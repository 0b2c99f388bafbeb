// Argument checks that every backend shares: shapes, dtypes and the rules of ops.h. Each returns T, the
// compute dtype of the call, and throws Error(failure) naming the operation and the argument where a rule is
// broken. They read host arrays and shapes only, never tensor contents.
#pragma once

#include "kernels/ops.h"

namespace hysparse {

DType check_args(const EmbeddingForward&);
DType check_args(const EmbeddingBackward&);
DType check_args(const RmsNormForward&);
DType check_args(const RmsNormBackward&);
DType check_args(const LinearForward&);
DType check_args(const LinearBackward&);
DType check_args(const Rope&);
DType check_args(const Add&);
void check_args(const Cast&);
DType check_args(const GatherRows&);
void check_args(const ScatterRows&);
DType check_args(const QuantiseKv&);
DType check_args(const SwigluForward&);
DType check_args(const SwigluBackward&);
DType check_args(const AttentionForward&);
DType check_args(const AttentionBackward&);
DType check_args(const SelectBlocks&);  // returns A
DType check_args(const RandomScores&);  // returns A
DType check_args(const SparseAttentionForward&);
DType check_args(const SparseAttentionBackward&);
DType check_args(const WindowAttentionForward&);
DType check_args(const WindowAttentionBackward&);
DType check_args(const GatedSumForward&);
DType check_args(const GatedSumBackward&);
void check_args(const DrawTokens&);
DType check_args(const CrossEntropy&);  // returns A
DType check_args(const AdamW&);         // returns A
void check_args(const SumSquares&);
DType check_args(const HeadLoss&);
DType check_args(const RouteForward&);   // returns A
DType check_args(const RouteBackward&);  // returns A
void check_args(const BuildExpertTables&);
DType check_args(const ExpertGather&);
DType check_args(const ExpertSum&);
DType check_args(const GroupedLinear&);
DType check_args(const GroupedLinearBackward&);
DType check_args(const ExpertSwiglu&);
DType check_args(const ExpertSwigluBackward&);

}  // namespace hysparse
