// What a training step reports about gates, selections and routers.
#pragma once

#include "model/pass.h"

namespace hysparse {

// Adds what `layer` shows; its LayerSaved and selection are filled.
void collect_stats(Pass& p, int layer, Model::TrainStats& stats);

}  // namespace hysparse
