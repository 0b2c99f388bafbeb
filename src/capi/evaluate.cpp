#include "capi/guard.h"
#include "capi/objects.h"
#include "eval/perplexity.h"
#include "io/files.h"
#include "model/plan_report.h"
#include "train/run_config.h"

namespace hysparse::capi {
namespace {

const hysparse_perplexity_options kPerplexity = HYSPARSE_PERPLEXITY_OPTIONS_INIT;
const hysparse_plan_options kPlan = HYSPARSE_PLAN_OPTIONS_INIT;

PerplexityOptions perplexity_options(const hysparse_perplexity_options& o, const TextModel& text) {
  PerplexityOptions p;
  p.window = o.window;
  p.stride = o.stride;
  p.batch = o.batch;
  p.max_tokens = o.max_tokens;
  if (text.tokenizer)
    p.token_bytes = [&text](int32_t id) { return static_cast<int64_t>(text.token_bytes(id).size()); };
  if (o.progress)
    p.progress = [callback = o.progress, user = o.progress_user](int64_t scored) {
      if (callback(user, scored) != 0) throw Error(ErrorKind::interrupted, "perplexity: cancelled");
    };
  return fill_in(std::move(p), text.config().max_position_embeddings);
}

// The model's losses, in turn with other calls.
WindowLosses taking_turns(ModelObject& m) {
  return [&m, losses = model_losses(m.machine.runtime(), m.text.model())](
             const RaggedBatch& batch, const std::vector<int32_t>& tokens, const std::vector<int32_t>& labels,
             std::vector<double>& loss) {
    const std::lock_guard turn(m.turn);
    losses(batch, tokens, labels, loss);
  };
}

DType plan_dtype(const char* name) {
  const std::string_view dtype = name ? name : "bf16";
  if (dtype == "bf16") return DType::bf16;
  if (dtype == "f32") return DType::f32;
  throw expected_error("dtype", "bf16 or f32", dtype);
}

}  // namespace
}  // namespace hysparse::capi

using namespace hysparse;
using namespace hysparse::capi;

extern "C" {

int hysparse_perplexity(hysparse_model* model, const int32_t* ids, const size_t* starts, size_t documents,
                        const hysparse_perplexity_options* options, hysparse_perplexity_result* result) {
  return guarded([&] {
    const auto m = model_of(model);
    required(starts, "starts");
    check_result(result, "perplexity result");
    const PerplexityOptions o =
        perplexity_options(take_options(options, kPerplexity, "perplexity options"), m->text);
    for (size_t i = 0; i <= documents; ++i)
      if (starts[i] < (i ? starts[i - 1] : 0) || (i == 0 && starts[0] != 0))
        throw expected_error(fmt::format("starts[{}]", i), "places that ascend from 0",
                             std::to_string(starts[i]));
    Perplexity perplexity(taking_turns(*m), o);
    const std::vector<int32_t> all = m->checked_ids(ids, starts[documents], "ids");
    for (size_t i = 0; i < documents && !perplexity.full(); ++i)
      perplexity.add({all.data() + starts[i], all.data() + starts[i + 1]});
    const PerplexityResult r = perplexity.finish();
    if (r.tokens == 0) throw input_error("ids", "no token to score: each document needs at least two tokens");
    put_result(result, {0, r.documents, r.tokens, r.bytes, r.nats, r.nats_per_token(), r.standard_error,
                        r.perplexity(), r.bits_per_byte(), r.bits_per_byte_error()});
    return HYSPARSE_OK;
  });
}

int hysparse_plan(const char* config, const hysparse_plan_options* options, char** json) {
  return guarded([&] {
    const std::string text = &required(config, "config");
    required(options, "plan options");
    required(json, "json");
    const hysparse_plan_options o = take_options(options, kPlan, "plan options");
    const DType dtype = plan_dtype(o.dtype);
    array(o.set, o.set_count, "set");
    std::vector<std::string> sets;
    for (size_t i = 0; i < o.set_count; ++i) sets.emplace_back(&required(o.set[i], "set"));
    const size_t first = text.find_first_not_of(" \t\r\n");
    const bool is_text = first != std::string::npos && text[first] == '{';
    const RunConfig run = is_text ? parse_run_config(text, "config", sets) : load_run_config(text, sets);
    const PlanReport report =
        make_plan_report(run.model, o.context, o.batch, dtype, static_cast<int>(size_of(dtype)));
    const std::string out = plan_report_json(run.model, report, dtype);
    *json = static_cast<char*>(copy_out(out.data(), out.size()));
    return HYSPARSE_OK;
  });
}

}  // extern "C"
