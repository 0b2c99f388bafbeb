"""The grouped products of mixture of experts at sizes of real layers, against torch in float64 on sampled experts; and the router and tables."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../python"))

import torch

import hysparse_cuda_experts as he


def said(ok, what):
    print(("ok " if ok else "FAILED ") + what, flush=True)
    return ok


def normal(*shape, scale=1.0, dtype=torch.bfloat16):
    return (torch.randn(*shape, device="cuda") * scale).to(dtype)


def routed(n, experts, k, skew):
    logits = torch.randn(n, experts, device="cuda") + skew * torch.linspace(1, -1, experts, device="cuda")
    chosen, weights = he.route(logits, torch.zeros(experts, device="cuda"), k)
    return logits, chosen, weights


def router_agrees(n, experts, k, skew):
    """Scores rounded to few values: many ties, which go to the lower expert."""
    logits, chosen, weights = routed(n, experts, k, skew)
    for values in (logits, (logits * 4).round() / 4):
        chosen, weights = he.route(values, torch.zeros(experts, device="cuda"), k)
        s = torch.sigmoid(values)
        order = torch.sort(s, dim=1, descending=True, stable=True).indices[:, :k].sort(dim=1).values
        picked = s.gather(1, order)
        same = (order == chosen).all(dim=1)
        # Where the sigmoids of torch and ours round differently a near-tie may fall otherwise.
        lost = s.gather(1, chosen.long()).sum(1)
        close = ((picked.sum(1) - lost).abs() < 1e-5).all().item()
        share = same.float().mean().item()
        mine = s.gather(1, chosen.long())
        error = (weights - mine / mine.sum(1, keepdim=True)).abs().max().item()
        if not (close and share > 0.999 and error < 1e-6):
            return said(False, f"router {n} x {experts}, {k}: {share:.5f} the same, weights off by {error:.1e}")
    tables = he.Tables(chosen, experts)
    expected = torch.sort(chosen.flatten().long(), stable=True)
    ok = torch.equal(tables.source.long(), expected.indices)
    counts = torch.bincount(chosen.flatten().long(), minlength=experts)
    ok = ok and torch.equal(tables.offset[1:].long(), counts.cumsum(0)) and tables.offset[0].item() == 0
    inverse = torch.empty_like(tables.source)
    inverse[tables.source.long()] = torch.arange(inverse.numel(), device="cuda", dtype=torch.int32)
    ok = ok and torch.equal(tables.slot.flatten(), inverse)
    return said(ok, f"router and tables, {n} tokens, {k} of {experts} experts, skew {skew}")


def off(got, expected, bound):
    """Largest error over bound; NaN and infinity count."""
    e = ((got.double() - expected).abs() / bound).max().item() if got.numel() else 0.0
    return e if e == e else float("inf")


def products_agree(n, experts, k, hidden, f, skew, narrow):
    _, chosen, _ = routed(n, experts, k, skew)
    t = he.Tables(chosen, experts)
    rows = n * k
    x, dy1, dy2 = normal(rows, hidden), normal(rows, f), normal(rows, f)
    w = normal(experts, 3, f, hidden, scale=0.02)
    gate, up = w[:, 0], w[:, 1]
    nan = float("nan")
    blank = lambda *shape: torch.full(shape, nan, device="cuda", dtype=torch.bfloat16)
    y, y1, y2, dx, dx2 = blank(rows, f), blank(rows, f), blank(rows, f), blank(rows, hidden), blank(rows, hidden)
    grads = torch.randn(experts, 3, f, hidden, device="cuda").to(torch.bfloat16 if narrow else torch.float32)
    before = grads.clone()
    he.linear(x, t, gate, y)
    he.linear_pair(x, t, gate, up, y1, y2)
    he.linear_dx(dy1, t, gate, dx)
    he.linear_pair_dx(dy1, dy2, t, gate, up, dx2)
    accumulated = dx.clone()
    he.linear_dx(dy2, t, up, accumulated, accumulate=True)
    he.linear_dw(dy1, x, t, grads[:, 1])
    again = before.clone()
    he.linear_dw(dy1, x, t, again[:, 1])
    ok = torch.equal(grads, again) and torch.equal(y, y1) and torch.equal(grads[:, 0], before[:, 0]) and torch.equal(grads[:, 2], before[:, 2])
    offset = t.offset.tolist()
    worst = {}
    busy = [e for e in range(experts) if offset[e + 1] > offset[e]]
    for e in sorted(set([busy[0], busy[-1], max(busy, key=lambda e: offset[e + 1] - offset[e])] + busy[:: max(1, len(busy) // 12)])):
        r = slice(offset[e], offset[e + 1])
        xe, d1, d2, ge, ue = (z.double() for z in (x[r], dy1[r], dy2[r], gate[e], up[e]))
        step = 2.0**-8  # of the result's rounding, and a few f32 steps of the sum's terms
        for name, got, expected, terms in (("y", y[r], xe @ ge.T, xe.abs() @ ge.abs().T), ("y2", y2[r], xe @ ue.T, xe.abs() @ ue.abs().T),
                                           ("dx", dx[r], d1 @ ge, d1.abs() @ ge.abs()), ("dx2", dx2[r], d1 @ ge + d2 @ ue, d1.abs() @ ge.abs())):
            worst[name] = max(worst.get(name, 0.0), off(got, expected, step * expected.abs() + 1e-5 * terms + 1e-6))
        both = d1 @ ge + d2 @ ue
        worst["dx +="] = max(worst.get("dx +=", 0.0), off(accumulated[r], both, 2 * step * (both.abs() + (d1 @ ge).abs() + (d2 @ ue).abs()) + 1e-4))
        total = before[e, 1].double() + d1.T @ xe
        worst["dw"] = max(worst.get("dw", 0.0), off(grads[e, 1], total, (step * total.abs() if narrow else 0) + 1e-5 * (d1.abs().T @ xe.abs()) + 1e-6))
    idle = [e for e in range(experts) if offset[e + 1] == offset[e]]
    ok = ok and all(torch.equal(grads[e], before[e]) for e in idle[:16])
    worst = {a: round(b, 3) for a, b in worst.items()}
    return said(ok and max(worst.values()) <= 1, f"products, {n} tokens, {k} of {experts}, {hidden} -> {f}, skew {skew}, {'bf16' if narrow else 'f32'} gradients: {worst}, {len(idle)} idle")


def run():
    torch.manual_seed(1)
    results = []
    for n, experts, k, skew in ((1, 512, 8, 0.0), (33, 512, 8, 0.0), (5000, 512, 8, 2.0), (777, 48, 6, 0.0), (300, 1000, 16, 1.0), (70000, 64, 2, 4.0)):
        results.append(router_agrees(n, experts, k, skew))
    for n, experts, k, hidden, f, skew, narrow in (
        (1, 512, 8, 2048, 512, 0.0, False), (8, 512, 8, 2048, 512, 0.0, True), (9, 512, 8, 2048, 512, 0.0, False), (200, 512, 8, 2048, 512, 0.0, False),
        (4096, 512, 8, 2048, 512, 0.0, False), (4096, 512, 8, 2048, 512, 8.0, True), (8192, 64, 8, 1024, 768, 1.0, False),
        (1000, 16, 2, 264, 1096, 3.0, True), (3000, 4, 1, 72, 40, 20.0, False), (511, 7, 3, 2048, 8, 0.0, False), (20000, 8, 2, 512, 2048, 0.0, False)):
        results.append(products_agree(n, experts, k, hidden, f, skew, narrow))
    return results


if __name__ == "__main__":
    sys.exit(0 if all(run()) else 1)
