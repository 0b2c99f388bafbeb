"""ctypes binding of what a sparse layer has besides its sparse forward: sparse backward and window attention."""
import ctypes as C

import torch

from hysparse_cuda import Tensor, _check, _stream, lib, tensor

_HEADS = [("q_heads", C.c_int32), ("kv_heads", C.c_int32), ("head_dim", C.c_int32), ("v_head_dim", C.c_int32)]
_QKV = [("q", Tensor), ("k", Tensor), ("v", Tensor), ("kv_rows", C.c_int64)]
_GRADIENTS = [
    ("sinks", C.c_void_p), ("o", Tensor), ("d_o", Tensor), ("lse", C.c_void_p), ("delta", C.c_void_p),
    ("dq", Tensor), ("dk", Tensor), ("dv", Tensor), ("dsinks", C.c_void_p),
    ("workspace", C.c_void_p), ("workspace_bytes", C.c_size_t),
]


class SparseBackwardParams(C.Structure):
    _fields_ = [("selection", C.c_void_p)] + _HEADS + _QKV + [("scale", C.c_float)] + _GRADIENTS


class WindowParams(C.Structure):
    _fields_ = [("batch", C.c_void_p)] + _HEADS + _QKV + [
        ("window", C.c_int32), ("scale", C.c_float), ("sinks", C.c_void_p), ("o", Tensor), ("lse", C.c_void_p)]


class WindowBackwardParams(C.Structure):
    _fields_ = [("batch", C.c_void_p)] + _HEADS + _QKV + [("window", C.c_int32), ("scale", C.c_float)] + _GRADIENTS


lib.hysparse_cuda_sparse_backward_workspace.restype = C.c_size_t
lib.hysparse_cuda_window_backward_workspace.restype = C.c_size_t


def _pointer(t):
    return t.data_ptr() if t is not None else None


class _Backward:
    """Prepared call: run() overwrites dq and adds to dk, dv, dsinks, which the caller gives (or zeros)."""

    def _prepare(self, params, workspace, forward, d_o, dk, dv, dsinks, delta):
        f = forward.p
        q, k, v = forward.keep[1:4]
        self.forward, self.given = forward, (d_o, delta)
        self.dq = torch.full_like(q, float("nan"), memory_format=torch.contiguous_format)
        self.dk = dk if dk is not None else torch.zeros(k.shape, dtype=torch.float32, device="cuda")
        self.dv = dv if dv is not None else torch.zeros(v.shape, dtype=torch.float32, device="cuda")
        self.dsinks = dsinks
        p = self.p = params
        for name in ("q_heads", "kv_heads", "head_dim", "v_head_dim", "q", "k", "v", "kv_rows", "scale", "sinks", "o", "lse"):
            setattr(p, name, getattr(f, name))
        p.d_o, p.dq, p.dk, p.dv = tensor(d_o), tensor(self.dq), tensor(self.dk), tensor(self.dv)
        p.delta, p.dsinks = _pointer(delta), _pointer(dsinks)
        size = workspace(C.byref(p))
        if size == 0:
            raise RuntimeError(lib.hysparse_cuda_last_error().decode())
        self.workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
        p.workspace, p.workspace_bytes = self.workspace.data_ptr(), size


class SparseBackward(_Backward):
    """Of a SparseAttention whose selection was made with backward=True."""

    def __init__(self, forward, d_o, dk=None, dv=None, dsinks=None, delta=None):
        params = SparseBackwardParams()
        params.selection = forward.selection.handle
        self._prepare(params, lib.hysparse_cuda_sparse_backward_workspace, forward, d_o, dk, dv, dsinks, delta)

    def run(self):
        self.p.selection = self.forward.selection.handle
        _check(lib.hysparse_cuda_sparse_backward(C.byref(self.p), _stream()))


class WindowAttention:
    def __init__(self, batch, q, k, v, window, scale, sinks=None):
        n, hq, d = q.shape
        _, hkv, dv = v.shape
        self.keep = (batch, q, k, v, sinks)
        self.o = torch.full((n, hq, dv), float("nan"), dtype=torch.bfloat16, device="cuda")
        self.lse = torch.full((n, hq), float("nan"), dtype=torch.float32, device="cuda")
        p = self.p = WindowParams()
        p.batch = batch.handle
        p.q_heads, p.kv_heads, p.head_dim, p.v_head_dim = hq, hkv, d, dv
        p.q, p.k, p.v, p.o = tensor(q), tensor(k), tensor(v), tensor(self.o)
        p.kv_rows, p.window, p.scale, p.lse, p.sinks = k.shape[0], window, scale, self.lse.data_ptr(), _pointer(sinks)

    def run(self):
        _check(lib.hysparse_cuda_window_attention(C.byref(self.p), _stream()))


class WindowBackward(_Backward):
    def __init__(self, forward, d_o, dk=None, dv=None, dsinks=None, delta=None):
        params = WindowBackwardParams()
        params.batch, params.window = forward.p.batch, forward.p.window
        self._prepare(params, lib.hysparse_cuda_window_backward_workspace, forward, d_o, dk, dv, dsinks, delta)

    def run(self):
        _check(lib.hysparse_cuda_window_backward(C.byref(self.p), _stream()))


class View(C.Structure):
    """hysparse_cuda_view of hysparse/cuda_ops.h."""

    _fields_ = [("data", C.c_void_p), ("dtype", C.c_int32), ("rank", C.c_int32), ("shape", C.c_int64 * 4), ("stride", C.c_int64 * 4)]


_DTYPES = {torch.float64: 0, torch.float32: 1, torch.bfloat16: 2, torch.int64: 4, torch.int32: 5}


def view(t):
    pad = [0] * (4 - t.dim())
    return C.byref(View(t.data_ptr(), _DTYPES[t.dtype], t.dim(), (C.c_int64 * 4)(*t.shape, *pad), (C.c_int64 * 4)(*t.stride(), *pad)))


class GatedSum:
    """out = sigmoid(gate_a) a + sigmoid(gate_b) b: a, b [n, Hq, dv] bf16, gates [n, Hq] f32."""

    def __init__(self, a, gate_a, b, gate_b):
        self.keep, self.out = (a, gate_a, b, gate_b), torch.full_like(a, float("nan"))

    def run(self):
        a, gate_a, b, gate_b = self.keep
        _check(lib.hysparse_cuda_gated_sum(view(a), view(gate_a), view(b), view(gate_b), view(self.out), _stream()))


class GatedSumBackward:
    def __init__(self, forward, d_out):
        a, gate_a, b, gate_b = forward.keep
        self.forward, self.d_out = forward, d_out
        self.da, self.db, self.dgate_a, self.dgate_b = (torch.full_like(x, float("nan")) for x in (a, b, gate_a, gate_b))

    def run(self):
        a, gate_a, b, gate_b = self.forward.keep
        _check(lib.hysparse_cuda_gated_sum_backward(view(a), view(gate_a), view(b), view(gate_b), view(self.d_out), view(self.da), view(self.db),
                                                    view(self.dgate_a), view(self.dgate_b), _stream()))
