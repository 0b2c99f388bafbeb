#include <fmt/format.h>

#include <numeric>

#include "base/log.h"
#include "capi/guard.h"
#include "capi/objects.h"

namespace hysparse::capi {

std::vector<int32_t> ModelObject::checked_ids(const int32_t* ids, size_t count, const char* where) const {
  array(ids, count, where);
  const int64_t vocab = text.config().vocab_size;
  for (size_t i = 0; i < count; ++i)
    if (ids[i] < 0 || ids[i] >= vocab)
      throw expected_error(fmt::format("{}: token {}", where, i),
                           fmt::format("an id from 0 to {}", vocab - 1), std::to_string(ids[i]));
  return {ids, ids + count};
}

std::shared_ptr<ModelObject> model_of(hysparse_model* handle) {
  return std::static_pointer_cast<ModelObject>(find_handle(HandleKind::model, handle));
}

namespace {

Log log_to(hysparse_log_callback callback, void* user) {
  if (!callback) return {};
  return [callback, user](LogLevel level, const std::string& message) {
    callback(user, static_cast<int>(level), message.c_str());
  };
}

// Logits [tokens, vocab] in the accumulation dtype.
void forward(ModelObject& m, const std::vector<int32_t>& ids, const TensorView& logits) {
  Runtime& rt = m.machine.runtime();
  const auto n = static_cast<int64_t>(ids.size());
  const Tensor tokens(DType::i32, {n}, rt.memory);
  rt.memory.from_host(tokens.view().data, ids.data(), tokens.view().bytes());
  RaggedBatch batch;
  batch.add_sequence(n, 0);
  batch.logit_rows.resize(ids.size());
  std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), 0);
  TrainKv direct;
  m.text.model().forward(rt, batch, tokens, direct, logits);
}

}  // namespace
}  // namespace hysparse::capi

using namespace hysparse;
using namespace hysparse::capi;

extern "C" {

const char* hysparse_version(void) {
  return HYSPARSE_VERSION;
}

const char* hysparse_last_error(void) {
  return last_error();
}

void hysparse_free(void* memory) {
  std::free(memory);
}

int hysparse_model_load(const char* dir, const hysparse_model_options* options, hysparse_model** out) {
  return guarded([&] {
    const std::string path = &required(dir, "dir");
    required(out, "out");
    const hysparse_model_options o =
        take_options(options, hysparse_model_options HYSPARSE_MODEL_OPTIONS_INIT, "model options");
    MachineOptions machine;
    machine.threads = o.threads;
    if (o.dtype) machine.dtype = o.dtype;
    auto model = std::make_shared<ModelObject>(machine);
    model->text = load_text_model(
        path,
        {.compute = model->machine.compute(), .format = weight_format_of(o.weights ? o.weights : "dtype")},
        model->machine.runtime().memory, log_to(o.log, o.log_user));
    model->text.loaded.weights->pack(model->machine.runtime());
    *out = static_cast<hysparse_model*>(add_handle(HandleKind::model, std::move(model), AfterFork::dead));
    return HYSPARSE_OK;
  });
}

int hysparse_model_free(hysparse_model* model) {
  return guarded([&] {
    free_handle(HandleKind::model, model);
    return HYSPARSE_OK;
  });
}

int hysparse_model_get_info(hysparse_model* model, hysparse_model_info* info) {
  return guarded([&] {
    const auto m = model_of(model);
    check_result(info, "model info");
    const ModelConfig& c = m->text.config();
    put_result(info, {0, c.vocab_size, c.max_position_embeddings, c.num_hidden_layers, c.hidden_size,
                      m->text.loaded.weights->parameters(), m->machine.runtime().pool.threads(),
                      m->text.tokenizer ? 1 : 0});
    return HYSPARSE_OK;
  });
}

int hysparse_model_config(hysparse_model* model, char** json) {
  return guarded([&] {
    const auto m = model_of(model);
    required(json, "json");
    const std::string text = model_config_json(m->text.config());
    *json = static_cast<char*>(copy_out(text.data(), text.size()));
    return HYSPARSE_OK;
  });
}

int hysparse_logits(hysparse_model* model, const int32_t* ids, size_t count, float* logits, size_t capacity) {
  return guarded([&] {
    const auto m = model_of(model);
    const ModelConfig& config = m->text.config();
    if (count == 0) throw expected_error("ids", "at least one token id", "none");
    if (count > static_cast<size_t>(config.max_position_embeddings))
      throw expected_error(
          "ids", fmt::format("at most {} tokens (max_position_embeddings)", config.max_position_embeddings),
          std::to_string(count));
    const std::vector<int32_t> tokens = m->checked_ids(ids, count, "ids");
    required(logits, "logits");
    const auto rows = static_cast<int64_t>(count);
    const size_t needed = count * static_cast<size_t>(config.vocab_size);
    if (capacity < needed)
      throw expected_error("logits",
                           fmt::format("room for {} floats ({} x {})", needed, count, config.vocab_size),
                           std::to_string(capacity));
    const TensorView out(logits, DType::f32, {rows, config.vocab_size});
    const std::lock_guard turn(m->turn);
    const DType a = accumulation_dtype(m->machine.compute());
    if (a == DType::f32) {
      forward(*m, tokens, out);
    } else {
      const Tensor wide(a, {rows, config.vocab_size});
      forward(*m, tokens, wide);
      m->machine.runtime().ops.cast(m->machine.runtime(), {wide, out});
    }
    return HYSPARSE_OK;
  });
}

}  // extern "C"
