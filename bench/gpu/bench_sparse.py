"""Block-sparse forward: times on random and local indices, the union each tile walks, and dense cuDNN beside it."""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../../python"), os.path.join(HERE, "../../tests/gpu")]

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import hysparse_cuda as hc
from bench_attention import median_ms
from check_sparse import local_indices, random_indices


def scattered_indices(t, hkv, block, entries):
    """Uniform draws, repeats dropped: what random_indices gives, without ranking every block."""
    idx = (torch.rand(t, hkv, entries, device="cuda") * (torch.arange(t, device="cuda") // block + 1)[:, None, None]).int()
    idx = torch.sort(idx, -1).values
    idx[..., 1:][idx[..., 1:] == idx[..., :-1]] = 1 << 30
    idx = torch.sort(idx, -1).values
    return torch.where(idx == 1 << 30, -1, idx).contiguous()


def main():
    rows = []
    for t, hq, hkv in ((8192, 32, 8), (32768, 32, 8), (32768, 64, 4), (131072, 32, 8)):
        d, block, entries = 128, 64, 16
        q = torch.randn(t, hq, d, device="cuda", dtype=torch.bfloat16)
        k = torch.randn(t, hkv, d, device="cuda", dtype=torch.bfloat16)
        v = torch.randn(t, hkv, d, device="cuda", dtype=torch.bfloat16)
        batch = hc.Batch([t])
        for name, make in (("random", random_indices), ("local", local_indices)):
            if name == "random" and t > 100000:
                idx = scattered_indices(t, hkv, block, entries)
            else:
                idx = make(batch, hkv, block, entries)
            sel = hc.Selection(batch, idx, hq, block)
            call = hc.SparseAttention(sel, q, k, v, d**-0.5)
            ms = median_ms(call.run, 5)
            prep = median_ms(sel.build, 5)
            pairs = (idx >= 0).sum().item()
            flops = pairs * block * (hq // hkv) * 4 * d
            out = {"T": t, "Hq": hq, "Hkv": hkv, "indices": name, "ms": ms, "prep_ms": prep, "useful_tf": flops / ms / 1e9}
            rows.append(out)
            print({a: round(b, 3) if isinstance(b, float) else b for a, b in out.items()}, flush=True)
        if t <= 32768:
            sq, sk, sv = (x.view(1, t, -1, d).transpose(1, 2) for x in (q, k, v))
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                dense = median_ms(lambda: torch.nn.functional.scaled_dot_product_attention(sq, sk, sv, is_causal=True, enable_gqa=True), 5)
            print(f"  cuDNN dense {dense:.3f} ms", flush=True)
    if len(sys.argv) > 1:
        json.dump(rows, open(sys.argv[1], "w"), indent=1)


if __name__ == "__main__":
    main()
