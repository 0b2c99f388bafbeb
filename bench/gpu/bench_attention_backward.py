"""Backward times of the dense attention beside cuDNN's on the same tensors, in turns (a chip under load slows down), caches flushed,
medians; and the bf16 matrix product that bounds both."""
import json
import sys

import torch
from bench_attention import median_ms
from torch.nn.attention import SDPBackend, sdpa_kernel

import hysparse_cuda as hc

SHAPES = ((4, 8192, 32, 8, 128, 128), (1, 32768, 32, 8, 128, 128), (1, 32768, 64, 4, 128, 128), (1, 32768, 64, 4, 192, 128),
          (1, 32768, 32, 8, 64, 64), (1, 32768, 32, 8, 96, 96), (1, 16384, 32, 8, 256, 256))


def medians_ms(calls, runs, warm=1):
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    times = {key: [] for key in calls}
    for run in range(warm + runs):
        for key, fn in calls.items():
            flush.zero_()
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            fn()
            b.record()
            torch.cuda.synchronize()
            if run >= warm:
                times[key].append(a.elapsed_time(b))
    return {key: sorted(x)[len(x) // 2] for key, x in times.items()}


def ceiling_tf():
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / median_ms(lambda: a @ b) / 1e9


def measure(bsz, t, hq, hkv, d, dv, ceiling, runs=7):
    q = torch.randn(bsz * t, hq, d, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(bsz * t, hkv, d, device="cuda", dtype=torch.bfloat16)
    v = torch.randn(bsz * t, hkv, dv, device="cuda", dtype=torch.bfloat16)
    d_o = torch.randn(bsz * t, hq, dv, device="cuda", dtype=torch.bfloat16)
    batch = hc.Batch([t] * bsz)
    out = {"B": bsz, "T": t, "Hq": hq, "Hkv": hkv, "d": d, "dv": dv}
    flops = bsz * hq * t * t * (3 * d + 2 * dv)
    forward = hc.Attention(batch, q, k, v, d**-0.5)
    forward.run()
    calls = {mode: hc.AttentionBackward(batch, q, k, v, d**-0.5, forward.o, forward.lse, d_o, mode == "deterministic").run
             for mode in ("default", "deterministic")}
    sq, sk, sv, so = (x.view(bsz, t, -1, x.shape[-1]).transpose(1, 2) for x in (q, k, v, d_o))
    for x in (sq, sk, sv):
        x.requires_grad_(True)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        y = torch.nn.functional.scaled_dot_product_attention(sq, sk, sv, is_causal=True, enable_gqa=True)
    calls["cudnn"] = lambda: torch.autograd.grad(y, (sq, sk, sv), so, retain_graph=True)
    for key, ms in medians_ms(calls, runs).items():
        out[key + "_ms"] = ms
    for key in ("default", "deterministic", "cudnn"):
        out[key + "_tf"] = flops / out[key + "_ms"] / 1e9
    out["of_ceiling"] = out["default_tf"] / ceiling
    out["default_over_cudnn"] = out["default_ms"] / out["cudnn_ms"]
    out["deterministic_over_cudnn"] = out["deterministic_ms"] / out["cudnn_ms"]
    return out


def main():
    ceiling = ceiling_tf()
    print(f"bf16 product of 8192^3: {ceiling:.0f} TF", flush=True)
    rows = []
    for shape in SHAPES:
        rows.append(measure(*shape, ceiling) | {"ceiling_tf": ceiling})
        print({k: round(x, 3) if isinstance(x, float) else x for k, x in rows[-1].items()}, flush=True)
    if len(sys.argv) > 1:
        json.dump(rows, open(sys.argv[1], "w"), indent=1)


if __name__ == "__main__":
    main()
