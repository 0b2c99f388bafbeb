#!/usr/bin/env python3
"""Compares hysparse with llama.cpp (llama-cpp-python) on one model.

  llama_cpp_models.py import --hysparse PROGRAM --gguf FILE    the file, imported, against llama.cpp on the file itself and
                                                               on its f32 export: greedy texts and logits
  llama_cpp_models.py export --hysparse PROGRAM --model DIR    exports of a model directory in every dtype, run by
                                                               llama.cpp: logits
  llama_cpp_models.py export --hysparse PROGRAM --foreign DIR  the same for every folder of tests/data/foreign

Needs llama-cpp-python, numpy and safetensors.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import llama_cpp
import numpy as np
from safetensors.numpy import load_file

PROMPTS = ["The capital of France is", "Once upon a time, in a small village,", "def fibonacci(n):\n",
           "Water boils at", "The three primary colours are", "In 1969, Neil Armstrong"]


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command}: {done.stderr}")
    return done.stdout


class Llama:
    """With an f32 KV cache, so that the weights' precision is the only one."""

    def __init__(self, path, context=128):
        self.model = llama_cpp.Llama(str(path), n_ctx=context, logits_all=True, verbose=False, n_threads=1, n_threads_batch=1,
                                     type_k=0, type_v=0, flash_attn=False)

    def tokens(self, text):
        return self.model.tokenize(text.encode(), add_bos=False, special=False)

    def logits(self, ids):
        self.model.reset()
        self.model.eval(ids)
        return self.model.scores[:len(ids)].astype(np.float64)

    def greedy(self, ids, count):
        self.model.reset()
        ids, out = list(ids), []
        self.model.eval(ids)
        for _ in range(count):
            out.append(int(self.model.scores[self.model.n_tokens - 1].argmax()))
            self.model.eval(out[-1:])
        return out


def our_logits(program, model, ids, temp, dtype="f32"):
    (temp / "ids.json").write_text(json.dumps(ids))
    run(program, "logits", "--model", model, "--tokens", temp / "ids.json", "--out", temp / "l.safetensors", "--dtype",
        dtype, "--threads", 1)
    return load_file(temp / "l.safetensors")["logits"].astype(np.float64)


def our_greedy(program, model, ids, count):
    text = run(program, "generate", "--model", model, "--tokens", "--prompt", json.dumps(ids), "--max-new-tokens", count,
               "--temperature", 0, "--ignore-eos", "--threads", 1)
    return [int(t) for t in text.split()]


def difference(a, b):
    return f"max |logit difference| {np.abs(a - b).max():.2e} of logits up to {np.abs(b).max():.1f}"


def check_import(program, gguf, count):
    failed = False
    with tempfile.TemporaryDirectory() as temp:
        temp = pathlib.Path(temp)
        print(run(program, "import", "--from", gguf, "--out", temp / "model").strip())
        print(run(program, "export", "--model", temp / "model", "--out", temp / "f32.gguf", "--dtype", "f32").strip())
        original, exact = Llama(gguf), Llama(temp / "f32.gguf")
        for prompt in PROMPTS:
            ids = original.tokens(prompt)
            ours = json.loads(run(program, "tokenizer", "encode", "--tokenizer", temp / "model", "--text", prompt))
            again = exact.tokens(prompt)
            mine, theirs = our_greedy(program, temp / "model", ids, count), exact.greedy(ids, count)
            rounded = original.greedy(ids, count)
            text = ids + theirs
            logits = our_logits(program, temp / "model", text, temp)
            same = mine == theirs and ours == ids == again
            failed |= not same
            agree = next((i for i, (a, b) in enumerate(zip(mine, rounded)) if a != b), count)
            print(f"{prompt!r}: ids {'equal' if ours == ids == again else 'DIFFER'}; greedy {count} tokens "
                  f"{'equal' if mine == theirs else 'DIFFER'}\n"
                  f"   f32 weights:   {difference(logits, exact.logits(text))}\n"
                  f"   file as it is: {difference(logits, original.logits(text))}; greedy equal for {agree} tokens\n"
                  f"   {original.model.detokenize(theirs).decode(errors='replace')!r}")
    return failed


TEXT = "It is 12345 o'clock, isn't it?\n\n  They'LL see: \u00e9t\u00e9, \u4f60\u597d!\r\n\t<x> {y} -- 3.14\n"


def check_export(program, model, ids):
    failed = False
    with tempfile.TemporaryDirectory() as temp:
        temp = pathlib.Path(temp)
        # Beyond f32 llama.cpp rounds activations to the dtype of the weights too.
        for dtype, tolerance in (("f32", 2e-5), ("bf16", 5e-2), ("f16", 5e-3), ("q8_0", 0.2)):
            run(program, "export", "--model", model, "--out", temp / "m.gguf", "--dtype", dtype)
            llama = Llama(temp / "m.gguf")
            if dtype == "f32" and (model / "tokenizer.json").exists():
                encoded = json.loads(run(program, "tokenizer", "encode", "--tokenizer", model, "--text", TEXT))
                failed |= encoded != llama.tokens(TEXT)
                print(f"{model}: {len(encoded)} ids of a text {'equal' if encoded == llama.tokens(TEXT) else 'DIFFER'}")
            ours, theirs = our_logits(program, model, ids, temp), llama.logits(ids)
            error = np.abs(ours - theirs).max() / np.abs(ours).max()
            failed |= not error <= tolerance
            print(f"{model} as {dtype}: {difference(theirs, ours)}{'' if error <= tolerance else ' TOO LARGE'}")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    importing, exporting = commands.add_parser("import"), commands.add_parser("export")
    for c in (importing, exporting):
        c.add_argument("--hysparse", required=True)
    importing.add_argument("--gguf", type=pathlib.Path, required=True)
    importing.add_argument("--count", type=int, default=48)
    exporting.add_argument("--model", type=pathlib.Path)
    exporting.add_argument("--foreign", type=pathlib.Path)
    a = parser.parse_args()
    if a.command == "import":
        return int(check_import(a.hysparse, a.gguf, a.count))
    failed = False
    unknown = {"yarn-stated"}  # its constants have no place in GGUF
    for model in [a.model] if a.model else sorted(c.parent for c in a.foreign.glob("*/config.json")):
        if model.name in unknown:
            continue
        recorded = model.parent / "expected" / f"{model.name}.safetensors"
        config = json.loads((model / "config.json").read_text())
        ids = (load_file(recorded)["tokens"].tolist() if recorded.exists()
               else np.random.default_rng(1).integers(0, config["vocab_size"], 64).tolist())
        failed |= check_export(a.hysparse, model, ids)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
