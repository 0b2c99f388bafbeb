"""Oracle attention against a float64 reference on the GPU: o, lse, scores, indices."""
import itertools
import math

import torch

import hysparse_cuda as hc


def reference(batch, q, k, v, scale, block, rows=None):
    """float64 o, lse, log-scores of the packed rows, sequence by sequence."""
    n, hq, _ = q.shape
    hkv, dv = v.shape[1], v.shape[2]
    r = hq // hkv
    longest = max(a + b for a, b in zip(batch.lengths, batch.pasts))
    blocks = (longest + block - 1) // block
    o = torch.zeros(n, hq, dv, dtype=torch.float64, device="cuda")
    lse = torch.zeros(n, hq, dtype=torch.float64, device="cuda")
    score = torch.full((n, hkv, blocks), -math.inf, dtype=torch.float64, device="cuda")
    kv0 = 0
    for s, (count, past) in enumerate(zip(batch.lengths, batch.pasts)):
        a, kl = batch.cu[s], past + count
        for c in range(0, count, 512):
            e = min(c + 512, count)
            qs = q[a + c : a + e].double()
            ks, vs = k[kv0 : kv0 + kl].double(), v[kv0 : kv0 + kl].double()
            logits = torch.einsum("tgrd,sgd->grts", qs.view(e - c, hkv, r, -1), ks) * scale
            pos = torch.arange(past + c, past + e, device="cuda")
            logits.masked_fill_(torch.arange(kl, device="cuda")[None] > pos[:, None], -math.inf)
            ls = torch.logsumexp(logits, -1)
            p = torch.exp(logits - ls[..., None])
            o[a + c : a + e] = torch.einsum("grts,sgd->tgrd", p, vs).reshape(e - c, hq, dv)
            lse[a + c : a + e] = ls.permute(2, 0, 1).reshape(e - c, hq)
            norm = logits - ls[..., None]
            pad = (-kl) % block
            norm = torch.nn.functional.pad(norm, (0, pad), value=-math.inf).view(hkv, r, e - c, -1, block)
            score[a + c : a + e, :, : (kl + block - 1) // block] = norm.amax(-1).amax(1).permute(1, 0, 2)
        kv0 += kl
    return o, lse, score


def expected_indices(scores, positions, block, entries):
    """Selection by the contract from given scores: larger first, ties to the lower index, ascending, -1 padded."""
    order = torch.argsort(scores, dim=-1, descending=True, stable=True)[..., :entries]
    taken = torch.gather(scores, -1, order)
    big = 1 << 30
    order = torch.where(torch.isneginf(taken), big, order)
    order = torch.sort(order, -1).values
    if order.shape[-1] < entries:
        order = torch.nn.functional.pad(order, (0, entries - order.shape[-1]), value=big)
    return torch.where(order == big, -1, order).int()


def case(name, lengths, hq, hkv, d, dv, block, entries, pasts=None, magnitude=1.0):
    torch.manual_seed(len(lengths) * 7919 + hq * 31 + d + block)
    batch = hc.Batch(lengths, pasts, None if not pasts else list(itertools.accumulate([0] + [a + b for a, b in zip(lengths, pasts)]))[:-1])
    n = sum(lengths)
    rows = n + sum(pasts or [])
    q = torch.randn(n, hq, d, device="cuda").mul_(magnitude).bfloat16()
    # Rows behind the last sequence are there and hold NaN: nothing may read them into a result.
    k = torch.full((rows + 64, hkv, d), float("nan"), device="cuda", dtype=torch.bfloat16)
    v = torch.full((rows + 64, hkv, dv), float("nan"), device="cuda", dtype=torch.bfloat16)
    k[:rows] = torch.randn(rows, hkv, d, device="cuda").mul_(magnitude)
    v[:rows] = torch.randn(rows, hkv, dv, device="cuda")
    scale = d**-0.5
    call = hc.Attention(batch, q, k, v, scale, block, entries, scores=True)
    call.run()
    plain = hc.Attention(batch, q, k, v, scale)
    plain.run()
    torch.cuda.synchronize()
    o, lse, score = reference(batch, q, k, v, scale, block)
    top = max(1.0, magnitude * magnitude)
    bad = []
    e_o = (call.o.double() - o).abs().max().item()
    e_l = (call.lse.double() - lse).abs().max().item()
    fin = torch.isfinite(score)
    e_s = (call.scores.double() - score)[fin].abs().max().item()
    if not e_o < 0.02: bad.append("o")
    if not e_l < 2e-4 * top: bad.append("lse")
    if not e_s < 4e-4 * top: bad.append("scores")
    if not torch.equal(torch.isfinite(call.scores), fin): bad.append("-inf")
    if not torch.equal(call.idx, expected_indices(call.scores, None, block, entries)): bad.append("idx")
    if not torch.equal(plain.o, call.o) or not torch.equal(plain.lse, call.lse): bad.append("plain != scored")
    free = expected_indices(score, None, block, entries)
    differ = (free != call.idx).any(-1)
    print(f"{'FAIL ' + ','.join(bad) if bad else 'ok'} {name}: o {e_o:.1e} lse {e_l:.1e} score {e_s:.1e} rows off f64 {int(differ.sum())}/{differ.numel()}", flush=True)
    return not bad


def run():
    """One bool a case."""
    results = []
    for d, dv in ((128, 128), (64, 64), (96, 96), (192, 128), (256, 256)):
        for n in (1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 193, 1000):
            if d == 128 or n in (17, 129, 1000):
                results.append(case(f"d{d}/{dv} T{n}", [n], 8, 2, d, dv, 64, 4))
    for r in (1, 2, 3, 7, 8, 16):
        results.append(case(f"R{r}", [333, 128, 1, 65, 300], 2 * r, 2, 128, 128, 64, 3))
    for block in (16, 32, 64, 128):
        results.append(case(f"block {block}", [700, 1, 63], 8, 2, 128, 128, block, 16))
    results.append(case("past", [100, 1, 300], 8, 2, 128, 128, 64, 4, pasts=[200, 64, 77]))
    results.append(case("long", [4096], 8, 2, 128, 128, 64, 16))
    results.append(case("large logits", [1000], 8, 2, 128, 128, 64, 4, magnitude=30.0))
    results.append(case("many slices", [40000], 2, 1, 64, 64, 16, 64))
    return results
