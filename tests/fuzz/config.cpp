// The model's configuration: a config.json of ours or of a known family, and --set overrides (lines behind
// the first line that is "--set").
#include <cstring>

#include "base/error.h"
#include "model/config.h"
#include "model/plan.h"
#include "target.h"

namespace hysparse::fuzz {

bool run_input(std::string_view input) {
  std::vector<std::string> overrides;
  std::string text(input);
  if (const size_t p = text.find("\n--set\n"); p != std::string::npos) {
    for (size_t begin = p + 7; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      overrides.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    text.resize(p);
  }
  try {
    const ModelConfig config = parse_model_config(text, "fuzz", overrides);
    const LayerPlan plan = build_layer_plan(config);
    require(static_cast<int64_t>(plan.size()) == config.num_hidden_layers, "a plan entry a layer");
    for (size_t i = 0; i < plan.size(); ++i) {
      if (plan[i].kind != LayerKind::sparse) continue;
      const int source = plan[i].selection_source;
      require(source >= 0 && source < static_cast<int>(i) && plan[size_t(source)].emits_scores,
              "a sparse layer has its source");
    }
    require(kv_bytes(config, plan, 2).at(1) >= 0, "bytes do not overflow");
    const std::string saved = model_config_json(config);
    require(model_config_json(parse_model_config(saved, "again")) == saved, "what is saved reads back");
    return true;
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::input, "a bad config is the input's fault");
    require(std::strlen(e.what()) < 4000, "messages are short");
    return false;
  }
}

std::vector<std::string> seeds() {
  const std::string tiny =
      R"({"model_type": "hysparse", "num_hidden_layers": 9, "hidden_size": 64, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 96, "vocab_size": 97, "sliding_window": 16,
 "attention": "hysparse", "full_attention_interval": 4, "hysparse_block_size": 4, "hysparse_topk_tokens": 16,
 "eos_token_id": [5, 9]})";
  return {
      tiny,
      tiny + "\n--set\nattention=full\nrope_theta=640000\nhysparse_gate=channel",
      R"({"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 97,
 "layer_types": ["full_attention", "hysparse_attention", "full_attention"], "hysparse_window": "none",
 "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "head_dim": null, "tie_word_embeddings": true})",
      R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 97,
 "num_key_value_heads": 2, "intermediate_size": 96, "hidden_act": "silu", "rope_theta": 10000.0, "bos_token_id": 1,
 "eos_token_id": 2, "torch_dtype": "float32", "max_position_embeddings": 2048, "rms_norm_eps": 1e-05})",
  };
}

std::vector<std::string> dictionary() {
  return {"null",
          "\"hysparse\"",
          "\"full\"",
          "\"window\"",
          "\"sliding_attention\"",
          "\"hysparse_attention\", ",
          "\"attention_bias\": true, ",
          "\"qk_norm\": true, ",
          "\"head_dim\": 8, ",
          "\"n_routed_experts\": 4, ",
          "\"num_experts_per_tok\": 2, ",
          "\"moe_intermediate_size\": 32, ",
          "\"partial_rotary_factor\": 0.5, ",
          "\"rope_parameters\": {}, ",
          "\"rope_scaling\": null, ",
          "\"layer_types\": [], ",
          "\"hysparse_window\": \"shared\", ",
          "\n--set\n",
          "\nattention=hybrid_swa",
          "\nlayer_types=[\"full_attention\"]",
          "\nnum_hidden_layers=1",
          "\nv_head_dim=16",
          "-1",
          "1e18",
          "\"4\""};
}

}  // namespace hysparse::fuzz
