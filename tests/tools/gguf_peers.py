#!/usr/bin/env python3
"""What others make of `hysparse export`: a full-attention model is made, exported in every dtype, and

  gguf_peers.py reader --hysparse PROGRAM    read by the `gguf` package: keys, names, shapes, every value
  gguf_peers.py server --hysparse PROGRAM    run by llama.cpp (`xllamacpp`): token ids, greedy texts, probabilities

Needs numpy and safetensors beside the package named.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from safetensors.numpy import load_file

DTYPES = {"f32": 0.0, "bf16": 2**-8, "f16": 2**-11, "q8_0": 1 / 127}  # the largest error of a value, of its row's largest
SOURCE = pathlib.Path(__file__).resolve().parents[2]
TEXT = "It is a truth universally acknowledged"


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command}: {done.stderr}")
    return done.stdout


def make_model(program, out):
    """A few steps of training, so that one token is likelier than another."""
    run(program, "data", "prepare", "--tokenizer", SOURCE / "models/hysparse-14m", "--input", SOURCE / "data/en/austen-emma.txt", "--out",
        out / "data", "--holdout", "0")
    settings = {"attention": "full", "num_hidden_layers": 3, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4,
                "num_key_value_heads": 2, "head_dim": 32, "vocab_size": json.loads((SOURCE / "models/hysparse-14m/config.json").read_text())["vocab_size"],
                "train.steps": 60, "train.warmup_steps": 5, "train.decay_steps": 0, "train.seq_len": 128, "train.global_batch_size": 4,
                "train.checkpoint_interval": 0, "train.eval_interval": 0, "train.sample_interval": 0}
    run(program, "train", "--config", SOURCE / "configs/demo.json", "--data", out / "data", "--out", out / "run",
        *(x for k, v in settings.items() for x in ("--set", f"{k}={v}")))
    return out / "run" / "model"


def weights_of(model):
    found = {}
    for file in model.glob("*.safetensors"):
        for name, value in load_file(file).items():
            found[name] = np.asarray(value, dtype=np.float32)
    return found


def check_reader(program, model, temp):
    import gguf
    from gguf.quants import dequantize

    ours = weights_of(model)
    config = json.loads((model / "config.json").read_text())
    failed = False
    for dtype, tolerance in DTYPES.items():
        run(program, "export", "--model", model, "--out", temp / f"{dtype}.gguf", "--dtype", dtype)
        reader = gguf.GGUFReader(temp / f"{dtype}.gguf")
        arch = reader.fields["general.architecture"].contents()
        for key, value in (("block_count", "num_hidden_layers"), ("embedding_length", "hidden_size"), ("attention.head_count", "num_attention_heads"),
                           ("attention.head_count_kv", "num_key_value_heads"), ("feed_forward_length", "intermediate_size")):
            failed |= reader.fields[f"{arch}.{key}"].contents() != config[value]
        tokens = reader.fields["tokenizer.ggml.tokens"].contents()
        failed |= len(tokens) != config["vocab_size"]
        # llama.cpp's order of the rows of q and k is a matter of its architecture: sets of values are compared there.
        theirs = {t.name: dequantize(t.data, t.tensor_type).reshape(tuple(reversed(t.shape))) for t in reader.tensors}
        names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
        for i in range(config["num_hidden_layers"]):
            for a, b in (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"), ("self_attn.q_proj", "attn_q"),
                         ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"), ("self_attn.o_proj", "attn_output"),
                         ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"),
                         ("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm")):
                names[f"model.layers.{i}.{a}.weight"] = f"blk.{i}.{b}.weight"
        worst, compared = 0.0, 0
        for name, value in ours.items():
            other = theirs.get(names.get(name, ""))
            if other is None or other.shape != value.shape:
                print(f"{dtype}: {name} is not there as {names.get(name)}")
                failed = True
                continue
            scale = np.abs(value).max(axis=-1, keepdims=True) + 1e-30
            if "q_proj" in name or "k_proj" in name:
                value, other, scale = np.sort(value, axis=0), np.sort(other, axis=0), scale.max()
            worst = max(worst, float((np.abs(value - other) / scale).max()))
            compared += 1
        failed |= not worst <= tolerance or compared != len(theirs)
        print(f"gguf reads {dtype}: {compared} tensors of {len(theirs)}, {len(tokens)} tokens, largest error {worst:.1e} of a row's largest value")
    return failed


def check_server(program, model, temp):
    import xllamacpp

    ids = json.loads(run(program, "tokenizer", "encode", "--tokenizer", model, "--text", TEXT))
    mine = run(program, "generate", "--model", model, "--tokens", "--prompt", json.dumps(ids), "--max-new-tokens", 32, "--temperature", 0,
               "--ignore-eos", "--threads", 1)
    mine = [int(t) for t in mine.split()]
    whole = ids + mine
    (temp / "ids.json").write_text(json.dumps(whole))
    run(program, "logits", "--model", model, "--tokens", temp / "ids.json", "--out", temp / "l.safetensors", "--dtype", "f32", "--threads", 1)
    logits = load_file(temp / "l.safetensors")["logits"].astype(np.float64)
    logprobs = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True)) - logits.max(-1, keepdims=True)
    failed = False
    # Beyond f32 llama.cpp rounds activations too.
    for dtype, tolerance in (("f32", 3e-3), ("bf16", 0.1), ("f16", 0.02), ("q8_0", 0.2)):
        run(program, "export", "--model", model, "--out", temp / f"{dtype}.gguf", "--dtype", dtype)
        params = xllamacpp.CommonParams()
        params.model.path = str(temp / f"{dtype}.gguf")
        params.n_ctx, params.cpuparams.n_threads, params.warmup, params.verbosity = 256, 1, False, -1
        server = xllamacpp.Server(params)
        asked = {"prompt": TEXT, "max_tokens": len(mine), "temperature": 0, "ignore_eos": True, "logprobs": 5, "cache_prompt": False}
        answer = server.handle_completions(asked)
        answer = json.loads(answer) if isinstance(answer, (str, bytes)) else answer
        steps, prompt = answer["choices"][0]["logprobs"]["content"], answer["usage"]["prompt_tokens"]
        same = next((i for i, (a, b) in enumerate(zip(mine, steps)) if a != b["id"]), len(mine))
        worst = max(abs(top["logprob"] - logprobs[len(ids) - 1 + i, top["id"]])
                    for i, step in enumerate(steps[:same + 1]) for top in step["top_logprobs"] if i < len(mine))
        good = prompt == len(ids) and worst <= tolerance and (dtype != "f32" or same == len(mine) == len(steps))
        failed |= not good
        print(f"llama.cpp runs {dtype}: {prompt} ids of the prompt (ours {len(ids)}), greedy equal for {same} of {len(mine)} tokens, "
              f"log-probabilities of the 5 likeliest apart by at most {worst:.1e}{'' if good else ' WRONG'}")
        del server
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=("reader", "server"))
    parser.add_argument("--hysparse", required=True)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as temp:
        temp = pathlib.Path(temp)
        model = make_model(a.hysparse, temp)
        return int((check_reader if a.peer == "reader" else check_server)(a.hysparse, model, temp))


if __name__ == "__main__":
    sys.exit(main())
