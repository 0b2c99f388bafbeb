"""A layer of mixture of experts at the 80B shape (2048 -> 512 experts x 512, 8 active): grouped products beside one dense cuBLAS product of equal FLOPs.

Forward, input gradient and weight gradient, each beside torch's bf16 product [R, 2048] x [2048, 512] (and its gradients) on as many rows, R = 8 tokens, in the
same run, caches flushed, medians. Reading all experts' weights once takes 0.25 ms of the H200's bandwidth a matrix, and adding to f32 gradients 1.0 ms, whatever
the rows: `floor` is what the bytes allow. Then the parts of the whole layer: router, tables, rows to the experts and back.
python3 bench/gpu/bench_experts.py OUT.json [--quick]"""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../../python"), HERE]

import torch

import hysparse_cuda_experts as he
from bench_attention import median_ms

HIDDEN, F, EXPERTS, K = 2048, 512, 512, 8
BANDWIDTH = 4.25e12  # bytes a second that a copy reaches


def normal(*shape, scale=1.0):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * scale


def layer(n, spread, runs, narrow):
    logits = torch.randn(n, EXPERTS, device="cuda") + spread * torch.randn(EXPERTS, device="cuda")
    bias = torch.zeros(EXPERTS, device="cuda")
    chosen, weights = he.route(logits, bias, K)
    t = he.Tables(chosen, EXPERTS)
    counts = t.offset.diff().float()
    rows = n * K
    row = {"tokens": n, "rows": rows, "load_max_over_mean": (counts.max() / counts.mean()).item(), "gradients": "bf16" if narrow else "f32"}
    w = torch.randn(EXPERTS, 3, F, HIDDEN, device="cuda", dtype=torch.bfloat16) * 0.02
    gate, up, down = w[:, 0], w[:, 1], w[:, 2].reshape(EXPERTS, HIDDEN, F)
    tokens, x, h, y = normal(n, HIDDEN), normal(rows, HIDDEN), normal(rows, F), normal(n, HIDDEN)
    g, u, out = normal(rows, F), normal(rows, F), normal(rows, HIDDEN)
    grads = torch.zeros(EXPERTS, F, HIDDEN, device="cuda", dtype=torch.bfloat16 if narrow else torch.float32)
    down_grads = grads.view(EXPERTS, HIDDEN, F)
    flops = 2.0 * rows * HIDDEN * F
    dense_w, dense_down = normal(F, HIDDEN), normal(HIDDEN, F)
    dense = {"up": lambda: torch.matmul(x, dense_w.t(), out=g), "down": lambda: torch.matmul(h, dense_down.t(), out=out),
             "up_dx": lambda: torch.matmul(g, dense_w, out=out), "down_dx": lambda: torch.matmul(out, dense_down, out=g),
             "up_dw": lambda: torch.matmul(g.t(), x), "down_dw": lambda: torch.matmul(out.t(), h)}
    ours = {"up": lambda: he.linear(x, t, up, g), "down": lambda: he.linear(h, t, down, out),
            "up_dx": lambda: he.linear_dx(g, t, up, out), "down_dx": lambda: he.linear_dx(out, t, down, g),
            "up_dw": lambda: he.linear_dw(g, x, t, grads), "down_dw": lambda: he.linear_dw(out, h, t, down_grads)}
    active = (counts > 0).sum().item() * HIDDEN * F
    moved = rows * (HIDDEN + F) * 2
    for name in ours:
        floor = moved + active * (2 * grads.element_size() if name.endswith("dw") else 2)
        a, b = median_ms(ours[name], runs), median_ms(dense[name], runs)
        row[name] = {"ms": a, "tf": flops / a / 1e9, "dense_ms": b, "dense_tf": flops / b / 1e9, "of_dense": b / a, "floor_ms": floor / BANDWIDTH * 1e3,
                     "floor_or_dense_ms": max(floor / BANDWIDTH * 1e3, b)}
        print(f"{n} tokens, load {row['load_max_over_mean']:.2f}, {row['gradients']} gradients, {name}: {a:.3f} ms {row[name]['tf']:.0f} TF, "
              f"dense {b:.3f} ms {row[name]['dense_tf']:.0f} TF: {b / a:.3f} of it; bytes alone {row[name]['floor_ms']:.3f} ms", flush=True)
    row["pair_ms"] = median_ms(lambda: he.linear_pair(x, t, gate, up, g, u), runs)
    row["pair_dx_ms"] = median_ms(lambda: he.linear_pair_dx(g, u, t, gate, up, out), runs)
    parts = {"route": lambda: he.route(logits, bias, K), "tables": t.build, "gather": lambda: he.gather(tokens, t, x), "combine": lambda: he.combine(out, t, y),
             "swiglu": lambda: he.swiglu(g, u, t, weights, h)}
    router = normal(EXPERTS, HIDDEN)
    parts["router product"] = lambda: torch.matmul(tokens, router.t())
    row["parts_ms"] = {name: median_ms(f, runs) for name, f in parts.items()}
    row["forward_ms"] = row["pair_ms"] + row["down"]["ms"] + sum(row["parts_ms"].values())
    moving = sum(row["parts_ms"][p] for p in ("route", "tables", "gather", "combine"))
    row["route_and_permute_share"] = moving / row["forward_ms"]
    print(f"{n} tokens: gate and up {row['pair_ms']:.3f} ms ({2 * flops / row['pair_ms'] / 1e9:.0f} TF), their dx {row['pair_dx_ms']:.3f} ms "
          f"({2 * flops / row['pair_dx_ms'] / 1e9:.0f} TF), layer {row['forward_ms']:.3f} ms, route and permute {row['route_and_permute_share']:.3f} of it: "
          + ", ".join(f"{a} {b:.3f}" for a, b in row["parts_ms"].items()), flush=True)
    return row


def few(n):
    """Decoding: what a step's tokens read of the experts, in a CUDA graph."""
    from bench_decode import graph_us

    layers = 8  # weights that the L2 does not keep from one to the next
    w = [torch.randn(EXPERTS, 3, F, HIDDEN, device="cuda", dtype=torch.bfloat16) * 0.02 for _ in range(layers)]
    calls, read = [], 0
    for one in w:
        chosen, weights = he.route(torch.randn(n, EXPERTS, device="cuda"), torch.zeros(EXPERTS, device="cuda"), K)
        t = he.Tables(chosen, EXPERTS)
        read += (t.offset.diff() > 0).sum().item() * 3 * F * HIDDEN * 2
        x, g, u, out = normal(n * K, HIDDEN), normal(n * K, F), normal(n * K, F), normal(n * K, HIDDEN)
        calls.append(lambda t=t, x=x, g=g, u=u, one=one: he.linear_pair(x, t, one[:, 0], one[:, 1], g, u))
        calls.append(lambda t=t, g=g, out=out, one=one: he.linear(g, t, one[:, 2].reshape(EXPERTS, HIDDEN, F), out))
    us = graph_us(calls) * len(calls) / layers
    row = {"tokens": n, "us_a_layer": us, "tb_s": read / layers / us / 1e6}
    print(f"decode, {n} tokens: products of a layer {us:.1f} us, {row['tb_s']:.2f} TB/s of weights", flush=True)
    return row


def main():
    quick = "--quick" in sys.argv
    rows = {"layer": [], "decode": []}
    for n, spread, narrow in ((8192, 0.0, False), (32768, 0.0, False)) + (() if quick else ((65536, 0.0, False), (8192, 0.0, True), (32768, 0.0, True), (32768, 0.2, True), (65536, 0.0, True))):
        rows["layer"].append(layer(n, spread, 5 if n > 8192 else 9, narrow))
        torch.cuda.empty_cache()
    for n in (1, 2, 4, 8, 16, 32, 64):
        rows["decode"].append(few(n))
    with open(sys.argv[1], "w") as f:
        json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
