"""Decode of full and sparse layers, each measured inside a CUDA graph over caches that do not fit the L2; cuDNN's decode beside it."""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../../python"), os.path.join(HERE, "../../tests/gpu")]

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import hysparse_cuda_decode as hd

PEAK = 4.25e12  # measured copy bandwidth, bytes/s


def graph_us(calls, runs=9):
    """Median time of one call when all are captured one after another; each has memory of its own."""
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for c in calls:
            c()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for c in calls:
            c()
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(runs):
        flush.zero_()
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        graph.replay()
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b) * 1e3 / len(calls))
    return sorted(times)[len(times) // 2]


def paged(batch, length, hkv, d, page=64, shuffled=True):
    n = (length + page - 1) // page
    k = torch.randn(batch * n, page, hkv, d, device="cuda", dtype=torch.bfloat16)
    v = torch.randn(batch * n, page, hkv, d, device="cuda", dtype=torch.bfloat16)
    order = torch.randperm(batch * n, device="cuda") if shuffled else torch.arange(batch * n, device="cuda")
    table = order.int().view(batch, n)
    return k, v, table


def main():
    rows = []
    for batch, length, hq, hkv in ((1, 1024, 32, 8), (1, 8192, 32, 8), (1, 65536, 32, 8), (1, 131072, 32, 8), (16, 32768, 32, 8), (1, 131072, 64, 4), (64, 4096, 32, 8)):
        d = 128
        k, v, table = paged(batch, length, hkv, d)
        q = torch.randn(batch, hq, d, device="cuda", dtype=torch.bfloat16)
        kv_len = torch.full((batch,), length, dtype=torch.int32, device="cuda")
        size = 4 * batch * length * hkv * d
        copies = 1 if size > 100e6 else 8
        out = {"op": "full", "B": batch, "T": length, "Hq": hq, "Hkv": hkv}
        scored = [hd.DecodeFull(q, k, v, table, kv_len, length, d**-0.5, 64, 16)]
        plain = [hd.DecodeFull(q, k, v, table, kv_len, length, d**-0.5)]
        dense = [torch.randn(2, batch, hkv, length, d, device="cuda", dtype=torch.bfloat16)]
        for _ in range(copies - 1):
            kk, vv = k.clone(), v.clone()
            scored.append(hd.DecodeFull(q, kk, vv, table, kv_len, length, d**-0.5, 64, 16))
            plain.append(hd.DecodeFull(q, kk, vv, table, kv_len, length, d**-0.5))
            dense.append(dense[0].clone())
        for code in ("int8", "fp8"):
            k8, v8 = hd.in_8_bits(k, v, code)
            calls = [hd.DecodeFull(q, k8, v8, table, kv_len, length, d**-0.5, 64, 16)]
            for _ in range(copies * 2 - 1):
                kk, vv = (hd.Codes(x.codes.clone(), x.scales.clone()) for x in (k8, v8))
                vv.scales = kk.scales
                calls.append(hd.DecodeFull(q, kk, vv, table, kv_len, length, d**-0.5, 64, 16))
            out[f"{code}_us"] = graph_us([c.run for c in calls])
            del calls, k8, v8
        out["scored_us"] = graph_us([c.run for c in scored])
        out["plain_us"] = graph_us([c.run for c in plain])
        del scored, plain
        try:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                out["cudnn_us"] = graph_us([lambda x=x: torch.nn.functional.scaled_dot_product_attention(q[:, :, None], x[0], x[1], enable_gqa=True) for x in dense])
        except RuntimeError as e:
            print("cudnn:", str(e)[:100])
        del dense
        out["scored_tbs"] = size / out["scored_us"] / 1e6
        out["of_copy"] = size / out["scored_us"] * 1e6 / PEAK
        if "cudnn_us" in out: out["over_cudnn"] = out["scored_us"] / out["cudnn_us"]
        rows.append(out)
        print({k: round(x, 3) if isinstance(x, float) else x for k, x in out.items()}, flush=True)
    for batch, hq, hkv in ((1, 32, 8), (1, 64, 4), (16, 32, 8), (64, 32, 8), (256, 32, 8)):
        d, length = 128, 32768 if batch <= 64 else 8192
        k, v, table = paged(batch, length, hkv, d)
        codes = ("", "int8", "fp8")
        calls = {code: [] for code in codes}
        caches = {code: hd.in_8_bits(k, v, code) if code else (k, v) for code in codes}
        for _ in range(32 if batch == 1 else 4):
            q = torch.randn(batch, hq, d, device="cuda", dtype=torch.bfloat16)
            kv_len = torch.full((batch,), length, dtype=torch.int32, device="cuda")
            idx = torch.stack([torch.randperm(length // 64, device="cuda")[:16].sort().values for _ in range(batch * hkv)]).int().view(batch, hkv, 16)
            rk, rv = (torch.randn(batch, 128, hkv, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            slot = torch.arange(batch, dtype=torch.int32, device="cuda")
            fk, fv = (torch.randn(batch, hkv, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            sinks = torch.zeros(hq, device="cuda")
            gate = torch.zeros(batch, hq, device="cuda")
            for code in codes:
                calls[code].append(hd.DecodeSparse(q, *caches[code], table, kv_len, d**-0.5, idx, 64, sinks, 128, rk, rv, slot, fk, fv, sinks, gate, gate))
        us = graph_us([c.run for c in calls[""]])
        size = batch * hkv * (1024 + 128) * d * 4
        out = {"op": "sparse", "B": batch, "T": length, "Hq": hq, "Hkv": hkv, "us": us, "tbs": size / us / 1e6}
        for code in codes[1:]:
            out[f"{code}_us"] = graph_us([c.run for c in calls[code]])
        rows.append(out)
        print({k: round(x, 3) if isinstance(x, float) else x for k, x in out.items()}, flush=True)
    if len(sys.argv) > 1:
        json.dump(rows, open(sys.argv[1], "w"), indent=1)


if __name__ == "__main__":
    main()
