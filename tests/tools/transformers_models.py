#!/usr/bin/env python3
"""Random models of the families that hysparse reads, made by transformers, and their logits.

  transformers_models.py record DIR [FAMILY ...]  the folders of tests/data/foreign: a tiny model a family, with
                                                  tokens and the float64 logits of transformers in DIR/expected
  transformers_models.py check --hysparse PROGRAM compares `hysparse logits` and `hysparse generate` with
                                                  transformers on larger models, made on the spot

Needs torch, transformers and safetensors. The test suite reads only what `record` wrote; `check` is registered as a
test where these packages can be imported.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama-tied": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"rope_theta": 1e6}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16, "rope_theta": 1e6, "tie_word_embeddings": True}),
    "mimo": (Qwen2Config, Qwen2ForCausalLM, {"rope_theta": 640000.0}),
    # Scaled rotary embeddings whose bounds lie within the few positions of a tiny model.
    "llama3": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 96}}),
    "linear": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": {
        "rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}}),
    "yarn": (Qwen2Config, Qwen2ForCausalLM, {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}}),
    "yarn-stated": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 3.0, "original_max_position_embeddings": 48,
        "attention_factor": 1.25, "beta_fast": 8.0, "beta_slow": 0.5, "truncate": False}}),
}
TINY = dict(vocab_size=61, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128)
SMALL = dict(vocab_size=503, hidden_size=192, intermediate_size=416, num_hidden_layers=5, num_attention_heads=6,
             num_key_value_heads=2, max_position_embeddings=512)


def build(family, sizes, seed):
    """A model whose every parameter is away from its symmetric initial value, rounded to bf16."""
    config_class, model_class, changes = FAMILIES[family]
    sizes = dict(sizes, tie_word_embeddings=False, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2)
    if "head_dim" in changes and sizes["hidden_size"] > 100:
        changes = dict(changes, head_dim=64)
    torch.manual_seed(seed)
    model = model_class(config_class(**{**sizes, **changes})).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            spread = 0.3 if p.ndim == 1 else 1.5 / p.shape[-1] ** 0.5
            p.copy_(torch.randn(p.shape) * spread + (1.0 if "norm" in name else 0.0))
            p.copy_(p.to(torch.bfloat16))
    return model


def save(model, family, folder, shard="5GB"):
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size=shard)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if family == "mimo":
        make_mimo(folder)


def make_mimo(folder):
    """Qwen 2's weights and one layer of multi-token prediction more, under MiMo-7B's names."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.update(model_type="mimo", architectures=["MiMoForCausalLM"], num_nextn_predict_layers=1, attention_bias=True,
                  auto_map={"AutoConfig": "configuration_mimo.MiMoConfig",
                            "AutoModelForCausalLM": "modeling_mimo.MiMoForCausalLM"})
    config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]  # spelled as before transformers 5
    config["rope_scaling"] = None
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2) + "\n")
    from safetensors.torch import load_file as load, save_file as store
    tensors = load(folder / "model.safetensors")
    prefix = "model.mtp_layers.0."
    extra = {prefix + n.removeprefix("model.layers.0."): t.clone() for n, t in tensors.items()
             if n.startswith("model.layers.0.")}
    hidden = config["hidden_size"]
    for norm in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        extra[f"{prefix}{norm}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    extra[prefix + "input_proj.weight"] = torch.randn(hidden, 2 * hidden).to(torch.bfloat16)
    store({**tensors, **extra}, folder / "model.safetensors", {"format": "pt"})


def logits(model, ids):
    with torch.no_grad():
        return model.double()(torch.tensor([ids])).logits[0].numpy()


def exact_logits(model, ids):
    """With norms, rotary frequencies and angles in float64; transformers takes them in float32."""
    rotary, config = model.model.rotary_emb, model.config
    kind = config.rope_parameters["rope_type"]
    compute = rotary.compute_default_rope_parameters if kind == "default" else ROPE_INIT_FUNCTIONS[kind]
    wide = mock.patch.multiple(torch, float=torch.float64, float32=torch.float64)
    with wide:
        frequency, magnitude = compute(config)
    assert frequency.dtype == torch.float64

    def forward(x, position_ids):
        angles = position_ids[..., None].double() * frequency
        angles = torch.cat((angles, angles), -1)
        return angles.cos() * magnitude, angles.sin() * magnitude

    plain, rotary.forward = rotary.forward, forward
    try:
        with wide:
            return logits(model, ids)
    finally:
        rotary.forward = plain


def greedy(model, ids, count):
    with torch.no_grad():
        prompt = torch.tensor([ids])
        out = model.double().generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count,
                                      do_sample=False, eos_token_id=None, pad_token_id=0)
    return out[0, len(ids):].tolist()


def record(root, families):
    (root / "expected").mkdir(parents=True, exist_ok=True)
    for i, family in enumerate(FAMILIES):
        if families and family not in families:
            continue
        folder = root / family
        folder.mkdir(parents=True, exist_ok=True)
        model = build(family, TINY, 100 + i)
        ids = np.random.default_rng(i).integers(0, TINY["vocab_size"], 24).tolist()
        expected = logits(model, ids)
        save(model, family, folder, shard="25KB" if family == "qwen2" else "5GB")
        save_file({"tokens": np.array(ids, np.int32), "logits": expected.astype(np.float32)},
                  root / "expected" / f"{family}.safetensors")
        print(family, sorted(p.name for p in folder.iterdir()))


def check(program):
    failed = False
    for i, family in enumerate(FAMILIES):
        with tempfile.TemporaryDirectory() as temp:
            temp = pathlib.Path(temp)
            model = build(family, SMALL, 500 + i)
            ids = np.random.default_rng(i).integers(0, SMALL["vocab_size"], 150).tolist()
            expected, exact, text = logits(model, ids), exact_logits(model, ids), greedy(model, ids[:20], 40)
            save(model, family, temp / "model", shard="500KB" if family == "qwen2" else "5GB")
            (temp / "ids.json").write_text(json.dumps(ids))
            worst = {}
            for dtype, mode, truth, tolerance in (("f64", "train", exact, 1e-7), ("f64", "train", expected, 2e-5),
                                                  ("f32", "train", expected, 2e-5), ("f32", "chunked", exact, 2e-5)):
                subprocess.run([program, "logits", "--model", temp / "model", "--tokens", temp / "ids.json", "--out",
                                temp / "out.safetensors", "--mode", mode, "--dtype", dtype], check=True,
                               capture_output=True)
                got = load_file(temp / "out.safetensors")["logits"].astype(np.float64)
                error = np.abs(got - truth).max() / np.abs(truth).max()
                worst[f"{dtype} {mode}" + (" exact angles" if truth is exact else "")] = error
                failed |= not error <= tolerance
            said = subprocess.run([program, "generate", "--model", temp / "model", "--tokens", "--prompt",
                                   json.dumps(ids[:20]), "--max-new-tokens", "40", "--temperature", "0",
                                   "--ignore-eos"], check=True, capture_output=True, text=True).stdout
            same = [int(t) for t in said.split()] == text
            failed |= not same
            print(family, {k: f"{v:.1e}" for k, v in worst.items()}, "greedy text",
                  "is the same" if same else f"differs: {said} {text}")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    recording = commands.add_parser("record")
    recording.add_argument("dir", type=pathlib.Path)
    recording.add_argument("families", nargs="*", choices=[[], *FAMILIES])
    commands.add_parser("check").add_argument("--hysparse", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "record":
        record(arguments.dir, arguments.families)
        return 0
    return int(check(arguments.hysparse))


if __name__ == "__main__":
    sys.exit(main())
