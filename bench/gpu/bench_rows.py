"""Operations bound by bytes at the 7B shape's sizes: their share of the GPU's copy bandwidth, measured in the same run.

  python3 bench/gpu/bench_rows.py OUT.json [--tokens 32768] [LIBRARY ...]

Libraries: paths of libhysparse_cuda.so, each measured in turn (default: HYSPARSE_CUDA_LIBRARY). Needs torch."""
import argparse
import ctypes as C
import json
import os
import statistics

import torch

HIDDEN, HEADS, KV_HEADS, DIM, FFN = 4096, 32, 8, 128, 11008
DTYPES = {torch.float32: 1, torch.bfloat16: 2, torch.int32: 5}


class View(C.Structure):
    _fields_ = [("data", C.c_void_p), ("dtype", C.c_int32), ("rank", C.c_int32), ("shape", C.c_int64 * 4), ("stride", C.c_int64 * 4)]


def view(t):
    v = View(t.data_ptr(), DTYPES[t.dtype], t.dim())
    v.shape[: t.dim()], v.stride[: t.dim()] = list(t.shape), list(t.stride())
    return C.byref(v)


def milliseconds(call, runs=9):
    """Median of single calls, the L2 filled with something else before each."""
    flush = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(runs + 2):
        flush.zero_()
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        call()
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b))
    return statistics.median(times[2:])


def operations(library, n):
    """name -> (bytes that must move, call)"""
    lib = C.CDLL(library)
    lib.hysparse_cuda_rmsnorm_backward_workspace.restype = C.c_size_t
    stream = C.c_void_p(torch.cuda.current_stream().cuda_stream)

    def call(name, *arguments):
        def run():
            code = getattr(lib, "hysparse_cuda_" + name)(*arguments, stream)
            assert code == 0, (name, code)
        return run

    bf16 = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    f32 = lambda *shape: torch.randn(*shape, device="cuda")
    x, y, z, w = bf16(n, HIDDEN), bf16(n, HIDDEN), bf16(n, HIDDEN), bf16(HIDDEN)
    rstd, dw = f32(n), f32(HIDDEN)
    size = lib.hysparse_cuda_rmsnorm_backward_workspace(C.c_int64(n), C.c_int64(HIDDEN))
    work = torch.empty(size, dtype=torch.uint8, device="cuda")
    heads = [t.view(n, HEADS, DIM) for t in (x, y, z)]
    d_branch = [bf16(n, HEADS, DIM) for _ in range(2)]
    gates = [f32(n, HEADS) for _ in range(4)]
    k = bf16(n, KV_HEADS, DIM)
    position = torch.arange(n, device="cuda", dtype=torch.int32)
    cos, sin = f32(n, DIM // 2), f32(n, DIM // 2)
    wide = [bf16(n, FFN) for _ in range(5)]
    row, none, eps = 2 * n * HIDDEN, None, C.c_double(1e-6)
    keep = [x, y, z, w, rstd, dw, work, heads, d_branch, gates, k, position, cos, sin, wide]
    return keep, {
        "rmsnorm": (2 * row, call("rmsnorm", view(x), none, view(w), eps, view(y), view(rstd))),
        "add_rmsnorm": (4 * row, call("rmsnorm", view(x), view(z), view(w), eps, view(y), none)),
        "rmsnorm_backward": (4 * row, call("rmsnorm_backward", view(x), view(w), view(rstd), view(y), view(z), C.c_int32(1), view(dw),
                                           C.c_void_p(work.data_ptr()), C.c_size_t(size))),
        "add": (3 * row, call("add", view(x), view(y), view(z))),
        "gated_sum": (3 * row, call("gated_sum", view(heads[0]), view(gates[0]), view(heads[1]), view(gates[1]), view(heads[2]))),
        "gated_sum_backward": (5 * row, call("gated_sum_backward", view(heads[0]), view(gates[0]), view(heads[1]), view(gates[1]), view(heads[2]),
                                             view(d_branch[0]), view(d_branch[1]), view(gates[2]), view(gates[3]))),
        "rope q, k": (2 * row + 2 * row * KV_HEADS // HEADS, call("rope", view(heads[0]), view(k), C.c_void_p(position.data_ptr()), view(cos),
                                                                  view(sin), C.c_int32(0))),
        "swiglu": (3 * 2 * n * FFN, call("swiglu", view(wide[0]), view(wide[1]), view(wide[2]))),
        "swiglu_backward": (5 * 2 * n * FFN, call("swiglu_backward", view(wide[0]), view(wide[1]), view(wide[2]), view(wide[3]), view(wide[4]))),
    }


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("libraries", nargs="*", default=[])
    p.add_argument("--tokens", type=int, default=32768)
    a = p.parse_args()
    source, target = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    copy = 2 * source.numel() / milliseconds(lambda: target.copy_(source)) / 1e6
    report = {"gpu": torch.cuda.get_device_name(), "tokens": a.tokens, "copy_GB_s": copy, "libraries": {}}
    print(f"copy {copy:.0f} GB/s")
    for library in a.libraries or [os.environ["HYSPARSE_CUDA_LIBRARY"]]:
        keep, all_ops = operations(library, a.tokens)
        results = report["libraries"][os.path.basename(library)] = {}
        for name, (size, call) in all_ops.items():
            ms = milliseconds(call)
            results[name] = {"ms": ms, "of_copy": size / ms / 1e6 / copy}
            print(f"{os.path.basename(library):24} {name:20} {ms:7.3f} ms  {results[name]['of_copy']:.2f} of copy")
    with open(a.out, "w") as f:
        json.dump(report, f, indent=1)


if __name__ == "__main__":
    main()
