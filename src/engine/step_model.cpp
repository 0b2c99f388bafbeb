#include "engine/step_model.h"

#include "base/rng.h"

namespace hysparse {

uint64_t ModelStep::identity() const {
  uint64_t h = hash_words({static_cast<uint64_t>(compute())});
  for (const char c : model_config_json(model_.config())) h = mix64(h ^ static_cast<unsigned char>(c));
  for (const Weight* w : model_.weights().all())
    h = hash_words({h, w->version, static_cast<uint64_t>(w->value.dtype)});
  return h;
}

int64_t ModelStep::weight_bytes() const {
  int64_t bytes = 0;
  for (const Weight* w : model_.weights().all()) bytes += static_cast<int64_t>(w->bytes());
  return bytes;
}

}  // namespace hysparse
