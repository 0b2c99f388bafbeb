"""Block-sparse attention against a float64 reference on the GPU: o and lse, sinks, ragged batches, padding, every block size."""
import itertools
import math

import torch

import hysparse_cuda as hc


def random_indices(batch, hkv, block, entries, empty_rows=False):
    """Uniform over each token's causal blocks, ascending, -1 behind."""
    rows = []
    for count, past in zip(batch.lengths, batch.pasts):
        pos = torch.arange(past, past + count, device="cuda")
        blocks = (past + count + block - 1) // block
        score = torch.rand(count, hkv, blocks, device="cuda")
        score.masked_fill_(torch.arange(blocks, device="cuda")[None, None] > (pos // block)[:, None, None], -1)
        top = torch.topk(score, min(entries, blocks), -1)
        idx = torch.where(top.values < 0, 1 << 30, top.indices)
        idx = torch.sort(idx, -1).values
        idx = torch.where(idx == 1 << 30, -1, idx)
        rows.append(torch.nn.functional.pad(idx, (0, entries - idx.shape[-1]), value=-1))
    idx = torch.cat(rows).int().contiguous()
    if empty_rows:
        idx[::7] = -1
    return idx


def local_indices(batch, hkv, block, entries, run=16):
    """Neighbouring tokens share most blocks: block 0, the diagonal, and a set that changes slowly."""
    rows = []
    for count, past in zip(batch.lengths, batch.pasts):
        pos = torch.arange(past, past + count, device="cuda")
        last = pos // block
        base = torch.rand((count + run - 1) // run, hkv, entries, device="cuda").repeat_interleave(run, 0)[:count]
        jitter = torch.rand(count, hkv, entries, device="cuda") < 0.012
        base = torch.where(jitter, torch.rand(count, hkv, entries, device="cuda"), base)
        idx = (base * (last[:, None, None] + 1)).long().clamp_max(last[:, None, None])
        idx[..., 0] = 0
        idx[..., 1] = last[:, None]
        idx = torch.sort(idx, -1).values
        repeat = torch.zeros_like(idx, dtype=torch.bool)
        repeat[..., 1:] = idx[..., 1:] == idx[..., :-1]
        idx = torch.sort(torch.where(repeat, 1 << 30, idx), -1).values
        rows.append(torch.where(idx == 1 << 30, -1, idx))
    return torch.cat(rows).int().contiguous()


def reference(batch, q, k, v, idx, block, scale, sinks):
    n, hq, _ = q.shape
    hkv, dv = v.shape[1], v.shape[2]
    r = hq // hkv
    o = torch.zeros(n, hq, dv, dtype=torch.float64, device="cuda")
    lse = torch.zeros(n, hq, dtype=torch.float64, device="cuda")
    kv0 = 0
    for s, (count, past) in enumerate(zip(batch.lengths, batch.pasts)):
        a, kl = batch.cu[s], past + count
        for c in range(0, count, 512):
            e = min(c + 512, count)
            qs = q[a + c : a + e].double().view(e - c, hkv, r, -1)
            ks, vs = k[kv0 : kv0 + kl].double(), v[kv0 : kv0 + kl].double()
            logits = torch.einsum("tgrd,sgd->gtrs", qs, ks) * scale
            pos = torch.arange(past + c, past + e, device="cuda")
            blocks = (kl + block - 1) // block
            chosen = torch.zeros(e - c, hkv, blocks + 1, dtype=torch.bool, device="cuda")
            ii = idx[a + c : a + e].long()
            chosen.scatter_(2, torch.where(ii < 0, blocks, ii), True)
            see = chosen[..., :blocks].repeat_interleave(block, -1)[..., :kl].permute(1, 0, 2)
            see = see & (torch.arange(kl, device="cuda")[None, None] <= pos[None, :, None])
            logits.masked_fill_(~see[:, :, None], -math.inf)
            sink = sinks.double().view(hkv, 1, r) if sinks is not None else torch.full((hkv, 1, r), -math.inf, device="cuda").double()
            ls = torch.logaddexp(torch.logsumexp(logits, -1), sink.expand(hkv, e - c, r))
            p = torch.exp(logits - ls[..., None]).nan_to_num(0.0)
            o[a + c : a + e] = torch.einsum("gtrs,sgd->tgrd", p, vs).reshape(e - c, hq, dv)
            lse[a + c : a + e] = ls.permute(1, 0, 2).reshape(e - c, hq)
        kv0 += kl
    return o, lse


def case(name, lengths, hq, hkv, d, dv, block, entries, pasts=None, sink=True, empty=False, magnitude=1.0, indices=random_indices):
    torch.manual_seed(hq * 31 + d + block + sum(lengths))
    starts = None if not pasts else list(itertools.accumulate([0] + [a + b for a, b in zip(lengths, pasts)]))[:-1]
    batch = hc.Batch(lengths, pasts, starts)
    n, rows = sum(lengths), sum(lengths) + sum(pasts or [])
    q = torch.randn(n, hq, d, device="cuda").mul_(magnitude).bfloat16()
    k = torch.full((rows + 64, hkv, d), float("nan"), device="cuda", dtype=torch.bfloat16)
    v = torch.full((rows + 64, hkv, dv), float("nan"), device="cuda", dtype=torch.bfloat16)
    k[:rows] = torch.randn(rows, hkv, d, device="cuda").mul_(magnitude)
    v[:rows] = torch.randn(rows, hkv, dv, device="cuda")
    sinks = torch.randn(hq, device="cuda") if sink else None
    if sink:
        sinks[0] = -math.inf
    idx = indices(batch, hkv, block, entries)
    if empty:
        idx[::7] = -1
    call = hc.SparseAttention(hc.Selection(batch, idx, hq, block), q, k, v, d**-0.5, sinks)
    call.run()
    first = call.o.clone()
    call.run()
    torch.cuda.synchronize()
    o, lse = reference(batch, q, k, v, idx, block, d**-0.5, sinks)
    e_o = (call.o.double() - o).abs().max().item()
    fin = torch.isfinite(lse)
    e_l = (call.lse.double() - lse)[fin].abs().max().item()
    good = e_o < 0.02 and e_l < 2e-4 * max(1, magnitude**2) and torch.equal(torch.isfinite(call.lse), fin) and torch.equal(first, call.o)
    print(f"{'ok' if good else 'FAIL'} sparse {name}: o {e_o:.1e} lse {e_l:.1e}", flush=True)
    return good


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
    results.append(case("large logits", [1000], 8, 2, 128, 128, 64, 4, magnitude=30.0))
    results.append(case("all blocks", [900], 8, 2, 128, 128, 64, 64))
    results.append(case("local", [4096], 8, 2, 128, 128, 64, 16, indices=local_indices))
    return results
