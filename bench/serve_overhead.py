#!/usr/bin/env python3
"""What the server costs beside the engine: tokens/s of 32 streaming clients against those of `hysparse batch`.

    python3 bench/serve_overhead.py OUT.json [--clients 32] [--rounds 3] [--model DIR] [--threads N] [--dtype bf16]

Both answer the same prompts with the same seeds, EOS ignored; each round times answers of two lengths on both sides, and the rate is
that of the tokens between them: start, loading and prompts cancel. The clients are one thread that reads bytes and looks at the
last event alone. Needs a build of hysparse ($HYSPARSE, default build/bin/hysparse).
"""
import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
HYSPARSE = os.environ.get("HYSPARSE", os.path.join(ROOT, "build/bin/hysparse"))
SHORT, LONG = 64, 320


def prompts(n):
    words = "the sea was calm and grey that morning when she came down to look for him again".split()
    return [" ".join(words[(i * 7 + j) % len(words)] for j in range(24)) for i in range(n)]


def engine_seconds(a, flags, tokens):
    lines = "".join(json.dumps({"prompt": p, "max_new_tokens": tokens, "seed": i}) + "\n" for i, p in enumerate(prompts(a.clients)))
    begin = time.monotonic()
    p = subprocess.run([HYSPARSE, "batch", "--ignore-eos", "-", *flags], input=lines, text=True, capture_output=True)
    seconds = time.monotonic() - begin
    if p.returncode != 0 or len(p.stdout.splitlines()) != a.clients:
        raise RuntimeError(p.stderr[-2000:])
    return seconds


async def client(host, port, prompt, seed, tokens):
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "stream": True, "seed": seed, "temperature": 0.8, "ignore_eos": True,
                       "stream_options": {"include_usage": True}}).encode()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    tail = b""
    while chunk := await reader.read(1 << 16):
        tail = (tail + chunk)[-4096:]
    writer.close()
    used = re.search(rb'"completion_tokens": ?(\d+)', tail)
    if not used or int(used.group(1)) != tokens:
        raise RuntimeError(f"a client got no {tokens} tokens: ...{tail[-600:].decode(errors='replace')}")


def server_seconds(a, address, tokens):
    async def all_clients():
        await asyncio.gather(*(client(*address, p, i, tokens) for i, p in enumerate(prompts(a.clients))))
    begin = time.monotonic()
    asyncio.run(all_clients())
    return time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model")
    parser.add_argument("--threads", default="0")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--device", default="cpu")
    a = parser.parse_args()
    flags = ["--max-sequences", str(a.clients), "--threads", a.threads, "--dtype", a.dtype, "--device", a.device, "--kv-memory", "1GiB", "--no-prefix-cache"]
    if a.model:
        flags += ["--model", a.model]
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen([HYSPARSE, "serve", "--port", "0", *flags], stderr=log, stdout=log)
        try:
            address = None
            for _ in range(600):
                log.seek(0)
                found = re.search(r"at http://([0-9.]+):(\d+)", log.read())
                if found:
                    address = (found.group(1), int(found.group(2)))
                    break
                time.sleep(0.1)
            if address is None:
                raise RuntimeError("the server did not start")
            server_seconds(a, address, SHORT)  # warms up
            new = a.clients * (LONG - SHORT)
            rounds = []
            for _ in range(a.rounds):
                engine = new / (engine_seconds(a, flags, LONG) - engine_seconds(a, flags, SHORT))
                served = new / (server_seconds(a, address, LONG) - server_seconds(a, address, SHORT))
                rounds.append({"engine_tokens_per_second": engine, "server_tokens_per_second": served, "server_over_engine": served / engine})
                print(json.dumps(rounds[-1]), flush=True)
        finally:
            server.terminate()
            server.wait(30)
    ratio = statistics.median(r["server_over_engine"] for r in rounds)
    with open(a.out, "w") as f:
        json.dump({"command": "python3 bench/serve_overhead.py OUT.json", "clients": a.clients, "rounds": rounds, "median_server_over_engine": ratio}, f, indent=1)
    print(f"median: the server gives {ratio:.3f} of the engine's tokens/s at {a.clients} clients")


if __name__ == "__main__":
    main()
