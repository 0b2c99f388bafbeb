// How a budget of bytes becomes pages of full layers and slots of rings.
#pragma once

#include <cstdint>
#include <string>

#include "model/config.h"
#include "model/plan.h"
#include "tensor/dtype.h"

namespace hysparse {

struct KvPlanOptions {
  KvDtype kv_dtype = KvDtype::compute;  // of pages
  int64_t kv_bytes = 0;                 // of pages and rings together; 0: what is left of `available`
  int64_t page_size = 0;                // tokens, a multiple of the selection block; 0: max(64, block)
  int64_t max_sequences = 0;            // that run at once; 0: 16 on the CPU, 64 elsewhere
  // Share of the budget that ring snapshots of the prefix cache may take at least; no bytes where the model
  // has no rings. Slots that no sequence needs serve as snapshots, too.
  double snapshot_share = 1.0 / 16;
};

// A slot is the rings of all window branches, for one sequence or one snapshot; a page holds page_size tokens
// of all full layers.
struct KvPlan {
  KvDtype kv_dtype = KvDtype::compute;
  int64_t page_size = 0, page_bytes = 0, pages = 0;
  int64_t slot_bytes = 0, slots = 0, max_sequences = 0;  // slots: sequences and snapshots together
  int64_t context = 0;                                   // of one sequence
  int64_t weight_bytes = 0, workspace_bytes = 0, available = 0;
  int64_t bytes() const { return pages * page_bytes + slots * slot_bytes; }
  // Rows of weights, pages, rings, snapshots and workspace: bytes, and the tokens and sequences they hold.
  std::string table() const;
};

// `available`: bytes that may be taken for everything that is not there yet. Error(input) where the budget
// holds not even one sequence of one page.
KvPlan plan_kv(const ModelConfig& config, const LayerPlan& plan, DType dtype, int64_t context,
               const KvPlanOptions& options, int64_t available, int64_t workspace_bytes);

}  // namespace hysparse
