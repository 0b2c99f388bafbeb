"""Sparse backward and window attention forward and backward against float64 references on the GPU."""
import itertools
import math

import torch

import hysparse_cuda as hc
import hysparse_cuda_layer as hl
from check_sparse import local_indices, random_indices

EPS = 2.0**-8  # of bf16


def selected(batch, idx, block):
    """mask(first, last row of a sequence, its number): [Hkv, rows, keys] of what the selection shows, causal or not."""

    def mask(a, count, keys, s):
        blocks = (keys + block - 1) // block
        ii = idx[a : a + count].long()
        chosen = torch.zeros(count, idx.shape[1], blocks + 1, dtype=torch.bool, device="cuda")
        chosen.scatter_(2, torch.where(ii < 0, blocks, ii), True)
        return chosen[..., :blocks].repeat_interleave(block, -1)[..., :keys].permute(1, 0, 2)

    return mask


def reference(batch, q, k, v, scale, sinks, d_o, mask, window=None):
    """float64 o, lse, dq, dk, dv, dsinks."""
    n, hq, _ = q.shape
    hkv = v.shape[1]
    r = hq // hkv
    new = lambda *shape: torch.zeros(*shape, dtype=torch.float64, device="cuda")
    o, lse, dq, dk, dv, ds_sum = new(n, hq, v.shape[2]), new(n, hq), new(*q.shape), new(*k.shape), new(*v.shape), new(hq)
    sink = sinks.double().view(hkv, 1, r) if sinks is not None else torch.full((hkv, 1, r), -math.inf, device="cuda").double()
    kv0, chunk = 0, 256
    for s, (count, past) in enumerate(zip(batch.lengths, batch.pasts)):
        keys = past + count
        ks, vs = k[kv0 : kv0 + keys].double(), v[kv0 : kv0 + keys].double()
        for c in range(0, count, chunk):
            a, m = batch.cu[s] + c, min(chunk, count - c)
            qs, gs = (x[a : a + m].double().view(m, hkv, r, -1) for x in (q, d_o))
            pos = torch.arange(past + c, past + c + m, device="cuda")
            at = torch.arange(keys, device="cuda")
            see = at[None] <= pos[:, None]
            if window is not None:
                see = see & (at[None] > pos[:, None] - window)
            see = see[None]
            if mask is not None:
                see = see & mask(a, m, keys, s)
            logits = (torch.einsum("tgrd,sgd->gtrs", qs, ks) * scale).masked_fill_(~see[:, :, None], -math.inf)
            ls = torch.logaddexp(torch.logsumexp(logits, -1), sink.expand(hkv, m, r))
            p = torch.exp(logits - ls[..., None]).nan_to_num(0.0)
            out = torch.einsum("gtrs,sgd->gtrd", p, vs)
            g = gs.permute(1, 0, 2, 3)
            delta = (out * g).sum(-1)
            ds = p * (torch.einsum("gtrd,sgd->gtrs", g, vs) - delta[..., None])
            o[a : a + m] = out.permute(1, 0, 2, 3).reshape(m, hq, -1)
            lse[a : a + m] = ls.permute(1, 0, 2).reshape(m, hq)
            dq[a : a + m] = torch.einsum("gtrs,sgd->tgrd", ds, ks).reshape(m, hq, -1) * scale
            dk[kv0 : kv0 + keys] += torch.einsum("gtrs,tgrd->sgd", ds, qs) * scale
            dv[kv0 : kv0 + keys] += torch.einsum("gtrs,gtrd->sgd", p, g)
            ds_sum -= (torch.exp(sink - ls).nan_to_num(0.0) * delta).sum(1).reshape(hq)
        kv0 += keys
    return o, lse, dq, dk, dv, ds_sum


def distance(x, ref):
    """Of the whole, and of the worst row against the largest row."""
    x, ref = x.double().flatten(0, -2), ref.flatten(0, -2)
    if not torch.isfinite(x).all():
        return math.inf, math.inf
    rows = (x - ref).norm(dim=-1)
    top = ref.norm(dim=-1).max().item()
    return (x - ref).norm().item() / max(ref.norm().item(), 1e-30), rows.max().item() / max(top, 1e-30)


def case(name, lengths, hq, hkv, d, dv, block=64, entries=4, window=None, pasts=None, sink=True, empty=False, magnitude=1.0,
         indices=random_indices, runs=2):
    torch.manual_seed(hq * 31 + d + block + sum(lengths))
    starts = None if not pasts else list(itertools.accumulate([0] + [a + b for a, b in zip(lengths, pasts)]))[:-1]
    batch = hc.Batch(lengths, pasts, starts)
    n, rows = sum(lengths), sum(lengths) + sum(pasts or [])
    scale = d**-0.5
    q = torch.randn(n, hq, d, device="cuda").mul_(magnitude).bfloat16()
    # Rows behind the last sequence are there and hold NaN: nothing may read them into a result.
    k = torch.full((rows + 64, hkv, d), float("nan"), device="cuda", dtype=torch.bfloat16)
    v = torch.full((rows + 64, hkv, dv), float("nan"), device="cuda", dtype=torch.bfloat16)
    k[:rows] = torch.randn(rows, hkv, d, device="cuda").mul_(magnitude)
    v[:rows] = torch.randn(rows, hkv, dv, device="cuda")
    d_o = torch.randn(n, hq, dv, device="cuda").bfloat16()
    sinks = torch.randn(hq, device="cuda") if sink else None
    if sink:
        sinks[0] = -math.inf
    if window is None:
        idx = indices(batch, hkv, block, entries)
        if empty:
            idx[::7] = -1
            idx[1::7, :, 0] = -1
        forward = hc.SparseAttention(hc.Selection(batch, idx, hq, block, backward=True), q, k, v, scale, sinks)
        mask = selected(batch, idx, block)
    else:
        forward = hl.WindowAttention(batch, q, k, v, window, scale, sinks)
        mask = None
    forward.run()
    dk0 = torch.randn(rows + 64, hkv, d, device="cuda")
    dv0 = torch.randn(rows + 64, hkv, dv, device="cuda")
    ds0 = torch.randn(hq, device="cuda") if sink else None
    make = hl.SparseBackward if window is None else hl.WindowBackward
    results = []
    for i in range(runs):
        call = make(forward, d_o, dk0.clone(), dv0.clone(), ds0.clone() if sink else None)
        call.run()
        if i == 0 or i == runs - 1:
            results.append([x.clone() for x in (call.dq, call.dk, call.dv) + ((call.dsinks,) if sink else ())])
        elif not all(torch.equal(x, y) for x, y in zip(results[0], (call.dq, call.dk, call.dv))):
            results.append([x * math.nan for x in results[0]])
            break
    torch.cuda.synchronize()
    bad = []
    if not all(torch.equal(x, y) for x, y in zip(results[0], results[-1])):
        bad.append("runs differ")
    o, lse, dq, dk, dv_, ds = reference(batch, q, torch.nan_to_num(k), torch.nan_to_num(v), scale, sinks, d_o, mask, window)
    # delta carries the rounding of o, which the nearly one-hot rows of large logits leave uncancelled.
    limit = 2 * EPS * max(1.0, magnitude)
    got = results[0]
    pairs = {"o": (forward.o, o), "dq": (got[0], dq), "dk": (got[1].double() - dk0.double(), dk), "dv": (got[2].double() - dv0.double(), dv_)}
    errors = {key: distance(*x) for key, x in pairs.items()}
    for key, (whole, row) in errors.items():
        if not (whole < limit and row < 2 * limit):
            bad.append(key)
    if not torch.equal(got[1][rows:], dk0[rows:]) or not torch.equal(got[2][rows:], dv0[rows:]):
        bad.append("rows behind the last key")
    untouched = dv_.abs().amax(-1) == 0
    if not torch.equal(got[1][untouched], dk0[untouched]) or not torch.equal(got[2][untouched], dv0[untouched]):
        bad.append("rows of blocks nobody chose")
    fin = torch.isfinite(lse)
    if not ((forward.lse.double() - lse)[fin].abs().max().item() if fin.any() else 0) < 2e-4 * max(1, magnitude**2):
        bad.append("lse")
    e_s = 0.0
    if sink:
        # Each term is off by the rounding of o: sum over tokens of |p_sink| eps |o| |dO|.
        e_s = (got[3].double() - ds0.double() - ds).abs().max().item()
        if not e_s < 4 * EPS * (n * dv) ** 0.5 * max(1.0, math.log(n)):
            bad.append("dsinks")
    text = " ".join(f"{key} {whole:.1e}/{row:.1e}" for key, (whole, row) in errors.items())
    kind = "sparse" if window is None else f"window {window}"
    print(f"{'FAIL ' + ','.join(bad) if bad else 'ok'} {kind} backward {name}: {text} dsinks {e_s:.1e}", flush=True)
    return not bad


def small():
    """A few shapes that take every path; for the sanitizer."""
    results = []
    results.append(case("small", [130, 1, 63], 8, 2, 128, 128, 64, 2))
    results.append(case("small R7", [70], 7, 1, 64, 64, 16, 3))
    results.append(case("small 256", [100], 2, 1, 256, 256, 128, 1))
    results.append(case("small window", [200], 4, 1, 128, 128, window=128))
    return results


def run():
    """One bool a case."""
    results = []
    for n in (1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 193, 1000):
        results.append(case(f"T{n}", [n], 8, 2, 128, 128, 64, 2))
    for r in (1, 2, 3, 4, 7, 8, 16):
        results.append(case(f"R{r}", [333, 128, 1, 65, 300], 2 * r, 2, 128, 128, 64, 3))
    for d, dv in ((64, 64), (96, 96), (192, 128), (256, 256)):
        results.append(case(f"d{d}/{dv}", [700, 1, 63], 8, 2, d, dv, 64, 4))
    for block in (16, 32, 64, 128):
        for e in (1, 16, 64):
            results.append(case(f"block {block} x {e}", [1100, 1, 63], 8, 2, 128, 128, block, e))
    results.append(case("past", [100, 1, 300], 8, 2, 128, 128, 64, 4, pasts=[200, 64, 77]))
    results.append(case("no sink, empty rows", [500], 8, 2, 128, 128, 64, 4, sink=False, empty=True))
    results.append(case("sink, empty rows", [500], 8, 2, 128, 128, 64, 4, empty=True))
    results.append(case("large logits", [1000], 8, 2, 128, 128, 64, 4, magnitude=16.0))
    results.append(case("all blocks", [900], 8, 2, 128, 128, 64, 64))
    results.append(case("random, ten runs", [4096], 8, 2, 128, 128, 64, 16, runs=10))
    results.append(case("local, ten runs", [4096], 8, 2, 128, 128, 64, 16, indices=local_indices, runs=10))
    results.append(case("passes", [7000, 1500], 16, 1, 64, 64, 64, 16, indices=local_indices))
    for n in (1, 2, 17, 63, 64, 65, 127, 128, 129, 191, 193, 1000):
        results.append(case(f"T{n}", [n], 8, 2, 128, 128, window=128))
    for window in (1, 5, 64, 65, 127, 129, 130, 200, 1000, 5000):
        results.append(case("ragged", [333, 128, 1, 65, 600], 8, 2, 128, 128, window=window))
    for r in (1, 3, 8, 16):
        results.append(case(f"R{r}", [333, 128, 1, 65], 2 * r, 2, 128, 128, window=128))
    results.append(case("R16 past", [100, 1, 300], 16, 1, 64, 64, window=100, pasts=[200, 113, 77]))
    for d, dv in ((64, 64), (96, 96), (192, 128), (256, 256)):
        results.append(case(f"d{d}/{dv}", [700, 1, 63], 8, 2, d, dv, window=128))
    results.append(case("past", [100, 1, 300], 8, 2, 128, 128, window=128, pasts=[200, 64, 77]))
    results.append(case("no sink, ten runs", [4096], 8, 2, 128, 128, window=128, sink=False, runs=10))
    return results


if __name__ == "__main__":
    import sys

    sys.exit(0 if all(small() if "small" in sys.argv else run()) else 1)
