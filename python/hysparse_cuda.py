"""ctypes binding of libhysparse_cuda for torch tensors: what the GPU checks and benchmarks call."""
import ctypes as C
import os

import torch

_PATH = os.environ.get("HYSPARSE_CUDA_LIBRARY", os.path.join(os.path.dirname(__file__), "../build/cuda/lib/libhysparse_cuda.so"))
lib = C.CDLL(_PATH)
lib.hysparse_cuda_last_error.restype = C.c_char_p
lib.hysparse_cuda_version.restype = C.c_char_p


class Tensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("stride_row", C.c_int64), ("stride_head", C.c_int64)]


def tensor(t):
    """[rows, heads, dim] with a dense last dimension."""
    if t is None:
        return Tensor(None, 0, 0)
    assert t.dim() == 3 and t.stride(2) == 1
    return Tensor(t.data_ptr(), t.stride(0), t.stride(1))


class AttentionParams(C.Structure):
    _fields_ = [
        ("batch", C.c_void_p),
        ("q_heads", C.c_int32), ("kv_heads", C.c_int32), ("head_dim", C.c_int32), ("v_head_dim", C.c_int32),
        ("q", Tensor), ("k", Tensor), ("v", Tensor),
        ("kv_rows", C.c_int64), ("scale", C.c_float),
        ("o", Tensor), ("lse", C.c_void_p),
        ("block", C.c_int32), ("entries", C.c_int32), ("force_first", C.c_int32), ("force_diagonal", C.c_int32),
        ("idx", C.c_void_p), ("block_scores", C.c_void_p), ("score_stride", C.c_int64),
        ("workspace", C.c_void_p), ("workspace_bytes", C.c_size_t),
    ]


lib.hysparse_cuda_attention_workspace.restype = C.c_size_t


def _stream():
    return C.c_void_p(torch.cuda.current_stream().cuda_stream)


def _check(code):
    if code != 0:
        raise RuntimeError(f"{lib.hysparse_cuda_last_error().decode()} (code {code})")


class Batch:
    """A ragged batch; lengths and pasts a sequence."""

    def __init__(self, lengths, pasts=None, cu_kv=None):
        cu = [0]
        for n in lengths:
            cu.append(cu[-1] + n)
        self.cu, self.lengths, self.pasts = cu, list(lengths), list(pasts or [0] * len(lengths))
        past = (C.c_int32 * len(lengths))(*self.pasts)
        kv = (C.c_int32 * len(cu_kv))(*cu_kv) if cu_kv else None
        self.handle = C.c_void_p()
        _check(lib.hysparse_cuda_batch_create(len(lengths), (C.c_int32 * len(cu))(*cu), past, kv, _stream(), C.byref(self.handle)))

    def __del__(self):
        if getattr(self, "handle", None):
            lib.hysparse_cuda_batch_destroy(self.handle)


class Attention:
    """Prepared call: outputs and workspace are allocated (and poisoned) once; run() launches."""

    def __init__(self, batch, q, k, v, scale, block=64, entries=0, scores=False, force_first=False, force_diagonal=False):
        n, hq, d = q.shape
        _, hkv, dv = v.shape
        self.keep = (batch, q, k, v)
        self.o = torch.full((n, hq, dv), float("nan"), dtype=torch.bfloat16, device="cuda")
        self.lse = torch.full((n, hq), float("nan"), dtype=torch.float32, device="cuda")
        self.idx = torch.full((n, hkv, entries), -7, dtype=torch.int32, device="cuda") if entries else None
        longest = max(a + b for a, b in zip(batch.lengths, batch.pasts))
        blocks = (longest + block - 1) // block
        self.scores = torch.full((n, hkv, blocks), float("nan"), device="cuda") if scores else None
        p = AttentionParams()
        p.batch = batch.handle
        p.q_heads, p.kv_heads, p.head_dim, p.v_head_dim = hq, hkv, d, dv
        p.q, p.k, p.v, p.o = tensor(q), tensor(k), tensor(v), tensor(self.o)
        p.kv_rows, p.scale = k.shape[0], scale
        p.lse = self.lse.data_ptr()
        p.block, p.entries, p.force_first, p.force_diagonal = block, entries, force_first, force_diagonal
        p.idx = self.idx.data_ptr() if entries else None
        p.block_scores = self.scores.data_ptr() if scores else None
        p.score_stride = blocks
        self.p = p
        size = lib.hysparse_cuda_attention_workspace(C.byref(p))
        self.workspace = torch.empty(max(size, 256), dtype=torch.uint8, device="cuda")
        p.workspace, p.workspace_bytes = self.workspace.data_ptr(), size

    def run(self):
        _check(lib.hysparse_cuda_attention(C.byref(self.p), _stream()))


class AttentionBackwardParams(C.Structure):
    _fields_ = [
        ("batch", C.c_void_p),
        ("q_heads", C.c_int32), ("kv_heads", C.c_int32), ("head_dim", C.c_int32), ("v_head_dim", C.c_int32),
        ("q", Tensor), ("k", Tensor), ("v", Tensor),
        ("kv_rows", C.c_int64), ("scale", C.c_float),
        ("o", Tensor), ("lse", C.c_void_p), ("d_o", Tensor),
        ("dq", Tensor), ("dk", Tensor), ("dv", Tensor),
        ("deterministic", C.c_int32),
        ("workspace", C.c_void_p), ("workspace_bytes", C.c_size_t),
    ]


lib.hysparse_cuda_attention_backward_workspace.restype = C.c_size_t


class AttentionBackward:
    """dq is poisoned; dk and dv are zeroed once and added to by each run()."""

    def __init__(self, batch, q, k, v, scale, o, lse, d_o, deterministic=False, dq=None, dk=None):
        n, hq, d = q.shape
        _, hkv, dv = v.shape
        self.keep = (batch, q, k, v, o, lse, d_o)
        self.dq = torch.full((n, hq, d), float("nan"), dtype=torch.bfloat16, device="cuda") if dq is None else dq
        self.dk = torch.zeros(k.shape, dtype=torch.float32, device="cuda") if dk is None else dk
        self.dv = torch.zeros(v.shape, dtype=torch.float32, device="cuda")
        p = AttentionBackwardParams()
        p.batch = batch.handle
        p.q_heads, p.kv_heads, p.head_dim, p.v_head_dim = hq, hkv, d, dv
        p.q, p.k, p.v, p.o, p.d_o = tensor(q), tensor(k), tensor(v), tensor(o), tensor(d_o)
        p.dq, p.dk, p.dv = tensor(self.dq), tensor(self.dk), tensor(self.dv)
        p.kv_rows, p.scale, p.lse, p.deterministic = k.shape[0], scale, lse.data_ptr(), deterministic
        self.p = p
        size = lib.hysparse_cuda_attention_backward_workspace(C.byref(p))
        self.workspace = torch.empty(max(size, 256), dtype=torch.uint8, device="cuda")
        p.workspace, p.workspace_bytes = self.workspace.data_ptr(), size

    def run(self):
        _check(lib.hysparse_cuda_attention_backward(C.byref(self.p), _stream()))


class SelectionParams(C.Structure):
    _fields_ = [
        ("batch", C.c_void_p), ("idx", C.c_void_p),
        ("q_heads", C.c_int32), ("kv_heads", C.c_int32), ("block", C.c_int32), ("entries", C.c_int32),
        ("backward", C.c_int32),
        ("workspace", C.c_void_p), ("workspace_bytes", C.c_size_t),
    ]


class SparseParams(C.Structure):
    _fields_ = [
        ("selection", C.c_void_p),
        ("q_heads", C.c_int32), ("kv_heads", C.c_int32), ("head_dim", C.c_int32), ("v_head_dim", C.c_int32),
        ("q", Tensor), ("k", Tensor), ("v", Tensor),
        ("kv_rows", C.c_int64), ("scale", C.c_float), ("sinks", C.c_void_p),
        ("o", Tensor), ("lse", C.c_void_p),
        ("workspace", C.c_void_p), ("workspace_bytes", C.c_size_t),
    ]


lib.hysparse_cuda_sparse_workspace.restype = C.c_size_t
lib.hysparse_cuda_selection_workspace.restype = C.c_size_t


class Selection:
    """Prepared block indices [tokens, Hkv, entries]; build() redoes the device work (for timing)."""

    def __init__(self, batch, idx, q_heads, block, backward=False):
        self.keep, self.q_heads = (batch, idx), q_heads
        p = SelectionParams()
        p.batch, p.idx = batch.handle, idx.data_ptr()
        p.q_heads, p.kv_heads, p.block, p.entries = q_heads, idx.shape[1], block, idx.shape[2]
        p.backward = backward
        size = lib.hysparse_cuda_selection_workspace(C.byref(p))
        if size == 0:
            raise RuntimeError(lib.hysparse_cuda_last_error().decode())
        self.workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
        p.workspace, p.workspace_bytes = self.workspace.data_ptr(), size
        self.p, self.handle = p, None
        self.build()

    def build(self):
        self.free()
        self.handle = C.c_void_p()
        _check(lib.hysparse_cuda_selection_create(C.byref(self.p), _stream(), C.byref(self.handle)))

    def free(self):
        if getattr(self, "handle", None):
            lib.hysparse_cuda_selection_destroy(self.handle)
            self.handle = None

    __del__ = free


class SparseAttention:
    def __init__(self, selection, q, k, v, scale, sinks=None):
        n, hq, d = q.shape
        _, hkv, dv = v.shape
        self.keep = (selection, q, k, v, sinks)
        self.o = torch.full((n, hq, dv), float("nan"), dtype=torch.bfloat16, device="cuda")
        self.lse = torch.full((n, hq), float("nan"), dtype=torch.float32, device="cuda")
        p = SparseParams()
        p.q_heads, p.kv_heads, p.head_dim, p.v_head_dim = hq, hkv, d, dv
        p.q, p.k, p.v, p.o = tensor(q), tensor(k), tensor(v), tensor(self.o)
        p.kv_rows, p.scale, p.lse = k.shape[0], scale, self.lse.data_ptr()
        p.sinks = sinks.data_ptr() if sinks is not None else None
        self.p, self.selection = p, selection
        p.selection = selection.handle
        size = lib.hysparse_cuda_sparse_workspace(C.byref(p))
        self.workspace = torch.empty(max(size, 256), dtype=torch.uint8, device="cuda")
        p.workspace, p.workspace_bytes = self.workspace.data_ptr(), size

    def run(self):
        self.p.selection = self.selection.handle
        _check(lib.hysparse_cuda_sparse_attention(C.byref(self.p), _stream()))
