// The objects behind the handles.
#pragma once

#include <memory>
#include <mutex>

#include "capi/handles.h"
#include "engine/machine.h"
#include "engine/request.h"
#include "engine/text_model.h"
#include "hysparse/hysparse.h"

namespace hysparse::capi {

struct ModelObject {
  explicit ModelObject(const MachineOptions& options) : machine(options) {}

  Machine machine;
  TextModel text;
  std::mutex turn;  // held while the model computes, never while a callback runs

  // `ids` with every id checked; `where` names them.
  std::vector<int32_t> checked_ids(const int32_t* ids, size_t count, const char* where) const;
};

// What a generation and the engine's answers share (generation.cpp).
extern const hysparse_generate_options kGenerateDefaults;
SamplerOptions sampling_of(const hysparse_generate_options& options);  // checked
std::vector<std::string> stop_texts(const hysparse_generate_options& options);
int32_t finish_code(FinishReason reason);

std::shared_ptr<ModelObject> model_of(hysparse_model* handle);
std::shared_ptr<const Tokenizer> tokenizer_of(hysparse_tokenizer* handle);

}  // namespace hysparse::capi
