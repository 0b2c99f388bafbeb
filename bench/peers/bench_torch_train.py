#!/usr/bin/env python3
"""Whole optimiser steps beside PyTorch: the same Llama-shape model, rows, precision and threads, in turn.

PyTorch: eager modules with fused scaled_dot_product_attention, cross_entropy and fused AdamW; bf16 by autocast over f32
weights, as hysparse keeps f32 masters. --compile passes it through torch.compile. Needs torch.
"""
import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

from peers import Comparison, hysparse_bench, report


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, self.d = c["hidden_size"], c["head_dim"]
        self.hq, self.hkv = c["num_attention_heads"], c["num_key_value_heads"]
        self.q = nn.Linear(h, self.hq * self.d, bias=False)
        self.k = nn.Linear(h, self.hkv * self.d, bias=False)
        self.v = nn.Linear(h, self.hkv * self.d, bias=False)
        self.o = nn.Linear(self.hq * self.d, h, bias=False)
        self.gate = nn.Linear(h, c["intermediate_size"], bias=False)
        self.up = nn.Linear(h, c["intermediate_size"], bias=False)
        self.down = nn.Linear(c["intermediate_size"], h, bias=False)
        self.norm1, self.norm2 = Norm(h, 1e-6), Norm(h, 1e-6)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        y = self.norm1(x)
        q, k, v = (p(y).view(b, t, n, self.d).transpose(1, 2) for p, n in ((self.q, self.hq), (self.k, self.hkv), (self.v, self.hkv)))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k.to(v.dtype), v, is_causal=True, enable_gqa=self.hq != self.hkv)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed = nn.Embedding(c["vocab_size"], c["hidden_size"])
        nn.init.normal_(self.embed.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = Norm(c["hidden_size"], 1e-6)
        self.d, self.theta = c["head_dim"], c.get("rope_theta", 10000)

    def forward(self, ids, labels):
        inverse = self.theta ** -(torch.arange(0, self.d, 2, dtype=torch.float32) / self.d)
        angle = torch.arange(ids.shape[1], dtype=torch.float32)[:, None] * inverse
        cos, sin = angle.cos(), angle.sin()
        if torch.is_autocast_enabled("cpu"):
            cos, sin = cos.bfloat16(), sin.bfloat16()
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = F.linear(self.norm(x), self.embed.weight)  # tied
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), labels.view(-1))


def torch_rate(config, dtype, steps, compiled):
    c, t = config, config["train"]
    torch.manual_seed(1)
    model = Model(c)
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(c["vocab_size"], (t["global_batch_size"], t["seq_len"]))
    labels = torch.randint(c["vocab_size"], (t["global_batch_size"], t["seq_len"]))

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            loss = forward(ids, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    step()
    rates = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        rates.append(ids.numel() / (time.perf_counter() - start))
    return sorted(rates)[len(rates) // 2]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--hysparse", required=True, help="the program")
    a.add_argument("--config", required=True, help="run file of a full-attention model with tied embeddings; its `train` names seq_len "
                                                   "and global_batch_size")
    a.add_argument("--dtype", choices=["f32", "bf16"], default="bf16")
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--steps", type=int, default=3, help="timed in a round")
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--compile", action="store_true")
    a.add_argument("--json")
    o = a.parse_args()
    with open(o.config) as file:
        config = json.load(file)
    torch.set_num_threads(o.threads)
    name = f"train {o.dtype}" + (" (compiled)" if o.compile else "")
    comparison = Comparison(name, "tokens/s", "PyTorch")
    for _ in range(o.rounds):
        ours = hysparse_bench(o.hysparse, "train", "--config", o.config, "--dtype", o.dtype, "--threads", o.threads, "--repeat", o.steps)
        comparison.add(ours["train"], torch_rate(config, o.dtype, o.steps, o.compile))
    comparison.show()
    report(o.json, f"python bench/peers/bench_torch_train.py --dtype {o.dtype} --threads {o.threads}", [comparison], threads=o.threads,
           torch=torch.__version__, rows=config["train"]["global_batch_size"], seq_len=config["train"]["seq_len"])


if __name__ == "__main__":
    main()
