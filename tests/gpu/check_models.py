"""Whole models on the GPU through the program: paths against the float64 reference, training against the CPU, resume, generation, refusals.

Needs the program: HYSPARSE, else build/bin/hysparse."""
import json
import os
import struct
import subprocess
import tempfile

import torch

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
PROGRAM = os.environ.get("HYSPARSE", os.path.join(ROOT, "build/bin/hysparse"))
# Head dim 64, blocks of 64: the fast kernels. The demo's head dim 32 goes to the plain ones.
FAST = {
    "model_type": "hysparse", "num_hidden_layers": 5, "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    "intermediate_size": 512, "vocab_size": 1024, "max_position_embeddings": 4096, "rope_theta": 10000, "tie_word_embeddings": True,
    "attention": "hysparse", "full_attention_interval": 4, "sliding_window": 128, "hysparse_block_size": 64, "hysparse_topk_tokens": 256,
    "train": {"steps": 8, "seq_len": 512, "global_batch_size": 2, "lr": 1e-3, "log_interval": 1, "eval_interval": 0, "checkpoint_interval": 4},
}
# Experts 128 wide, 16 of them, 4 active, one shared: the grouped products for Hopper in bf16.
MOE = dict(FAST, n_routed_experts=16, num_experts_per_tok=4, moe_intermediate_size=128, n_shared_experts=1, first_k_dense_replace=1,
           train=dict(FAST["train"], router_aux_loss_coef=1e-3, router_z_loss_coef=1e-4))


def hysparse(*arguments):
    r = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    return r.returncode, r.stdout + r.stderr


def must(*arguments):
    code, output = hysparse(*arguments)
    if code != 0:
        raise RuntimeError(f"hysparse {' '.join(map(str, arguments))}: code {code}\n{output}")
    return output


def safetensors(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    kinds = {"F32": torch.float32, "F64": torch.float64, "I32": torch.int32, "BF16": torch.bfloat16}
    return {name: torch.frombuffer(bytearray(data[slice(*e["data_offsets"])]), dtype=kinds[e["dtype"]]).view(e["shape"])
            for name, e in header.items() if name != "__metadata__"}


def said(ok, what):
    print(("ok " if ok else "FAILED ") + what, flush=True)
    return ok


class Folder:
    def __init__(self, path, name, config):
        self.path, self.name = path, name
        self.config, self.data = f"{path}/{name}.json", f"{path}/data-{name}"
        with open(self.config, "w") as f:
            json.dump(config, f)
        texts = [os.path.join(ROOT, "data/en", x) for x in sorted(os.listdir(os.path.join(ROOT, "data/en")))[:2]]
        must("tokenizer", "train", "--input", *texts, "--vocab-size", config["vocab_size"], "--out", f"{path}/tok-{name}")
        must("data", "prepare", "--tokenizer", f"{path}/tok-{name}", "--input", *texts, "--out", self.data)

    def train(self, out, *more):
        must("train", "--config", self.config, "--data", self.data, "--out", f"{self.path}/{self.name}-{out}", *more)
        with open(f"{self.path}/{self.name}-{out}/log.jsonl") as f:
                self.log = [x for x in map(json.loads, f) if x["kind"] == "train"]
        return [x["loss"] for x in self.log]

    def model(self, out):
        return f"{self.path}/{self.name}-{out}/model"


def losses_agree(f):
    cpu, gpu, narrow = f.train("cpu"), f.train("gpu", "--device", "cuda"), f.train("bf16", "--device", "cuda", "--dtype", "bf16")
    worst = max(abs(a - b) for a, b in zip(cpu, gpu))
    loose = max(abs(a - b) for a, b in zip(cpu, narrow))
    return said(len(cpu) == len(gpu) and worst < 2e-3 and loose < 0.1, f"{f.name}: losses of 8 steps, f32 on the GPU within {worst:.1e} of the CPU's, bf16 within {loose:.1e}")


def resume_is_exact(f, *settings):
    flags = ["--device", "cuda", "--dtype", "bf16", "--deterministic", *settings]
    runs = [f"whole{len(settings)}", f"parts{len(settings)}"]
    f.train(runs[0], *flags)
    f.train(runs[1], *flags, "--set", "train.steps=4")
    f.train(runs[1], *flags, "--resume")
    whole, parts = (open(f"{f.model(run)}/model.safetensors", "rb").read() for run in runs)
    return said(whole == parts, f"{f.name}: resume is bit-exact {' '.join(settings)}")


def paths_agree(f, dtype, tolerance):
    """Training forward, prefill, chunks and decode against the float64 training forward, its selections pinned."""
    tokens, reference = f"{f.path}/{f.name}-ids.json", f"{f.path}/{f.name}-ref.safetensors"
    if not os.path.exists(reference):
        with open(tokens, "w") as out:
            json.dump([(i * 7919 + i * i) % f_vocab(f) for i in range(600)], out)
        must("logits", "--model", f.model("cpu"), "--tokens", tokens, "--out", reference, "--dtype", "f64", "--layers")
    expected = safetensors(reference)
    worst, overlap = 0.0, []
    for mode in (["train"], ["prefill"], ["chunked", "--chunk", "100"], ["decode"]):
        out = f"{f.path}/{f.name}-out.safetensors"
        common = ["logits", "--model", f.model("cpu"), "--tokens", tokens, "--out", out, "--device", "cuda", "--dtype", dtype, "--mode", *mode]
        must(*common, "--selection", reference)
        logits = safetensors(out)["logits"].double()
        worst = max(worst, ((logits - expected["logits"].double()).abs().max() / expected["logits"].double().abs().max()).item())
        must(*common, "--layers")
        free = safetensors(out)
        for name in expected:
            if name.startswith("selection."):
                a, b = free[name], expected[name]
                overlap.append(((a[..., :, None] == b[..., None, :]) & (b[..., None, :] >= 0)).any(-2).sum().item() / (b >= 0).sum().item())
    least = min(overlap)
    return said(worst < tolerance and least > (0.999 if dtype == "f32" else 0.9),
                f"{f.name} {dtype}: four paths within {worst:.1e} of the reference's largest logit; selections agree to {least:.4f}")


def loads_agree(f):
    """What the training log says of the experts, CPU and GPU."""
    f.train("cpu-log")
    cpu = f.log
    f.train("gpu-log", "--device", "cuda")
    worst = 0.0
    for a, b in zip(cpu, f.log):
        for name in ("expert_load_max", "expert_load_entropy", "router_entropy", "router_balance_loss", "router_z_loss"):
            worst = max([worst] + [abs(x - y) / max(1.0, abs(x)) for x, y in zip(a[name], b[name]) if x is not None])
    return said(len(cpu) == len(f.log) > 0 and worst < 1e-2, f"{f.name}: loads, entropies and losses of the router within {worst:.1e} of the CPU's")


def f_vocab(f):
    with open(f.config) as c:
        return json.load(c)["vocab_size"]


def generation_agrees(f):
    flags = ["generate", "--model", f.model("cpu"), "--prompt", "It is a truth universally", "--max-new-tokens", "40", "--temperature", "0"]
    return said(must(*flags) == must(*flags, "--device", "cuda"), f"{f.name}: greedy text equals the CPU's")


def refused(expected, *arguments):
    code, output = hysparse(*arguments)
    return said(code == 2 and expected in output, f"refused with '{expected}'")


def run_experts(path):
    results = []
    moe = Folder(path, "moe", MOE)
    with open(os.path.join(ROOT, "configs/demo-moe.json")) as f:
        demo = json.load(f)
    demo["train"] = dict(FAST["train"], seq_len=256)
    plain = Folder(path, "plain-moe", demo)
    results.append(losses_agree(moe))
    results.append(losses_agree(plain))
    results.append(loads_agree(moe))
    results.append(resume_is_exact(moe))
    results.append(resume_is_exact(moe, "--set", "train.state_dtype=bf16", "--set", "train.recompute=layer"))
    results.append(paths_agree(moe, "f32", 1e-3))
    results.append(generation_agrees(moe))
    results.append(generation_agrees(plain))
    return results


def run():
    results = []
    with tempfile.TemporaryDirectory() as path:
        fast = Folder(path, "fast", FAST)
        with open(os.path.join(ROOT, "configs/demo.json")) as f:
            demo = json.load(f)
        demo["train"] = dict(FAST["train"], seq_len=256)
        plain = Folder(path, "plain", demo)
        results.append(losses_agree(fast))
        results.append(losses_agree(plain))
        results += run_experts(path)
        results.append(resume_is_exact(fast))
        results.append(resume_is_exact(fast, "--set", "train.state_dtype=bf16", "--set", "train.recompute=layer"))
        results.append(paths_agree(fast, "f32", 1e-4))
        results.append(paths_agree(fast, "bf16", 4e-2))
        results.append(paths_agree(plain, "f32", 1e-4))
        results.append(paths_agree(plain, "bf16", 0.15))
        results.append(generation_agrees(fast))
        results.append(generation_agrees(plain))
        results.append(refused("train.recompute=", "bench", "train", "--config", os.path.join(ROOT, "configs/hysparse-7b.json"), "--device", "cuda",
                               "--dtype", "bf16", "--set", "train.recompute=none", "--set", "train.global_batch_size=2", "--set", "train.micro_batch_size=2"))
        results.append(refused("f64 is the reference on the CPU", "generate", "--model", fast.model("cpu"), "--prompt", "a", "--device", "cuda", "--dtype", "f64"))
    return results


if __name__ == "__main__":
    import sys

    sys.exit(0 if all(run()) else 1)
