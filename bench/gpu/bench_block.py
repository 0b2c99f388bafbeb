"""The attention of a whole HySparse block, one full layer and N sparse ones, beside N + 1 dense layers of cuDNN: forward, backward, decode.

Forward: oracle attention with its selection, the index of the selection, then a sparse layer N times (sparse and window branch, gates). Backward:
the same layers. "oracle": the sparse layers read the indices that the oracle picked from random Q and K, which are as scattered as they can be;
"local": indices that neighbouring tokens mostly share, as in trained models. Layers are equal, so each is timed once and counted N times; the
sums are in the JSON with their parts.  python3 bench/gpu/bench_block.py OUT.json [--quick]"""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../../python"), os.path.join(HERE, "../../tests/gpu")]

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import hysparse_cuda as hc
import hysparse_cuda_decode as hd
import hysparse_cuda_layer as hl
from bench_attention import median_ms
from bench_decode import graph_us, paged
from check_sparse import local_indices

BLOCK, ENTRIES, WINDOW, D = 64, 16, 128, 128


def normal(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def dense(t, hq, hkv, q, k, v, runs):
    sq, sk, sv = (x.view(1, t, -1, D).transpose(1, 2).detach().requires_grad_() for x in (q, k, v))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        call = lambda: torch.nn.functional.scaled_dot_product_attention(sq, sk, sv, is_causal=True, enable_gqa=True)
        forward = median_ms(call, runs)
        o = call()
        g = torch.randn_like(o)
        backward = median_ms(lambda: torch.autograd.grad(o, (sq, sk, sv), g, retain_graph=True), runs)
    return forward, backward


def block(t, hq, hkv, sparse_layers, runs):
    q, k, v, d_o = normal(t, hq, D), normal(t, hkv, D), normal(t, hkv, D), normal(t, hq, D)
    wk, wv = normal(t, hkv, D), normal(t, hkv, D)
    batch, scale = hc.Batch([t]), D**-0.5
    sinks = torch.zeros(hq, device="cuda")
    gates = [torch.randn(t, hq, device="cuda") for _ in range(2)]
    row = {"T": t, "Hq": hq, "Hkv": hkv, "sparse_layers": sparse_layers}
    row["cudnn_forward_ms"], row["cudnn_backward_ms"] = dense(t, hq, hkv, q, k, v, runs)
    oracle = hc.Attention(batch, q, k, v, scale, BLOCK, ENTRIES)
    row["oracle_ms"] = median_ms(oracle.run, runs)
    full_backward = hc.AttentionBackward(batch, q, k, v, scale, oracle.o, oracle.lse, d_o)
    row["full_backward_ms"] = median_ms(full_backward.run, runs)
    del full_backward
    window = hl.WindowAttention(batch, q, wk, wv, WINDOW, scale, sinks)
    row["window_ms"] = median_ms(window.run, runs)
    window_backward = hl.WindowBackward(window, d_o)
    row["window_backward_ms"] = median_ms(window_backward.run, runs)
    del window_backward
    for name in ("oracle", "local"):
        idx = oracle.idx if name == "oracle" else local_indices(batch, hkv, BLOCK, ENTRIES)
        forward_index = hc.Selection(batch, idx, hq, BLOCK)
        index = hc.Selection(batch, idx, hq, BLOCK, backward=True)
        sparse = hc.SparseAttention(index, q, k, v, scale, sinks)
        sparse.run()
        gated = hl.GatedSum(sparse.o, gates[0], window.o, gates[1])
        part = {"index_ms": median_ms(forward_index.build, runs), "index_with_backward_ms": median_ms(index.build, runs),
                "sparse_ms": median_ms(sparse.run, runs), "gates_ms": median_ms(gated.run, runs)}
        gated_backward = hl.GatedSumBackward(gated, d_o)
        part["gates_backward_ms"] = median_ms(gated_backward.run, runs)
        backward = hl.SparseBackward(sparse, d_o)
        part["sparse_backward_ms"] = median_ms(backward.run, runs)
        del backward, gated_backward, gated, sparse, index, forward_index
        n = sparse_layers
        part["forward_ms"] = row["oracle_ms"] + part["index_ms"] + n * (part["sparse_ms"] + row["window_ms"] + part["gates_ms"])
        part["backward_ms"] = row["full_backward_ms"] + n * (part["sparse_backward_ms"] + row["window_backward_ms"] + part["gates_backward_ms"])
        part["forward_speedup"] = (n + 1) * row["cudnn_forward_ms"] / part["forward_ms"]
        part["backward_speedup"] = (n + 1) * row["cudnn_backward_ms"] / part["backward_ms"]
        row[name] = part
        print(f"T {t} heads {hq}/{hkv} 1:{n} {name}: forward {part['forward_speedup']:.2f}x, backward {part['backward_speedup']:.2f}x", flush=True)
    return row


def decode(t, hq, hkv, sparse_layers):
    """All layers of the block in one CUDA graph, each with a cache of its own."""
    scale = D**-0.5
    kv_len = torch.full((1,), t, dtype=torch.int32, device="cuda")
    q = normal(1, hq, D)
    k, v, table = paged(1, t, hkv, D)
    full = hd.DecodeFull(q, k, v, table, kv_len, t, scale, BLOCK, ENTRIES)
    full.run()
    sinks, gate, slot = torch.zeros(hq, device="cuda"), torch.zeros(1, hq, device="cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")
    calls = [full.run]
    keep = []
    for _ in range(sparse_layers):
        rk, rv, fk, fv = normal(1, WINDOW, hkv, D), normal(1, WINDOW, hkv, D), normal(1, hkv, D), normal(1, hkv, D)
        keep.append(hd.DecodeSparse(normal(1, hq, D), k, v, table, kv_len, scale, full.idx, BLOCK, sinks, WINDOW, rk, rv, slot, fk, fv, sinks, gate, gate))
        calls.append(keep[-1].run)
    ours = graph_us(calls) * len(calls)
    layers = [normal(2, 1, hkv, t, D) for _ in range(sparse_layers + 1)]
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        peer = graph_us([lambda x=x: torch.nn.functional.scaled_dot_product_attention(q[:, :, None], x[0], x[1], enable_gqa=True) for x in layers]) * len(layers)
    row = {"T": t, "Hq": hq, "Hkv": hkv, "sparse_layers": sparse_layers, "us": ours, "cudnn_us": peer, "speedup": peer / ours}
    print(f"decode T {t} heads {hq}/{hkv} 1:{sparse_layers}: {ours:.0f} us, cuDNN {peer:.0f} us, {row['speedup']:.2f}x", flush=True)
    return row


def main():
    quick = "--quick" in sys.argv
    rows = {"block": [], "decode": []}
    for t, hq, hkv, n in ((32768, 32, 8, 3), (32768, 64, 4, 11)) + (() if quick else ((131072, 32, 8, 3), (131072, 64, 4, 11))):
        rows["block"].append(block(t, hq, hkv, n, 3))
        torch.cuda.empty_cache()
    for t, hq, hkv, n in ((32768, 32, 8, 3), (32768, 64, 4, 11), (131072, 32, 8, 3), (131072, 64, 4, 11)):
        rows["decode"].append(decode(t, hq, hkv, n))
        torch.cuda.empty_cache()
    with open(sys.argv[1], "w") as f:
        json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
