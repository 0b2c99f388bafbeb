"""Whole training steps of the 7B shape, optimiser included: ours (HySparse and its full-attention twin, `hysparse bench train`) and the
same full-attention model in PyTorch (torch.compile, cuDNN attention, fused AdamW, weights and states in bf16), one after the other on one GPU.

  python3 bench/gpu/bench_train.py OUT.json [--seq-len 8192] [--recompute none|projections|layer] [--rows 1] [--repeat 5] [--skip-peer]

Needs HYSPARSE (the program; default build/bin/hysparse), HYSPARSE_CUDA_LIBRARY, and torch for the peer."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

CONFIG = os.path.join(os.path.dirname(__file__), "../../configs/hysparse-7b.json")


def ours(a, model_config):
    out = a.out + ".ours"
    command = [
        os.environ.get("HYSPARSE", "build/bin/hysparse"), "bench", "train", "--device", "cuda", "--dtype", "bf16", "--config", model_config,
        "--twin", "--step-profile", "--repeat", str(a.repeat), "--json", out,
        "--set", f"train.seq_len={a.seq_len}", "--set", f"train.global_batch_size={a.rows}", "--set", f"train.micro_batch_size={a.rows}",
        "--set", f"train.recompute={a.recompute}", "--set", "train.state_dtype=bf16",
    ]
    subprocess.run(command, check=True, stdout=sys.stderr)
    with open(out) as f:
        report = json.load(f)
    os.remove(out)
    return {"command": " ".join(["hysparse"] + command[1:]), **report}


def peer(a, c):
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.checkpoint import checkpoint

    hidden, heads, kv_heads, d, ffn = (c[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"))

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            linear = lambda i, o: torch.nn.Linear(i, o, bias=False)
            self.norm1, self.norm2 = torch.nn.RMSNorm(hidden, eps=1e-6), torch.nn.RMSNorm(hidden, eps=1e-6)
            self.qkv = linear(hidden, (heads + 2 * kv_heads) * d)
            self.o = linear(heads * d, hidden)
            self.gate_up, self.down = linear(hidden, 2 * ffn), linear(ffn, hidden)

        def forward(self, x, cos, sin):
            b, t, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, t, heads + 2 * kv_heads, d).split([heads, kv_heads, kv_heads], 2)
            rotate = lambda y: y * cos + torch.cat((-y[..., d // 2:], y[..., : d // 2]), -1) * sin
            q, k, v = rotate(q).transpose(1, 2), rotate(k).transpose(1, 2), v.transpose(1, 2)
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.o(y.transpose(1, 2).reshape(b, t, heads * d))
            gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
            return x + self.down(F.silu(gate) * up)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(c["vocab_size"], hidden)
            self.layers = torch.nn.ModuleList(Layer() for _ in range(c["num_hidden_layers"]))
            self.norm = torch.nn.RMSNorm(hidden, eps=1e-6)
            self.head = torch.nn.Linear(hidden, c["vocab_size"], bias=False)

        def forward(self, tokens, labels, cos, sin):
            x = self.embed(tokens)
            for layer in self.layers:
                x = checkpoint(layer, x, cos, sin, use_reentrant=False) if a.recompute != "none" else layer(x, cos, sin)
            # In chunks of rows, each recomputed in backward: the logits of all rows would not fit beside the rest.
            x, labels = self.norm(x).flatten(0, 1), labels.flatten()
            loss = lambda rows, y: F.cross_entropy(self.head(rows).float(), y, reduction="sum")
            return sum(checkpoint(loss, r, y, use_reentrant=False) for r, y in zip(x.split(2048), labels.split(2048))) / labels.numel()

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Model()
        angle = torch.arange(a.seq_len, dtype=torch.float32)[:, None] * 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)
        cos, sin = (f(angle).repeat(1, 2).bfloat16()[None, :, None] for f in (torch.cos, torch.sin))
        tokens, labels = (torch.randint(c["vocab_size"], (a.rows, a.seq_len)) for _ in range(2))
    for p in model.parameters():
        if p.ndim == 2:
            torch.nn.init.normal_(p, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    compiled = torch.compile(model)

    def step():
        compiled(tokens, labels, cos, sin).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()

    start = time.time()
    step()
    step()
    print(f"peer: two first steps, compilation included: {time.time() - start:.0f} s", file=sys.stderr)
    runs = []
    for _ in range(a.repeat):
        start = time.perf_counter()
        step()
        runs.append(a.rows * a.seq_len / (time.perf_counter() - start))
    return {"torch": torch.__version__, "tokens_per_second": statistics.median(runs), "runs": runs,
            "peak_memory_GB": torch.cuda.max_memory_allocated() / 1e9}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--config", default=CONFIG)
    p.add_argument("--seq-len", type=int, default=8192)
    p.add_argument("--rows", type=int, default=1)
    p.add_argument("--repeat", type=int, default=5)
    p.add_argument("--recompute", choices=["none", "projections", "layer"], default="none")
    p.add_argument("--skip-peer", action="store_true")
    a = p.parse_args()
    result = {"seq_len": a.seq_len, "rows": a.rows, "recompute": a.recompute, "ours": ours(a, a.config)}
    rates = {r["shape"]["attention"]: r for r in result["ours"]["results"] if r["name"] == "train"}
    if not a.skip_peer:
        with open(a.config) as f:
            result["peer"] = peer(a, json.load(f))
    with open(a.out, "w") as f:
        json.dump(result, f, indent=1)
    for name, r in rates.items():
        line = f"T {a.seq_len} x {a.rows}, recompute {a.recompute}: {name} {statistics.median(r['runs']):.0f} tokens/s"
        if "peer" in result:
            line += f", {statistics.median(r['runs']) / result['peer']['tokens_per_second']:.2f} of PyTorch's {result['peer']['tokens_per_second']:.0f}"
        print(line)


if __name__ == "__main__":
    main()
