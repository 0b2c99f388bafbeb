"""A sparse layer besides its sparse forward: block-sparse backward and window attention; peers in the same run."""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../../python"), os.path.join(HERE, "../../tests/gpu")]

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import hysparse_cuda as hc
import hysparse_cuda_layer as hl
from bench_attention import median_ms
from bench_sparse import scattered_indices
from check_sparse import local_indices

MATMUL_TF, COPY_TB = 779.0, 4.25  # ceilings measured on this chip


def show(row):
    print({key: round(x, 3) if isinstance(x, float) else x for key, x in row.items()}, flush=True)
    return row


def normal(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def sparse(shapes, peer):
    rows = []
    for t, hq, hkv, d in shapes:
        block, entries = 64, 16
        q, k, v, d_o = normal(t, hq, d), normal(t, hkv, d), normal(t, hkv, d), normal(t, hq, d)
        batch = hc.Batch([t])
        for name in ("random", "local"):
            idx = scattered_indices(t, hkv, block, entries) if name == "random" else local_indices(batch, hkv, block, entries)
            selection = hc.Selection(batch, idx, hq, block, backward=True)
            forward = hc.SparseAttention(selection, q, k, v, d**-0.5)
            forward.run()
            call = hl.SparseBackward(forward, d_o)
            ms = median_ms(call.run, 5)
            tf = (idx >= 0).sum().item() * block * (hq // hkv) * 10 * d / ms / 1e9
            rows.append(show({"op": "sparse backward", "T": t, "Hq": hq, "Hkv": hkv, "d": d, "indices": name, "ms": ms, "useful_tf": tf,
                              "of_matmul": tf / MATMUL_TF, "prep_ms": median_ms(selection.build, 5), "workspace_gb": call.workspace.numel() / 1e9}))
            del call, forward, selection
        if peer and t <= 32768 and d == 128:
            sq, sk, sv = (x.view(1, t, -1, d).transpose(1, 2).detach().requires_grad_() for x in (q, k, v))
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                o = torch.nn.functional.scaled_dot_product_attention(sq, sk, sv, is_causal=True, enable_gqa=True)
                g = d_o.view(1, t, -1, d).transpose(1, 2)
                ms = median_ms(lambda: torch.autograd.grad(o, (sq, sk, sv), g, retain_graph=True), 3)
            rows.append(show({"op": "dense backward (cuDNN)", "T": t, "Hq": hq, "Hkv": hkv, "d": d, "ms": ms}))
    return rows


def window(peer):
    b, t, hq, hkv, d, w = 4, 8192, 32, 8, 128, 128
    n = b * t
    q, k, v, d_o = normal(n, hq, d), normal(n, hkv, d), normal(n, hkv, d), normal(n, hq, d)
    batch = hc.Batch([t] * b)
    forward = hl.WindowAttention(batch, q, k, v, w, d**-0.5, torch.zeros(hq, device="cuda"))
    forward.run()
    call = hl.WindowBackward(forward, d_o)
    row = {"op": "window", "B": b, "T": t, "Hq": hq, "Hkv": hkv, "d": d, "window": w}
    row["forward_ms"], row["backward_ms"] = median_ms(forward.run, 9), median_ms(call.run, 9)
    row["forward_floor_ms"] = n * (2 * hq + 2 * hkv) * d * 2 / COPY_TB / 1e9
    delta = (forward.o.float() * d_o.float()).sum(-1)
    given = hl.WindowBackward(forward, d_o, delta=delta)
    row["backward_given_delta_ms"] = median_ms(given.run, 9)
    if peer:
        try:
            from torch.nn.attention.flex_attention import create_block_mask, flex_attention

            mask = create_block_mask(lambda _b, _h, i, j: (i >= j) & (i - j < w), None, None, t, t, device="cuda")
            flex = torch.compile(flex_attention, dynamic=False)
            sq, sk, sv = (x.view(b, t, -1, d).transpose(1, 2).detach().requires_grad_() for x in (q, k, v))
            run = lambda: flex(sq, sk, sv, block_mask=mask, enable_gqa=True)
            o = run()
            g = d_o.view(b, t, -1, d).transpose(1, 2)
            with torch.no_grad():
                row["flex_forward_ms"] = median_ms(run, 9)
            row["flex_backward_ms"] = median_ms(lambda: torch.autograd.grad(o, (sq, sk, sv), g, retain_graph=True), 9)
        except Exception as e:  # the peer needs a working compiler on this machine
            print("  no FlexAttention here:", str(e).splitlines()[0][:200])
    return [show(row)]


def main():
    quick = "quick" in sys.argv
    shapes = [(32768, 32, 8, 128), (32768, 64, 4, 128)]
    if not quick:
        shapes += [(8192, 32, 8, 128), (32768, 32, 8, 64), (131072, 32, 8, 128)]
    rows = window(peer=not quick) + sparse(shapes, peer=not quick)
    files = [x for x in sys.argv[1:] if x.endswith(".json")]
    if files:
        json.dump(rows, open(files[0], "w"), indent=1)


if __name__ == "__main__":
    main()
