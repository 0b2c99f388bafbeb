"""Forward times of the oracle attention beside cuDNN's on the same tensors, caches flushed, medians."""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../../python"), os.path.join(HERE, "../../tests/gpu")]

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import hysparse_cuda as hc


def median_ms(fn, runs=9, warm=2):
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    for _ in range(warm):
        fn()
    times = []
    for _ in range(runs):
        flush.zero_()
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        fn()
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b))
    return sorted(times)[len(times) // 2]


def main():
    rows = []
    for bsz, t, hq, hkv, d, dv in ((4, 8192, 32, 8, 128, 128), (1, 32768, 32, 8, 128, 128), (1, 32768, 64, 4, 128, 128),
                                   (1, 32768, 32, 8, 64, 64), (1, 32768, 64, 4, 192, 128), (1, 131072, 32, 8, 128, 128)):
        q = torch.randn(bsz * t, hq, d, device="cuda", dtype=torch.bfloat16)
        k = torch.randn(bsz * t, hkv, d, device="cuda", dtype=torch.bfloat16)
        v = torch.randn(bsz * t, hkv, dv, device="cuda", dtype=torch.bfloat16)
        batch = hc.Batch([t] * bsz)
        runs = 3 if t > 100000 else 9
        flops = bsz * hq * t * t * (d + dv)
        out = {"B": bsz, "T": t, "Hq": hq, "Hkv": hkv, "d": d, "dv": dv}
        plain = hc.Attention(batch, q, k, v, d**-0.5)
        oracle = hc.Attention(batch, q, k, v, d**-0.5, 64, 16)
        out["plain_ms"] = median_ms(plain.run, runs)
        out["oracle_ms"] = median_ms(oracle.run, runs)
        sq, sk, sv = (x.view(bsz, t, -1, x.shape[-1]).transpose(1, 2) for x in (q, k, v))
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out["cudnn_ms"] = median_ms(lambda: torch.nn.functional.scaled_dot_product_attention(sq, sk, sv, is_causal=True, enable_gqa=True), runs)
        for key in ("plain", "oracle", "cudnn"):
            out[key + "_tf"] = flops / out[key + "_ms"] / 1e9
        out["oracle_over_cudnn"] = out["oracle_ms"] / out["cudnn_ms"]
        rows.append(out)
        print({k: round(x, 3) if isinstance(x, float) else x for k, x in out.items()}, flush=True)
    if len(sys.argv) > 1:
        json.dump(rows, open(sys.argv[1], "w"), indent=1)


if __name__ == "__main__":
    main()
