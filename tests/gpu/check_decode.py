"""Decode attention against a float64 reference: full layers over pages with scores and indices, sparse layers in one launch."""
import math

import torch

import hysparse_cuda as hc
import hysparse_cuda_decode as hd
from check_attention import expected_indices


def make_pages(lengths, hkv, d, dv, page):
    """Sequences spread over shuffled pages; everything beyond a sequence's end is NaN."""
    need = [(n + page - 1) // page for n in lengths]
    total = sum(need) + 3
    order = torch.randperm(total)[: sum(need)].int()
    table = torch.full((len(lengths), max(need) + 1), 1 << 28, dtype=torch.int32)
    k = torch.full((total, page, hkv, d), float("nan"), dtype=torch.bfloat16, device="cuda")
    v = torch.full((total, page, hkv, dv), float("nan"), dtype=torch.bfloat16, device="cuda")
    ks, vs, at = [], [], 0
    for b, n in enumerate(lengths):
        table[b, : need[b]] = order[at : at + need[b]]
        kk = torch.randn(n, hkv, d, device="cuda").bfloat16()
        vv = torch.randn(n, hkv, dv, device="cuda").bfloat16()
        for i in range(need[b]):
            rows = min(page, n - i * page)
            k[order[at + i], :rows] = kk[i * page : i * page + rows]
            v[order[at + i], :rows] = vv[i * page : i * page + rows]
        at += need[b]
        ks.append(kk)
        vs.append(vv)
    return k, v, table.cuda(), ks, vs


def to_codes(k, v, table, ks, vs, code):
    """The same in 8 bits; ks and vs become what codes and scales say."""
    k8, v8 = hd.in_8_bits(k, v, code)
    wide = [k8.wide(0), v8.wide(1)]
    page = k.shape[1]
    for b in range(len(ks)):
        n = ks[b].shape[0]
        at = table[b, : (n + page - 1) // page].long()
        ks[b], vs[b] = (w[at].flatten(0, 1)[:n] for w in wide)
    return k8, v8


def softmax(q, k, v, scale, sink=None):
    """q [Hq, d], k, v [n, Hkv, dim] -> o [Hq, dv], logits [Hkv, R, n], lse [Hq]; float64."""
    hq, hkv = q.shape[0], k.shape[1]
    logits = torch.einsum("grd,sgd->grs", q.double().view(hkv, hq // hkv, -1), k.double()) * scale
    full = logits if sink is None else torch.cat([logits, sink.double().view(hkv, -1, 1)], -1)
    if full.shape[-1] == 0:
        return torch.zeros(hq, v.shape[2], dtype=torch.float64, device="cuda"), logits, None
    lse = torch.logsumexp(full, -1)
    p = torch.exp(logits - lse[..., None]).nan_to_num(0.0)
    return torch.einsum("grs,sgd->grd", p, v.double()).reshape(hq, -1), logits, lse.reshape(hq)


def full_case(name, lengths, hq, hkv, d, dv, page=64, block=64, entries=16, first=False, diagonal=False, spare=100, code=None):
    torch.manual_seed(hq + d + page + len(lengths))
    k, v, table, ks, vs = make_pages(lengths, hkv, d, dv, page)
    if code:
        k, v = to_codes(k, v, table, ks, vs, code)
        name += f" {code}"
    q = torch.randn(len(lengths), hq, d, device="cuda").mul_(2).bfloat16()
    kv_len = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    longest = max(lengths) + spare
    call = hd.DecodeFull(q, k, v, table, kv_len, longest, d**-0.5, block, entries, True, first, diagonal)
    call.run()
    plain = hd.DecodeFull(q, k, v, table, kv_len, longest, d**-0.5)
    plain.run()
    alone = hd.DecodeFull(q[-1:], k, v, table[-1:], kv_len[-1:], max(lengths), d**-0.5, block, entries, True, first, diagonal)
    alone.run()
    torch.cuda.synchronize()
    bad, e_o, e_l, e_s = [], 0.0, 0.0, 0.0
    score = torch.full_like(call.scores, -math.inf, dtype=torch.float64)
    for b, n in enumerate(lengths):
        o, logits, lse = softmax(q[b], ks[b], vs[b], d**-0.5)
        norm = logits - lse.view(hkv, -1, 1)
        blocks = (n + block - 1) // block
        norm = torch.nn.functional.pad(norm, (0, blocks * block - n), value=-math.inf).view(hkv, hq // hkv, blocks, block)
        score[b, :, :blocks] = norm.amax(-1).amax(1)
        e_o = max(e_o, (call.o[b].double() - o).abs().max().item())
        e_l = max(e_l, (call.lse[b].double() - lse).abs().max().item())
    fin = torch.isfinite(score)
    e_s = (call.scores.double() - score)[fin].abs().max().item()
    if not e_o < 0.02: bad.append("o")
    if not e_l < 2e-4: bad.append("lse")
    if not e_s < 4e-4: bad.append("scores")
    if not torch.equal(torch.isfinite(call.scores), fin): bad.append("-inf")
    forced = call.scores.clone()
    for b, n in enumerate(lengths):
        if diagonal: forced[b, :, (n - 1) // block] = 1e30
        if first: forced[b, :, 0] = 2e30
    if not torch.equal(call.idx, expected_indices(forced, None, block, entries)): bad.append("idx")
    if not torch.equal(plain.o, call.o) or not torch.equal(plain.lse, call.lse): bad.append("plain != scored")
    if not torch.equal(alone.o[0], call.o[-1]) or not torch.equal(alone.idx[0], call.idx[-1]): bad.append("batch changes result")
    print(f"{'FAIL ' + ','.join(bad) if bad else 'ok'} decode full {name}: o {e_o:.1e} lse {e_l:.1e} score {e_s:.1e}", flush=True)
    return not bad


def sparse_case(name, lengths, hq, hkv, d, dv, page=64, block=64, entries=16, window=128, ring=128, fresh=True, sinks=True, channels=False, gates=True, code=None):
    """ring 0: the window reads the shared K and V; window 0 or entries 0: without that branch."""
    torch.manual_seed(hq + d + page + len(lengths) + block)
    k, v, table, ks, vs = make_pages(lengths, hkv, d, dv, page)
    if code:
        k, v = to_codes(k, v, table, ks, vs, code)
        name += f" {code}"
    n_seq = len(lengths)
    q = torch.randn(n_seq, hq, d, device="cuda").mul_(2).bfloat16()
    kv_len = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    idx = torch.full((n_seq, hkv, max(entries, 1)), -1, dtype=torch.int32)
    for b, n in enumerate(lengths):
        blocks = (n + block - 1) // block
        for g in range(hkv):
            chosen = torch.randperm(blocks)[: max(0, min(entries, blocks) - (b % 2))].sort().values.int()
            idx[b, g, : len(chosen)] = chosen
    idx = idx.cuda() if entries else None
    sink = [torch.randn(hq, device="cuda") if sinks else None for _ in range(2)]
    if sinks: sink[0][0] = -math.inf
    width = hq * dv if channels else hq
    gate = [torch.randn(n_seq, width, device="cuda") if gates else None for _ in range(2)]
    rk = rv = slot = fk = fv = None
    wk, wv = ks, vs
    if window and ring:
        slots = n_seq + 2
        slot = torch.randperm(slots)[:n_seq].int().cuda()
        rk = torch.full((slots, ring, hkv, d), float("nan"), dtype=torch.bfloat16, device="cuda")
        rv = torch.full((slots, ring, hkv, dv), float("nan"), dtype=torch.bfloat16, device="cuda")
        wk = [torch.randn(n, hkv, d, device="cuda").bfloat16() for n in lengths]
        wv = [torch.randn(n, hkv, dv, device="cuda").bfloat16() for n in lengths]
        if fresh:
            fk, fv = torch.stack([x[-1] for x in wk]), torch.stack([x[-1] for x in wv])
        for b, n in enumerate(lengths):
            committed = n - 1 if fresh else n
            at = torch.arange(max(0, committed - ring), committed, device="cuda")
            rk[slot[b].item(), at % ring] = wk[b][at]
            rv[slot[b].item(), at % ring] = wv[b][at]
    call = hd.DecodeSparse(q, k, v, table, kv_len, d**-0.5, idx, block, sink[0], window, rk, rv, slot, fk, fv, sink[1], gate[0], gate[1], channels)
    call.run()
    torch.cuda.synchronize()
    e = 0.0
    for b, n in enumerate(lengths):
        y = torch.zeros(hq, dv, dtype=torch.float64, device="cuda")
        scale = [torch.sigmoid(x[b].double()).view(hq, -1) if gates else torch.ones(hq, 1, dtype=torch.float64, device="cuda") for x in gate]
        if entries:
            r = hq // hkv
            for g in range(hkv):
                chosen = idx[b, g][idx[b, g] >= 0].long()
                at = (chosen[:, None] * block + torch.arange(block, device="cuda")).flatten()
                at = at[at < n]
                heads = slice(g * r, (g + 1) * r)
                o, _, _ = softmax(q[b, heads], ks[b][at, g : g + 1], vs[b][at, g : g + 1], d**-0.5, sink[0][heads] if sinks else None)
                y[heads] += scale[0][heads] * o
        if window:
            lo = max(0, n - window)
            o, _, _ = softmax(q[b], wk[b][lo:], wv[b][lo:], d**-0.5, sink[1])
            y += scale[1] * o
        e = max(e, (call.out[b].double() - y).abs().max().item())
    ok = e < 0.03
    print(f"{'ok' if ok else 'FAIL'} decode sparse {name}: out {e:.1e}", flush=True)
    return ok


def idle_slots():
    """Slots of length 0, as a graph captured for a larger batch has them."""
    k, v, table, _, _ = make_pages([65, 1, 300], 2, 128, 128, 64)
    q = torch.randn(3, 8, 128, device="cuda").bfloat16()
    kv_len = torch.tensor([0, 1, 0], dtype=torch.int32, device="cuda")
    full = hd.DecodeFull(q, k, v, table, kv_len, 300, 0.1, 64, 4, True)
    full.run()
    sparse = hd.DecodeSparse(q, k, v, table, kv_len, 0.1, full.idx, 64, window=128)
    sparse.run()
    torch.cuda.synchronize()
    ok = all(bool((x[[0, 2]] == 0).all()) and bool(x[1].isfinite().all()) for x in (full.o, sparse.out))
    ok = ok and bool((full.idx[[0, 2]] == -1).all()) and full.idx[1, 0].tolist() == [0, -1, -1, -1] and bool(torch.isneginf(full.scores[[0, 2]]).all())
    print(f"{'ok' if ok else 'FAIL'} decode idle slots", flush=True)
    return ok


def graph_with_growing_lengths():
    """One captured graph serves later steps: lengths and page tables are read when it runs."""
    lengths = [130, 513]
    k, v, table, ks, vs = make_pages(lengths, 2, 128, 128, 64)
    q = torch.randn(2, 8, 128, device="cuda").bfloat16()
    kv_len = torch.tensor([100, 200], dtype=torch.int32, device="cuda")
    call = hd.DecodeFull(q, k, v, table, kv_len, 1024, 0.1, 64, 4)
    call.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call.run()
    kv_len.copy_(torch.tensor(lengths, dtype=torch.int32))
    graph.replay()
    torch.cuda.synchronize()
    e = max((call.o[b].double() - softmax(q[b], ks[b], vs[b], 0.1)[0]).abs().max().item() for b in range(2))
    print(f"{'ok' if e < 0.02 else 'FAIL'} decode graph: o {e:.1e}", flush=True)
    return e < 0.02


def run():
    """One bool a case."""
    results = []
    for d, dv in ((128, 128), (64, 64), (96, 96), (192, 128), (256, 256), (40, 24)):
        results.append(full_case(f"d{d}/{dv}", [1, 2, 15, 63, 64, 65, 129, 511, 512, 513, 1000, 4097], 8, 2, d, dv))
        results.append(sparse_case(f"d{d}/{dv}", [1, 2, 15, 63, 64, 65, 129, 300, 1000, 4097], 8, 2, d, dv))
    for r in (1, 2, 3, 4, 7, 8, 16):
        results.append(full_case(f"R{r}", [700, 33], 2 * r, 2, 128, 128))
        results.append(sparse_case(f"R{r}", [700, 33], 2 * r, 2, 128, 128))
    for block in (16, 32, 64, 128):
        results.append(full_case(f"block {block}", [700, 1, 2000], 8, 2, 128, 128, page=128, block=block, entries=5))
    results.append(full_case("forced", [5000, 3, 700], 8, 2, 128, 128, entries=3, first=True, diagonal=True))
    results.append(full_case("long", [70000], 8, 2, 64, 64, block=16, entries=64))
    results.append(full_case("many entries", [9000], 8, 2, 64, 64, block=16, entries=512))
    results.append(full_case("batch 256", [17 * i % 900 + 1 for i in range(256)], 4, 1, 128, 128))
    results.append(full_case("page 48", [700, 100], 8, 2, 128, 128, page=48))
    for block, entries in ((16, 64), (32, 7), (128, 64), (1, 2048), (3, 100)):
        results.append(sparse_case(f"block {block} x {entries}", [9000, 700, 5], 8, 2, 128, 128, page=96 if block == 3 else 128, block=block, entries=entries))
    results.append(sparse_case("no window", [700, 64, 1], 8, 2, 128, 128, window=0))
    results.append(sparse_case("window alone", [700, 64, 1], 8, 2, 128, 128, entries=0, gates=False))
    results.append(sparse_case("shared window", [700, 64, 1], 8, 2, 128, 128, ring=0))
    results.append(sparse_case("ring holds all", [700, 64, 1], 8, 2, 128, 128, fresh=False))
    results.append(sparse_case("longer ring, window 300", [700, 64, 301], 8, 2, 128, 128, window=300, ring=333))
    results.append(sparse_case("no sinks, channel gates", [700, 64, 1], 8, 2, 128, 128, sinks=False, channels=True))
    results.append(sparse_case("batch 256", [17 * i % 900 + 1 for i in range(256)], 4, 1, 128, 128))
    for code in ("int8", "fp8"):
        for d, dv in ((128, 128), (64, 64), (96, 96), (192, 128), (48, 32)):
            results.append(full_case(f"d{d}/{dv}", [1, 2, 15, 63, 64, 65, 129, 511, 512, 513, 1000, 4097], 8, 2, d, dv, code=code))
            results.append(sparse_case(f"d{d}/{dv}", [1, 2, 15, 63, 64, 65, 129, 300, 1000, 4097], 8, 2, d, dv, code=code))
        for r in (1, 7, 16):
            results.append(full_case(f"R{r}", [700, 33], 2 * r, 2, 128, 128, code=code))
            results.append(sparse_case(f"R{r}", [700, 33], 2 * r, 2, 128, 128, code=code))
        results.append(full_case("long", [70000], 8, 2, 64, 64, block=16, entries=64, code=code))
        results.append(full_case("page 48", [700, 100], 8, 2, 128, 128, page=48, code=code))
        results.append(full_case("batch 256", [17 * i % 900 + 1 for i in range(256)], 4, 1, 128, 128, code=code))
        results.append(sparse_case("block 3 x 100", [9000, 700, 5], 8, 2, 128, 128, page=96, block=3, entries=100, code=code))
        results.append(sparse_case("no window", [700, 64, 1], 8, 2, 128, 128, window=0, code=code))
        results.append(sparse_case("shared window", [700, 64, 1], 8, 2, 128, 128, ring=0, code=code))
    results.append(idle_slots())
    results.append(graph_with_growing_lengths())
    return results


if __name__ == "__main__":
    import sys

    sys.exit(0 if all(run()) else 1)
