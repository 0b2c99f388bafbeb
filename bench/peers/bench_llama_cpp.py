#!/usr/bin/env python3
"""Decode and prefill beside llama.cpp: the same model, precision and threads, in turn.

The model is exported for llama.cpp in each precision; hysparse runs random weights of its config, whose values do not matter
to the time. KV cache: f16 there, --dtype here (f32 on both sides for f32). Needs llama-cpp-python.
"""
import argparse
import ctypes
import pathlib
import subprocess
import sys
import tempfile
import time

import llama_cpp

from peers import Comparison, hysparse_bench, report

# Ours: flags of `hysparse bench`. Theirs: dtype of the export, type of the KV cache.
PRECISIONS = {"bf16": (["--dtype", "bf16"], "bf16", 1), "f32": (["--dtype", "f32"], "f32", 0),
              "int8": (["--dtype", "bf16", "--weights", "int8"], "q8_0", 1)}


# Its messages are not results.
QUIET = llama_cpp.llama_log_callback(lambda level, text, user: None)


class Llama:
    def __init__(self, path, threads, context):
        llama_cpp.llama_log_set(QUIET, ctypes.c_void_p())
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            sys.exit(f"llama.cpp does not load {path}")
        self.threads, self.context = threads, context

    def _new(self, tokens, kv_type):
        p = llama_cpp.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch = tokens, self.context, self.context
        p.n_threads = p.n_threads_batch = self.threads
        p.type_k = p.type_v = kv_type
        return llama_cpp.llama_init_from_model(self.model, p)

    def _run(self, ctx, ids):
        array = (llama_cpp.llama_token * len(ids))(*ids)
        if llama_cpp.llama_decode(ctx, llama_cpp.llama_batch_get_one(array, len(ids))):
            sys.exit("llama_decode failed")
        ctypes.cast(llama_cpp.llama_get_logits_ith(ctx, -1), ctypes.c_void_p)  # waits for them

    def rates(self, tokens, kv_type):
        """Tokens a second of prefill and of decode behind it; the first prefill and tokens warm up."""
        ctx = self._new(self.context + tokens + 8, kv_type)
        prompt = [(i * 7919 + 13) % 40000 for i in range(self.context)]
        prefill = []
        for _ in range(3):
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(ctx), True)
            start = time.perf_counter()
            self._run(ctx, prompt)
            prefill.append(self.context / (time.perf_counter() - start))
        for i in range(4):
            self._run(ctx, [100 + i])
        start = time.perf_counter()
        for i in range(tokens):
            self._run(ctx, [1000 + i])
        decode = tokens / (time.perf_counter() - start)
        llama_cpp.llama_free(ctx)
        return sorted(prefill[1:])[0], decode


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--hysparse", required=True, help="the program")
    a.add_argument("--model", required=True, type=pathlib.Path, help="model directory of full attention")
    a.add_argument("--precisions", default="bf16,f32,int8")
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--context", type=int, default=512)
    a.add_argument("--tokens", type=int, default=32, help="decoded a run")
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--json")
    o = a.parse_args()
    all_results = []
    with tempfile.TemporaryDirectory() as folder:
        for precision in o.precisions.split(","):
            flags, export, kv_type = PRECISIONS[precision]
            gguf = pathlib.Path(folder) / f"{precision}.gguf"
            subprocess.run([o.hysparse, "export", "--model", o.model, "--out", gguf, "--dtype", export], check=True,
                           stdout=subprocess.DEVNULL)
            llama = Llama(gguf, o.threads, o.context)
            decode = Comparison(f"decode {precision}", "tokens/s", "llama.cpp")
            prefill = Comparison(f"prefill {precision}", "tokens/s", "llama.cpp")
            for _ in range(o.rounds):
                ours = hysparse_bench(o.hysparse, "prefill", "decode", "--config", o.model / "config.json", *flags, "--threads",
                                      o.threads, "--context", o.context, "--chunk", o.context, "--repeat", 3)
                their_prefill, their_decode = llama.rates(o.tokens, kv_type)
                decode.add(ours["decode"], their_decode)
                prefill.add(ours["prefill"], their_prefill)
            for c in (decode, prefill):
                c.show()
                all_results.append(c)
    report(o.json, " ".join(["python", "bench/peers/bench_llama_cpp.py", "--threads", str(o.threads), "--context", str(o.context)]),
           all_results, threads=o.threads, context=o.context, llama_cpp_python=llama_cpp.__version__)


if __name__ == "__main__":
    main()
