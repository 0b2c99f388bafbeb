"""ctypes binding of hysparse/cuda_decode.h for torch tensors."""
import ctypes as C

import torch

from hysparse_cuda import Tensor, _check, _stream, lib, tensor

lib.hysparse_cuda_decode_full_workspace.restype = C.c_size_t


class Rows(C.Structure):
    _fields_ = [("data", C.c_void_p), ("stride_outer", C.c_int64), ("stride_row", C.c_int64), ("stride_head", C.c_int64)]


def rows(t):
    """[outer, rows, heads, dim] with a dense last dimension."""
    if t is None:
        return Rows(None, 0, 0, 0)
    assert t.dim() == 4 and t.stride(3) == 1
    return Rows(t.data_ptr(), t.stride(0), t.stride(1), t.stride(2))


class PagesParams(C.Structure):
    _fields_ = [("k", Rows), ("v", Rows), ("page_table", C.c_void_p), ("page_table_stride", C.c_int64), ("page_size", C.c_int32), ("code", C.c_int32), ("scales", C.c_void_p)]


class Codes:
    """K or V in 8 bits: codes [pages, page_size, Hkv, dim] int8 or float8_e4m3fn; scales [pages, page_size, Hkv, 2] of both."""

    def __init__(self, codes, scales):
        self.codes, self.scales, self.shape = codes, scales, codes.shape

    def wide(self, which):
        return self.codes.float() * self.scales[..., which : which + 1].float()


class RingParams(C.Structure):
    _fields_ = [("k", Rows), ("v", Rows), ("slot", C.c_void_p), ("length", C.c_int32), ("fresh_k", Tensor), ("fresh_v", Tensor)]


class FullParams(C.Structure):
    _fields_ = [
        ("batch", C.c_int32), ("q_heads", C.c_int32), ("kv_heads", C.c_int32), ("head_dim", C.c_int32), ("v_head_dim", C.c_int32),
        ("kv_len", C.c_void_p), ("max_kv_len", C.c_int32),
        ("q", Tensor), ("kv", PagesParams), ("scale", C.c_float), ("o", Tensor), ("lse", C.c_void_p),
        ("block", C.c_int32), ("entries", C.c_int32), ("force_first", C.c_int32), ("force_diagonal", C.c_int32),
        ("idx", C.c_void_p), ("block_scores", C.c_void_p), ("score_stride", C.c_int64),
        ("workspace", C.c_void_p), ("workspace_bytes", C.c_size_t),
    ]


class SparseParams(C.Structure):
    _fields_ = [
        ("batch", C.c_int32), ("q_heads", C.c_int32), ("kv_heads", C.c_int32), ("head_dim", C.c_int32), ("v_head_dim", C.c_int32),
        ("kv_len", C.c_void_p), ("q", Tensor), ("scale", C.c_float), ("kv", PagesParams),
        ("block", C.c_int32), ("entries", C.c_int32), ("idx", C.c_void_p), ("sparse_sinks", C.c_void_p),
        ("window", C.c_int32), ("shared_window", C.c_int32), ("ring", RingParams), ("window_sinks", C.c_void_p),
        ("gate_sparse", C.c_void_p), ("gate_window", C.c_void_p), ("gate_stride", C.c_int64), ("gate_channels", C.c_int32),
        ("out", Tensor),
    ]


def pages(k, v, table):
    if isinstance(k, Codes):
        code = 1 if k.codes.dtype == torch.int8 else 2
        return PagesParams(rows(k.codes), rows(v.codes), table.data_ptr(), table.stride(0), k.shape[1], code, k.scales.data_ptr())
    return PagesParams(rows(k), rows(v), table.data_ptr(), table.stride(0), k.shape[1])


def in_8_bits(k, v, code):
    """Codes of bf16 pages k, v; code "int8" or "fp8". Scales: the smallest power of two >= largest / 127 (/ 448)."""
    scales = torch.empty(*k.shape[:3], 2, dtype=torch.bfloat16, device=k.device)
    out = []
    for which, x in enumerate((k.float(), v.float())):
        top = x.abs().amax(-1) / (127.0 if code == "int8" else 448.0)
        scale = torch.exp2(torch.ceil(torch.log2(top)))
        scales[..., which] = scale.bfloat16()
        y = x / scale[..., None]
        out.append(y.nan_to_num().round().to(torch.int8) if code == "int8" else y.nan_to_num().to(torch.float8_e4m3fn))
    return Codes(out[0], scales), Codes(out[1], scales)


def _pointer(t):
    return t.data_ptr() if t is not None else None


class DecodeFull:
    """k, v [pages, page_size, Hkv, d | dv]; table [batch, n] i32; kv_len [batch] i32 on the device."""

    def __init__(self, q, k, v, table, kv_len, max_kv_len, scale, block=64, entries=0, scores=False, force_first=False, force_diagonal=False):
        b, hq, d = q.shape
        hkv, dv = v.shape[2:]
        self.keep = (q, k, v, table, kv_len)
        self.o = torch.full((b, hq, dv), float("nan"), dtype=torch.bfloat16, device="cuda")
        self.lse = torch.full((b, hq), float("nan"), device="cuda")
        self.idx = torch.full((b, hkv, entries), -7, dtype=torch.int32, device="cuda") if entries else None
        blocks = (max_kv_len + block - 1) // block
        self.scores = torch.full((b, hkv, blocks), float("nan"), device="cuda") if scores else None
        p = self.p = FullParams()
        p.batch, p.q_heads, p.kv_heads, p.head_dim, p.v_head_dim = b, hq, hkv, d, dv
        p.kv_len, p.max_kv_len, p.q, p.kv, p.scale = kv_len.data_ptr(), max_kv_len, tensor(q), pages(k, v, table), scale
        p.o, p.lse = tensor(self.o), self.lse.data_ptr()
        p.block, p.entries, p.force_first, p.force_diagonal = block, entries, force_first, force_diagonal
        p.idx, p.block_scores, p.score_stride = _pointer(self.idx), _pointer(self.scores), blocks
        size = lib.hysparse_cuda_decode_full_workspace(C.byref(p))
        self.workspace = torch.full((max(size, 256),), 0xFF, dtype=torch.uint8, device="cuda")
        p.workspace, p.workspace_bytes = self.workspace.data_ptr(), size

    def run(self):
        _check(lib.hysparse_cuda_decode_full(C.byref(self.p), _stream()))


class DecodeSparse:
    """window_k, window_v: rings [slots, length, Hkv, d | dv] with `slot` [batch]; None with window > 0: the shared K and V."""

    def __init__(self, q, k, v, table, kv_len, scale, idx=None, block=64, sinks=None, window=0, window_k=None, window_v=None, slot=None,
                 fresh_k=None, fresh_v=None, window_sinks=None, gate_sparse=None, gate_window=None, gate_channels=False):
        b, hq, d = q.shape
        hkv, dv = (v if v is not None else window_v).shape[2:]
        self.keep = (q, k, v, table, kv_len, idx, sinks, window_k, window_v, slot, fresh_k, fresh_v, window_sinks, gate_sparse, gate_window)
        self.out = torch.full((b, hq, dv), float("nan"), dtype=torch.bfloat16, device="cuda")
        p = self.p = SparseParams()
        p.batch, p.q_heads, p.kv_heads, p.head_dim, p.v_head_dim = b, hq, hkv, d, dv
        p.kv_len, p.q, p.scale = kv_len.data_ptr(), tensor(q), scale
        if k is not None:
            p.kv = pages(k, v, table)
        p.block, p.entries, p.idx, p.sparse_sinks = block, idx.shape[2] if idx is not None else 0, _pointer(idx), _pointer(sinks)
        p.window, p.shared_window = window, window > 0 and window_k is None
        if window_k is not None:
            p.ring = RingParams(rows(window_k), rows(window_v), slot.data_ptr(), window_k.shape[1], tensor(fresh_k), tensor(fresh_v))
        p.window_sinks, p.gate_sparse, p.gate_window = _pointer(window_sinks), _pointer(gate_sparse), _pointer(gate_window)
        p.gate_stride, p.gate_channels = (gate_sparse if gate_sparse is not None else gate_window).stride(0) if gate_sparse is not None or gate_window is not None else 0, gate_channels
        p.out = tensor(self.out)

    def run(self):
        _check(lib.hysparse_cuda_decode_sparse(C.byref(self.p), _stream()))
