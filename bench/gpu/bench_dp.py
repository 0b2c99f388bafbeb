#!/usr/bin/env python3
"""Data parallel on the GPUs of one host: what N ranks compute, cost and survive, beside one rank.

    python3 bench/gpu/bench_dp.py OUT.json [--ranks 2] [--device cuda|cpu] [--skip-7b]

For a model of 25 to 60 million parameters and for the 7B shape (T 8192):
  losses     one rank with N times the accumulation beside N ranks, step by step
  rates      tokens/s of whole optimiser steps, the same rows on one rank and on N; scaling = rate(N) / (N rate(1))
  memory     of a GPU, and how much of it the shares of masters and moments save
  kill       one of N ranks killed: seconds until all are gone, what was said, whether the last checkpoint goes on
  checkpoint N ranks -> 1 -> N at a learning rate that rounds to 0: the same weights to the bit; and going on. At the 7B shape the
             first of these runs is killed while it writes its second checkpoint

Needs a build of hysparse ($HYSPARSE, default build/bin/hysparse) and, on GPUs, NCCL ($HYSPARSE_NCCL_LIBRARY, else
that of the Python package nvidia-nccl, else the loader's). NVLink multicast stays off (NCCL_NVLS_ENABLE=0). --device cpu runs every
stage with ranks on the CPU and toy models: a rehearsal. The JSON is rewritten after every stage; a stage that would begin later than
--seconds is left out and listed under "not_run".
"""

import argparse
import concurrent.futures
import glob
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
START = time.monotonic()
HYSPARSE = os.environ.get("HYSPARSE", os.path.join(ROOT, "build/bin/hysparse"))
TOY = {
    "num_hidden_layers": 5, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
    "vocab_size": 512, "max_position_embeddings": 8192, "attention": "hysparse", "full_attention_interval": 4, "sliding_window": 16,
    "hysparse_block_size": 16, "hysparse_topk_tokens": 64, "tie_word_embeddings": True,
}


def elapsed():
    return time.monotonic() - START


def say(text):
    print(f"[{elapsed():6.1f} s] {text}", file=sys.stderr, flush=True)


def environment():
    env = dict(os.environ, NCCL_NVLS_ENABLE="0")
    if "HYSPARSE_NCCL_LIBRARY" not in env:
        spec = importlib.util.find_spec("nvidia")
        for place in (spec.submodule_search_locations or []) if spec else []:
            for found in sorted(glob.glob(os.path.join(place, "nccl/lib/libnccl.so.2"))):
                env.setdefault("HYSPARSE_NCCL_LIBRARY", found)
    return env


ENV = environment()


def command(*arguments):
    return [HYSPARSE, *map(str, arguments)]


def run(*arguments, **more):
    """Returns the finished process; raises with what it said when it fails."""
    p = subprocess.run(command(*arguments), env=ENV, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
    if p.returncode != 0:
        raise RuntimeError(f"{' '.join(p.args)}\nexit code {p.returncode}\n{p.stdout[-3000:]}")
    return p


def log_records(out, kind):
    try:
        with open(os.path.join(out, "log.jsonl")) as f:
            lines = [json.loads(line) for line in f if line.endswith("\n")]
    except FileNotFoundError:
        return []
    return [r for r in lines if r["kind"] == kind]


def tensor_sums(path):
    """Name -> checksum of every tensor of a safetensors file; the metadata does not count."""
    with open(path, "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(size))
        out = {}
        for name, t in header.items():
            if name == "__metadata__":
                continue
            begin, end = t["data_offsets"]
            f.seek(8 + size + begin)
            out[name] = hashlib.sha256(f.read(end - begin)).hexdigest()
    return out


def checkpoint(out, step):
    return os.path.join(out, "checkpoints", f"step-{step:08d}")


def weight_sums(out, step):
    paths = sorted(glob.glob(os.path.join(checkpoint(out, step), "model*.safetensors")))
    sums = {}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for part in pool.map(tensor_sums, paths):
            sums.update(part)
    return sums


def folder_bytes(path):
    return sum(os.path.getsize(os.path.join(path, name)) for name in os.listdir(path))


class GpuMemory:
    """The most that was in use on every GPU while this is open, in MiB, by nvidia-smi."""

    def __init__(self, device):
        self.peak, self.stop, self.thread = [], threading.Event(), None
        if device == "cuda" and shutil.which("nvidia-smi"):
            self.thread = threading.Thread(target=self.watch)

    def watch(self):
        while not self.stop.wait(0.5):
            p = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], text=True, capture_output=True)
            used = [int(x) for x in p.stdout.split() if x.isdigit()]
            self.peak = [max(a, b) for a, b in zip(self.peak or used, used)]

    def __enter__(self):
        if self.thread:
            self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        if self.thread:
            self.thread.join()


class Model:
    """A config, its data and its settings; runs on any number of ranks."""

    def __init__(self, a, name, config, data, sets, work):
        self.a, self.name, self.config, self.data, self.sets, self.work = a, name, config, data, sets, work

    def ranks(self, n):
        flags = ["--gpus", n] if self.a.device == "cuda" else ["--ranks", n, "--threads", 1]
        return flags + ["--comm", self.a.comm]

    def settings(self, more):
        out = ["--config", self.config, "--dtype", "bf16"]
        for s in self.sets + more:
            out += ["--set", s]
        return out

    def out(self, name):
        return os.path.join(self.work, f"{self.name}-{name}")

    def train(self, name, n, more, flags=(), deterministic=True):
        det = ["--deterministic"] if deterministic and self.a.device == "cuda" else []
        return ["train", *self.settings(more), "--data", self.data, "--out", self.out(name), *self.ranks(n), *det, *flags]

    def bench(self, n, rows, repeat):
        report = self.out(f"bench-{n}.json")
        with GpuMemory(self.a.device) as memory:
            run("bench", "train", *self.settings([f"train.global_batch_size={rows}"]), *self.ranks(n), "--repeat", repeat, "--json", report)
        with open(report) as f:
            result = next(r for r in json.load(f)["results"] if r["name"] == "train")
        return {"tokens_per_second": statistics.median(result["runs"]), "runs": result["runs"], "shape": result["shape"],
                "gpu_memory_used_MiB": memory.peak}

    # The stages.

    def rates(self, rows, repeat):
        n = self.a.ranks
        one, many = self.bench(1, rows, repeat), self.bench(n, rows, repeat)
        out = {"rows": rows, "one": one, "ranks": many, "scaling": many["tokens_per_second"] / one["tokens_per_second"] / n}
        if "GB" in one["shape"]:
            narrow = "train.state_dtype=bf16" in self.sets
            parameters = int(one["shape"]["parameters"])
            out["memory_saved_GB"] = float(one["shape"]["GB"]) - float(many["shape"]["GB"])
            # f32 masters, two moments.
            out["memory_of_shares_GB"] = parameters * (4 + (4 if narrow else 8)) * (1 - 1 / n) / 1e9
        return out

    def losses(self, rows, steps, keep):
        """`keep`: whole runs, which end in a checkpoint; else each is ended after its last step is logged, the one on N ranks by
        killing a rank."""
        n, out = self.a.ranks, {}
        more = [f"train.global_batch_size={rows}", "train.log_interval=1", "train.eval_interval=0", "train.checkpoint_interval=0"]
        for ranks in (1, n):
            name = f"losses-{ranks}"
            if keep:
                run(*self.train(name, ranks, more + [f"train.steps={steps}"]))
            else:
                with Watched(self, self.train(name, ranks, more + ["train.steps=1000000"])) as w:
                    w.wait_until(lambda: len(log_records(self.out(name), "train")) >= steps, f"{steps} steps")
                    out[f"memory_plan_{ranks}"] = w.plan()
                    if ranks == n:
                        out["kill"] = w.kill_a_rank()
            out[str(ranks)] = [r["loss"] for r in log_records(self.out(name), "train")][:steps]
        one, many = out.pop("1"), out.pop(str(n))
        out.update({"steps": steps, "rows": rows, "one": one, "ranks": many,
                    "largest_relative_difference": max(abs(x - y) / x for x, y in zip(one, many))})
        return out

    def kill(self, rows):
        name = "killed"
        more = [f"train.global_batch_size={rows}", "train.steps=1000000", "train.checkpoint_interval=5", "train.eval_interval=0", "train.log_interval=1"]
        with Watched(self, self.train(name, self.a.ranks, more)) as w:
            w.wait_until(lambda: os.path.isdir(checkpoint(self.out(name), 10)), "the checkpoint of step 10")
            out = w.kill_a_rank()
        last = max(int(os.path.basename(p)[5:]) for p in glob.glob(os.path.join(self.out(name), "checkpoints/step-*")))
        more[1] = f"train.steps={last + 2}"
        run(*self.train(name, self.a.ranks, more, ["--resume"]))
        out.update({"last_checkpoint": last, "went_on_to": last + 2})
        return out

    def checkpoints(self, rows):
        n, name = self.a.ranks, "checkpoints"
        base = [f"train.global_batch_size={rows}", "train.checkpoint_interval=0", "train.eval_interval=0", "train.log_interval=1",
                "train.schedule=constant", "train.decay_steps=0", "train.warmup_steps=0"]
        run(*self.train(name, n, base + ["train.steps=6"]))
        sums = {f"{n} ranks, step 6": weight_sums(self.out(name), 6)}
        still = base + ["train.lr=1e-300", "train.min_lr=0"]  # 0 in the f32 that weights move in
        run(*self.train(name, 1, still + ["train.steps=7"], ["--resume"]))
        sums["then 1 rank, step 7"] = weight_sums(self.out(name), 7)
        run(*self.train(name, n, still + ["train.steps=8"], ["--resume"]))
        sums[f"then {n} ranks, step 8"] = weight_sums(self.out(name), 8)
        run(*self.train(name, n, base + ["train.steps=10"], ["--resume"]))
        first = next(iter(sums.values()))
        moved = weight_sums(self.out(name), 10)
        # The same ranks, stopped and gone on with or not: the same bits.
        run(*self.train("whole", n, base + ["train.steps=12"]))
        run(*self.train("parts", n, base + ["train.steps=6"]))
        run(*self.train("parts", n, base + ["train.steps=12"], ["--resume"]))
        return {"tensors": len(first), "bit_equal": {k: v == first for k, v in sums.items()},
                "moved_after": moved != first, "losses": [r["loss"] for r in log_records(self.out(name), "train")],
                "resume_on_the_same_ranks_bit_equal": weight_sums(self.out("whole"), 12) == weight_sums(self.out("parts"), 12)}

    def large_checkpoints(self, rows):
        """As `checkpoints` and `kill`, with as few saves as can be: a checkpoint may take minutes."""
        n, name, seconds = self.a.ranks, "checkpoints", {}
        out = self.out(name)
        base = [f"train.global_batch_size={rows}", "train.eval_interval=0", "train.log_interval=1", "train.keep_last=1",
                "train.schedule=constant", "train.decay_steps=0", "train.warmup_steps=0"]
        still = base + ["train.lr=1e-300", "train.min_lr=0"]  # 0 in the f32 that weights move in

        def timed(what, body):
            begin = elapsed()
            body()
            seconds[what] = elapsed() - begin
            say(f"  {what}: {seconds[what]:.1f} s")

        def logged(step):
            return any(r["step"] == step for r in log_records(out, "train"))

        try:
            more = ["train.steps=1000000", "train.checkpoint_interval=1"]
            with Watched(self, self.train(name, n, base + more)) as w:
                timed(f"{n} ranks, step 1, saved", lambda: w.wait_until(lambda: os.path.isdir(checkpoint(out, 1)), "the checkpoint of step 1"))
                w.wait_until(lambda: logged(2), "step 2")  # and its checkpoint is being written
                killed = w.kill_a_rank()
            size = folder_bytes(checkpoint(out, 1))
            whole = not os.path.isdir(checkpoint(out, 2))
            first = weight_sums(out, 1)
            timed("1 rank, resumed, step 2, saved", lambda: run(*self.train(name, 1, still + ["train.steps=2", "train.checkpoint_interval=0"], ["--resume"])))
            equal = {f"{n} ranks, killed behind step 1, then 1 rank, step 2": weight_sums(out, 2) == first}
            say(f"  {equal}")
            shutil.rmtree(checkpoint(out, 1))  # the best one so far is kept beside the newest
            timed(f"{n} ranks, resumed, step 3, saved", lambda: run(*self.train(name, n, still + ["train.steps=3", "train.checkpoint_interval=0"], ["--resume"])))
            equal[f"then {n} ranks, step 3"] = weight_sums(out, 3) == first
            losses = {r["step"]: r["loss"] for r in log_records(out, "train")}
            return {"tensors": len(first), "checkpoint_GB": size / 1e9, "killed_while_saving_step_2": whole, "bit_equal": equal,
                    "kill": killed, "losses": losses, "seconds": seconds}
        finally:
            shutil.rmtree(out, ignore_errors=True)


class Watched:
    """A run of train in the background, with what it says."""

    def __init__(self, model, arguments):
        self.model, self.arguments = model, arguments

    def __enter__(self):
        self.said = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command(*self.arguments), env=ENV, stdout=self.said, stderr=subprocess.STDOUT)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            for p in [*self.ranks(), self.process.pid]:  # ranks whose launcher is gone would save first
                os.kill(p, signal.SIGKILL)
        self.process.wait()
        time.sleep(0.5)
        self.said.close()

    def text(self):
        self.said.seek(0)
        return self.said.read()

    def plan(self):
        lines = self.text().splitlines()
        at = [i for i, line in enumerate(lines) if line.startswith("memory of")]
        return [line.strip() for line in lines[at[0]:at[0] + 9]] if at else []

    def wait_until(self, condition, what):
        while not condition():
            if self.process.poll() is not None:
                raise RuntimeError(f"ended before {what}: exit code {self.process.returncode}\n{self.text()[-3000:]}")
            if elapsed() > self.model.a.seconds + 45:
                raise RuntimeError(f"no time left to wait for {what}\n{self.text()[-1000:]}")
            time.sleep(0.02)

    def ranks(self):
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as f:
            return [int(p) for p in f.read().split()]

    def kill_a_rank(self):
        ranks = self.ranks()
        os.kill(ranks[-1], signal.SIGKILL)
        start = time.monotonic()
        code = self.process.wait(timeout=60)
        seconds = time.monotonic() - start
        left = [p for p in ranks if os.path.exists(f"/proc/{p}")]
        error = [line for line in self.text().splitlines() if line.startswith("error")]
        return {"ranks": len(ranks), "seconds_until_all_gone": seconds, "exit_code": code, "error": error, "left_running": len(left)}


def prepare(a, work):
    """Tokenizer and data from the texts that ship with the repository; (directory, vocabulary)."""
    vocabulary = 512 if a.device == "cpu" else 3072
    texts = sorted(glob.glob(os.path.join(ROOT, "data/en/*.txt")))[: 1 if a.device == "cpu" else None]
    run("tokenizer", "train", "--input", *texts, "--vocab-size", vocabulary, "--out", os.path.join(work, "tok"))
    run("data", "prepare", "--tokenizer", os.path.join(work, "tok"), "--input", *texts, "--out", os.path.join(work, "data"), "--holdout", "0.03")
    return os.path.join(work, "data")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--comm", choices=["auto", "nccl", "sockets"], default="auto")
    p.add_argument("--work", help="where runs are kept; default: a folder that goes away")
    p.add_argument("--large-work", help="where the 7B checkpoints stand (two at a time, 61 GB each); default: --work")
    p.add_argument("--only", help="of the stages, only those whose names begin so")
    p.add_argument("--seconds", type=float, default=410, help="no stage begins later than this")
    p.add_argument("--small-config", default=os.path.join(ROOT, "configs/bench-30m.json"))
    p.add_argument("--big-config", default=os.path.join(ROOT, "configs/hysparse-7b.json"))
    p.add_argument("--skip-small", action="store_true")
    p.add_argument("--skip-7b", action="store_true")
    a = p.parse_args()
    folder = None if a.work else tempfile.TemporaryDirectory(prefix="bench-dp-")
    work = a.work or folder.name
    os.makedirs(work, exist_ok=True)
    on_gpu = a.device == "cuda"
    result = {"command": " ".join(["python3", "bench/gpu/bench_dp.py", *sys.argv[1:]]), "ranks": a.ranks, "device": a.device,
              "nccl_library": ENV.get("HYSPARSE_NCCL_LIBRARY") if on_gpu else None, "stages": {}, "failed": {}, "not_run": []}
    if on_gpu:
        smi = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"], text=True, capture_output=True)
        topology = subprocess.run(["nvidia-smi", "topo", "-m"], text=True, capture_output=True)
        result["gpus"], result["topology"] = smi.stdout.splitlines(), topology.stdout.splitlines()

    def stage(name, body):
        if a.only and not name.startswith(a.only):
            return
        if elapsed() > a.seconds:
            say(f"{name}: left out, {a.seconds:.0f} s have passed")
            result["not_run"].append(name)
        else:
            say(name)
            begin = elapsed()
            try:
                result["stages"][name] = {**body(), "stage_seconds": elapsed() - begin}
                say(f"{name}: {json.dumps({k: v for k, v in result['stages'][name].items() if isinstance(v, (int, float, bool))})}")
            except Exception as e:  # the other stages still tell something
                result["failed"][name] = str(e)
                say(f"{name} FAILED: {e}")
        with open(a.out + ".tmp", "w") as f:
            json.dump(result, f, indent=1)
        os.replace(a.out + ".tmp", a.out)

    data = prepare(a, work)
    say("data prepared")
    if on_gpu:
        small_config, big_config = a.small_config, a.big_config
    else:
        small_config = big_config = os.path.join(work, "toy.json")
        with open(small_config, "w") as f:
            json.dump(TOY, f)
    length, rows = (1024, 32) if on_gpu else (64, 4)
    small = Model(a, "small", small_config, data,
                  [f"train.seq_len={length}", f"train.micro_batch_size={8 if on_gpu else 1}", "train.lr=0.001"], work)
    big_length, big_rows = (8192, 2) if on_gpu else (256, 2)
    big = Model(a, "7b", big_config, data,
                [f"train.seq_len={big_length}", "train.micro_batch_size=1", "train.lr=0.0001"] + (["train.state_dtype=bf16"] if on_gpu else []), work)
    big_rows *= max(1, a.ranks // 2)
    rows *= max(1, a.ranks // 2)

    if on_gpu:
        def channels():
            env = dict(ENV, NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,P2P,GRAPH")
            p = subprocess.run(command("bench", "train", *small.settings([f"train.global_batch_size={rows}"]), *small.ranks(a.ranks), "--repeat", 1),
                               env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if p.returncode != 0:
                raise RuntimeError(p.stdout[-3000:])
            lines = [line.split("NCCL INFO")[-1].strip() for line in p.stdout.splitlines() if " via " in line or "NVLS" in line or "NCCL version" in line]
            return {"nccl": sorted(set(lines))[:40]}
        stage("channels", channels)
    if not a.skip_small:
        stage("small losses", lambda: small.losses(rows, 20 if on_gpu else 6, True))
        stage("small rates", lambda: small.rates(rows * 2, 5 if on_gpu else 1))
        stage("small kill", lambda: small.kill(rows))
        stage("small checkpoints", lambda: small.checkpoints(rows))
    if not a.skip_7b:
        stage("7b rates", lambda: big.rates(big_rows, 5 if on_gpu else 1))
        stage("7b losses", lambda: big.losses(big_rows, 5, False))
        if a.large_work:
            big.work = a.large_work
        stage("7b checkpoints", lambda: big.large_checkpoints(big_rows))
    result["seconds"] = elapsed()
    with open(a.out, "w") as f:
        json.dump(result, f, indent=1)
    for name, s in result["stages"].items():
        facts = {k: v for k, v in s.items() if isinstance(v, (int, float, bool, str))}
        print(f"{name}: {json.dumps(facts)}")
    for name, error in result["failed"].items():
        print(f"{name} FAILED: {error.splitlines()[0]}")
    sys.exit(1 if result["failed"] else 0)


if __name__ == "__main__":
    main()
