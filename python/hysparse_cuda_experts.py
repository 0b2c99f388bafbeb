"""ctypes binding of the mixture-of-experts part of libhysparse_cuda for torch tensors: what the GPU checks and benchmarks call."""
import ctypes as C

import torch

from hysparse_cuda import _check, _stream, lib

_DTYPES = {torch.float32: 1, torch.bfloat16: 2, torch.int64: 4, torch.int32: 5, torch.int8: 7, torch.float8_e4m3fn: 9}


class View(C.Structure):
    _fields_ = [("data", C.c_void_p), ("dtype", C.c_int32), ("rank", C.c_int32), ("shape", C.c_int64 * 4), ("stride", C.c_int64 * 4)]


def view(t):
    """A pointer to the view of a tensor with a dense last dimension; None: absent."""
    if t is None:
        return None
    assert t.is_cuda and t.dim() <= 4 and (t.dim() == 0 or t.stride(-1) == 1 or t.shape[-1] == 1)
    v = View(t.data_ptr(), _DTYPES[t.dtype], t.dim())
    for i in range(t.dim()):
        v.shape[i], v.stride[i] = t.shape[i], t.stride(i)
    return C.byref(v)


lib.hysparse_cuda_expert_tables_workspace.restype = C.c_size_t
lib.hysparse_cuda_expert_tables_workspace.argtypes = [C.c_int64, C.c_int64]


def route(logits, bias, k, normalise=True, scale=1.0):
    """experts [n, k] int32 ascending, weights [n, k]."""
    experts = torch.empty(logits.shape[0], k, dtype=torch.int32, device="cuda")
    weights = torch.empty(logits.shape[0], k, device="cuda")
    _check(lib.hysparse_cuda_route(view(logits), view(bias), int(normalise), C.c_double(scale), 0, view(experts), view(weights), _stream()))
    return experts, weights


class Tables:
    """offset [E + 1], source [R], slot [n, k] of chosen experts; build() redoes the device work."""

    def __init__(self, experts, count):
        self.experts, self.k = experts, experts.shape[1]
        i32 = {"dtype": torch.int32, "device": "cuda"}
        self.offset, self.source = torch.empty(count + 1, **i32), torch.empty(experts.numel(), **i32)
        self.slot = torch.empty(experts.shape, **i32)
        self.bytes = lib.hysparse_cuda_expert_tables_workspace(experts.numel(), count)
        self.workspace = torch.empty(max(self.bytes, 256), dtype=torch.uint8, device="cuda")
        self.build()

    def build(self):
        _check(lib.hysparse_cuda_expert_tables(view(self.experts), None, view(self.offset), view(self.source), view(self.slot), None,
                                               C.c_void_p(self.workspace.data_ptr()), C.c_size_t(self.bytes), _stream()))


def gather(x, tables, y):
    _check(lib.hysparse_cuda_expert_gather(view(x), view(tables.source), C.c_int64(tables.k), view(y), _stream()))


def combine(x, tables, y, accumulate=False):
    _check(lib.hysparse_cuda_expert_sum(view(x), view(tables.slot), view(y), int(accumulate), _stream()))


def swiglu(gate, up, tables, weights, h):
    _check(lib.hysparse_cuda_expert_swiglu(view(gate), view(up), view(tables.source), view(weights), view(h), _stream()))


def linear(x, tables, weights, y):
    _check(lib.hysparse_cuda_grouped_linear(view(x), view(tables.offset), view(weights), view(y), _stream()))


def linear_pair(x, tables, first, second, y_first, y_second):
    _check(lib.hysparse_cuda_grouped_linear_pair(view(x), view(tables.offset), view(first), view(second), view(y_first), view(y_second), _stream()))


def linear_dx(dy, tables, weights, dx, accumulate=False):
    _check(lib.hysparse_cuda_grouped_linear_dx(view(dy), view(tables.offset), view(weights), view(dx), int(accumulate), _stream()))


def linear_pair_dx(dy_first, dy_second, tables, first, second, dx):
    _check(lib.hysparse_cuda_grouped_linear_pair_dx(view(dy_first), view(dy_second), view(tables.offset), view(first), view(second), view(dx), _stream()))


def linear_dw(dy, x, tables, grad):
    _check(lib.hysparse_cuda_grouped_linear_dw(view(dy), view(x), view(tables.offset), view(grad), _stream()))
