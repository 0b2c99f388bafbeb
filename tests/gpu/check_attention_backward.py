"""Dense attention backward against a float64 reference on the GPU: dq, dk, dv; accumulation, padding, ragged batches, equal bits."""
import itertools
import math

import torch

import hysparse_cuda as hc

EPS = 2.0**-8  # bf16, of values; P and dS are rounded to it once


def reference(batch, q, k, v, d_o, scale):
    """float64 o, lse, dq, dk, dv, and per output the norms that rounding of P, dS, o and the output acts on."""
    n, hq, d = q.shape
    hkv, dv = v.shape[1], v.shape[2]
    r = hq // hkv
    f = dict(dtype=torch.float64, device="cuda")
    o, lse, dq = torch.zeros(n, hq, dv, **f), torch.zeros(n, hq, **f), torch.zeros(n, hq, d, **f)
    dk, dvv = torch.zeros(k.shape[0], hkv, d, **f), torch.zeros(k.shape[0], hkv, dv, **f)
    bq, bk, bv = torch.zeros_like(dq), torch.zeros_like(dk), torch.zeros_like(dvv)
    kv0 = 0
    for s, (count, past) in enumerate(zip(batch.lengths, batch.pasts)):
        a, kl = batch.cu[s], past + count
        ks, vs = k[kv0 : kv0 + kl].double(), v[kv0 : kv0 + kl].double()
        for c in range(0, count, 256):
            e = min(c + 256, count)
            qs, gs = q[a + c : a + e].double().view(e - c, hkv, r, d), d_o[a + c : a + e].double().view(e - c, hkv, r, dv)
            logits = torch.einsum("tgrd,sgd->grts", qs, ks) * scale
            pos = torch.arange(past + c, past + e, device="cuda")
            logits.masked_fill_(torch.arange(kl, device="cuda")[None] > pos[:, None], -math.inf)
            ls = torch.logsumexp(logits, -1)
            p = torch.exp(logits - ls[..., None])
            os = torch.einsum("grts,sgd->grtd", p, vs)
            dp = torch.einsum("tgrd,sgd->grts", gs, vs)
            delta = (os * gs.permute(1, 2, 0, 3)).sum(-1, keepdim=True)
            ds = p * (dp - delta)
            o[a + c : a + e] = os.permute(2, 0, 1, 3).reshape(e - c, hq, dv)
            lse[a + c : a + e] = ls.permute(2, 0, 1).reshape(e - c, hq)
            dq[a + c : a + e] = torch.einsum("grts,sgd->tgrd", ds, ks).reshape(e - c, hq, d) * scale
            dk[kv0 : kv0 + kl] += torch.einsum("grts,tgrd->sgd", ds, qs) * scale
            dvv[kv0 : kv0 + kl] += torch.einsum("grts,tgrd->sgd", p, gs)
            # Squared: independent roundings of each term; o enters delta rounded, the same for a whole row of dS.
            ds2 = (ds.abs() + p * (os.abs() * gs.permute(1, 2, 0, 3).abs()).square().sum(-1, keepdim=True).sqrt()).square()
            bq[a + c : a + e] = torch.einsum("grts,sgd->tgrd", ds2, ks.square()).reshape(e - c, hq, d) * scale**2
            bk[kv0 : kv0 + kl] += torch.einsum("grts,tgrd->sgd", ds2, qs.square()) * scale**2
            bv[kv0 : kv0 + kl] += torch.einsum("grts,tgrd->sgd", p.square(), gs.square())
        kv0 += kl
    return o, lse, dq, dk, dvv, bq.sqrt(), bk.sqrt(), bv.sqrt()


def spread(x, row):
    """The same values in rows of `row` elements: offsets past 2^31 without much work."""
    y = torch.empty(x.shape[0], row, dtype=x.dtype, device="cuda")[:, : x.shape[1] * x.shape[2]].unflatten(1, x.shape[1:])
    return y.copy_(x)


def error(got, want, norm):
    """Largest difference in units of the bound: each output eps of itself (dq is bf16), eps of the norm of its terms, six sigma."""
    bound = EPS * (want.abs() + 6 * norm) + 1e-6
    return ((got.double() - want).abs() / bound).max().item()


def case(name, lengths, hq, hkv, d, dv, pasts=None, magnitude=1.0, repeats=2, empty=False, row=0):
    torch.manual_seed(len(lengths) * 7919 + hq * 31 + d + sum(lengths))
    batch = hc.Batch(lengths, pasts, None if not pasts else list(itertools.accumulate([0] + [a + b for a, b in zip(lengths, pasts)]))[:-1])
    n = sum(lengths)
    rows = n + sum(pasts or [])
    q = torch.randn(n, hq, d, device="cuda").mul_(magnitude).bfloat16()
    # Rows behind the last sequence are there and hold NaN: nothing may read them into a result.
    k = torch.full((rows + 64, hkv, d), float("nan"), device="cuda", dtype=torch.bfloat16)
    v = torch.full((rows + 64, hkv, dv), float("nan"), device="cuda", dtype=torch.bfloat16)
    k[:rows] = torch.randn(rows, hkv, d, device="cuda").mul_(magnitude)
    v[:rows] = torch.randn(rows, hkv, dv, device="cuda")
    d_o = torch.randn(n, hq, dv, device="cuda").bfloat16()
    scale = d**-0.5
    clean = torch.arange(rows + 64, device="cuda") < rows
    o, lse, dq, dk, dvv, bq, bk, bv = reference(batch, q, torch.where(clean[:, None, None], k, 0), torch.where(clean[:, None, None], v, 0), d_o, scale)
    o, lse = o.bfloat16(), lse.float()
    if empty:  # rows that see nothing: lse -inf, and o holds what must not matter
        gone = torch.arange(n, device="cuda") % 3 == 1
        lse[gone], o[gone] = -math.inf, float("nan")
        none = torch.where(gone[:, None, None], 0, d_o)
        _, _, dq, dk, dvv, bq, bk, bv = reference(batch, q, torch.where(clean[:, None, None], k, 0), torch.where(clean[:, None, None], v, 0), none, scale)
    bad, seen = [], []
    for deterministic in (False, True):
        first = None
        for i in range(repeats if deterministic else 1):
            wide = {"dq": spread(q, row), "dk": spread(k.float(), row)} if row else {}
            call = hc.AttentionBackward(batch, spread(q, row) if row else q, k, v, scale, o, lse, d_o, deterministic, **wide)
            call.dq.fill_(float("nan"))
            call.dk.fill_(float("nan"))[:rows] = 0.5  # what lies behind the sequences stays
            call.dv.fill_(float("nan"))[:rows] = -0.25
            call.workspace.fill_(255)
            call.run()
            torch.cuda.synchronize()
            got = (call.dq, call.dk, call.dv)
            if i == 0:
                first = [x.clone() for x in got]
                e = (error(got[0], dq, bq), error(got[1][:rows] - 0.5, dk[:rows], bk[:rows]), error(got[2][:rows] + 0.25, dvv[:rows], bv[:rows]))
                seen.append("{:.2f} {:.2f} {:.2f}".format(*e))
                mode = "det " if deterministic else ""
                bad += [mode + x for x, y in zip(("dq", "dk", "dv"), e) if not y < 1]
                if not all(bool(x[rows:].isnan().all()) for x in got[1:]): bad.append(mode + "rows behind")
            elif not all(torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0)) for x, y in zip(first, got)):
                bad.append(f"bits differ in run {i}")
                break
    print(f"{'FAIL ' + ', '.join(bad) if bad else 'ok'} backward {name}: dq dk dv error/bound {seen[0]}; deterministic {seen[1]}", flush=True)
    return not bad


def run():
    """One bool a case."""
    results = []
    for d, dv in ((128, 128), (64, 64), (96, 96), (192, 128), (256, 256)):
        for n in (1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 193, 1000):
            if d == 128 or n in (17, 129, 193, 1000):
                results.append(case(f"d{d}/{dv} T{n}", [n], 8, 2, d, dv))
    for r in (1, 2, 3, 4, 7, 8, 16):
        results.append(case(f"R{r}", [333, 128, 1, 65, 300], 2 * r, 2, 128, 128))
    results.append(case("R3 d64", [333, 128, 1, 65, 300], 6, 2, 64, 64))
    results.append(case("R7 d192/128", [333, 128, 1, 65, 300], 14, 2, 192, 128))
    results.append(case("past", [100, 1, 300], 8, 2, 128, 128, pasts=[200, 64, 77]))
    results.append(case("past d64", [100, 1, 300], 8, 2, 64, 64, pasts=[200, 64, 77]))
    results.append(case("large logits", [1000], 8, 2, 128, 128, magnitude=30.0))
    results.append(case("rows that see nothing", [500], 8, 2, 128, 128, empty=True))
    row = (1 << 31) // 1000 // 8 * 8 + 64  # 1064 of them: past 2^31 elements, 20 GB in all
    if torch.cuda.get_device_properties(0).total_memory < 40 << 30:
        row = 1 << 16
    results.append(case(f"rows of {row}", [1000], 8, 2, 128, 128, row=row))
    for d, dv in ((128, 128), (64, 64), (96, 96), (192, 128), (256, 256)):
        results.append(case(f"long d{d}/{dv}", [4096, 700], 8, 2, d, dv, repeats=10))
    return results
