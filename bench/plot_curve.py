"""The curve of a training run as a picture: loss of each logged step, held-out loss and bits a byte.

  python3 bench/plot_curve.py RUN/log.jsonl OUT.png [--title TEXT]          (needs matplotlib; .svg and .pdf work too)"""
import argparse
import json

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("log")
    p.add_argument("out")
    p.add_argument("--title", default="")
    a = p.parse_args()
    with open(a.log, encoding="utf-8") as f:
        records = [json.loads(line) for line in f if line.strip()]
    train = [r for r in records if r["kind"] == "train"]
    held_out = [r for r in records if r["kind"] == "eval"]
    if not train:
        p.error(f"{a.log}: no training step is logged there")
    figure, loss = plt.subplots(figsize=(7, 4), dpi=120)
    loss.plot([r["tokens"] / 1e6 for r in train], [r["loss"] for r in train], color="#9bb8d3", linewidth=1, label="training")
    if held_out:
        loss.plot([r["tokens"] / 1e6 for r in held_out], [r["nats_per_token"] for r in held_out], "o-", color="#1f4e79", markersize=3, label="held out")
        last = held_out[-1]
        loss.annotate(f"{last['nats_per_token']:.3f} nats a token\n{last['bits_per_byte']:.3f} bits a byte", (last["tokens"] / 1e6, last["nats_per_token"]),
                      xytext=(-8, 22), textcoords="offset points", ha="right", fontsize=9)
    loss.set_xlabel("million tokens")
    loss.set_ylabel("nats a token")
    loss.set_title(a.title, fontsize=10)
    loss.grid(alpha=0.3)
    loss.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(a.out)


if __name__ == "__main__":
    main()
