"""ctypes declarations of hysparse/hysparse.h, and where libhysparse is found."""

from __future__ import annotations

import ctypes as C
import os
import pathlib
import threading
from typing import Any, Optional

from ._errors import Error, FAILURE

MODEL, TOKENIZER, GENERATION, ENGINE, ANSWER = "model", "tokenizer", "generation", "engine", "answer"
END = 1

LogCallback = C.CFUNCTYPE(None, C.c_void_p, C.c_int, C.c_char_p)
ProgressCallback = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_int64)


class ModelOptions(C.Structure):
    _fields_ = [("size", C.c_size_t), ("dtype", C.c_char_p), ("threads", C.c_int32), ("log", LogCallback), ("log_user", C.c_void_p), ("weights", C.c_char_p)]


class ModelInfo(C.Structure):
    _fields_ = [
        ("size", C.c_size_t), ("vocab_size", C.c_int64), ("context", C.c_int64), ("layers", C.c_int64), ("hidden_size", C.c_int64),
        ("parameters", C.c_int64), ("threads", C.c_int32), ("has_tokenizer", C.c_int32),
    ]


class TokenizerInfo(C.Structure):
    _fields_ = [("size", C.c_size_t), ("vocab_size", C.c_int32), ("eos", C.c_int32)]


class GenerateOptions(C.Structure):
    _fields_ = [
        ("size", C.c_size_t), ("max_new_tokens", C.c_int64), ("temperature", C.c_double), ("top_k", C.c_int64), ("top_p", C.c_double),
        ("min_p", C.c_double), ("repetition_penalty", C.c_double), ("seed", C.c_uint64), ("stop", C.POINTER(C.c_char_p)),
        ("stop_count", C.c_size_t), ("context", C.c_int64), ("chunk", C.c_int64), ("ignore_eos", C.c_int32), ("special", C.c_int32),
        ("kv_cache_dtype", C.c_char_p),
    ]


class Piece(C.Structure):
    _fields_ = [("size", C.c_size_t), ("text", C.c_void_p), ("text_bytes", C.c_size_t), ("token", C.c_int32)]


class GenerationResult(C.Structure):
    _fields_ = [
        ("size", C.c_size_t), ("text", C.c_void_p), ("text_bytes", C.c_size_t), ("tokens", C.POINTER(C.c_int32)),
        ("token_count", C.c_size_t), ("finish", C.c_int32), ("prompt_tokens", C.c_int64), ("prompt_seconds", C.c_double),
        ("decode_seconds", C.c_double), ("kv_bytes", C.c_int64),
    ]


class EngineOptions(C.Structure):
    _fields_ = [
        ("size", C.c_size_t), ("context", C.c_int64), ("kv_bytes", C.c_int64), ("page_size", C.c_int64), ("max_sequences", C.c_int64),
        ("step_tokens", C.c_int64), ("snapshot_interval", C.c_int64), ("speculate", C.c_int64), ("max_queued", C.c_int64),
        ("prefix_cache", C.c_int32), ("recompute", C.c_int32), ("batch_invariant", C.c_int32),
        ("kv_cache_dtype", C.c_char_p),
    ]


class SubmitOptions(C.Structure):
    _fields_ = [("size", C.c_size_t), ("n", C.c_int32), ("priority", C.c_int32), ("cache_prompt", C.c_int32)]


class Event(C.Structure):
    _fields_ = [
        ("size", C.c_size_t), ("choice", C.c_int32), ("finish", C.c_int32), ("text", C.c_void_p), ("text_bytes", C.c_size_t),
        ("tokens", C.POINTER(C.c_int32)), ("token_count", C.c_size_t), ("error", C.c_char_p), ("last", C.c_int32),
        ("prompt_tokens", C.c_int64), ("cached_tokens", C.c_int64), ("completion_tokens", C.c_int64),
    ]


class EngineStats(C.Structure):
    _fields_ = [
        ("size", C.c_size_t), ("context", C.c_int64), ("queued", C.c_int64), ("running", C.c_int64), ("page_size", C.c_int64),
        ("pages", C.c_int64), ("pages_used", C.c_int64), ("pages_cached", C.c_int64), ("slots", C.c_int64), ("slots_running", C.c_int64),
        ("slots_snapshots", C.c_int64), ("submitted", C.c_int64), ("finished", C.c_int64), ("cancelled", C.c_int64), ("failed", C.c_int64),
        ("prompt_tokens", C.c_int64), ("cached_tokens", C.c_int64), ("generated_tokens", C.c_int64), ("drafted", C.c_int64),
        ("accepted", C.c_int64), ("cache_hits", C.c_int64), ("preemptions", C.c_int64), ("steps", C.c_int64), ("step_seconds", C.c_double),
        ("healthy", C.c_int32),
    ]


class PerplexityOptions(C.Structure):
    _fields_ = [
        ("size", C.c_size_t), ("window", C.c_int64), ("stride", C.c_int64), ("batch", C.c_int64), ("max_tokens", C.c_int64),
        ("progress", ProgressCallback), ("progress_user", C.c_void_p),
    ]


class PerplexityResult(C.Structure):
    _fields_ = [
        ("size", C.c_size_t), ("documents", C.c_int64), ("tokens", C.c_int64), ("bytes", C.c_int64), ("nats", C.c_double),
        ("nats_per_token", C.c_double), ("standard_error", C.c_double), ("perplexity", C.c_double), ("bits_per_byte", C.c_double),
        ("bits_per_byte_standard_error", C.c_double),
    ]


class PlanOptions(C.Structure):
    _fields_ = [
        ("size", C.c_size_t), ("context", C.c_int64), ("batch", C.c_int64), ("dtype", C.c_char_p), ("set", C.POINTER(C.c_char_p)),
        ("set_count", C.c_size_t),
    ]


def sized(struct: type[Any], **fields: Any) -> Any:
    return struct(size=C.sizeof(struct), **fields)


_out = C.POINTER(C.c_void_p)
_ids = C.POINTER(C.c_int32)
_SIGNATURES: dict[str, list[Any]] = {
    "hysparse_model_load": [C.c_char_p, C.POINTER(ModelOptions), _out],
    "hysparse_model_free": [C.c_void_p],
    "hysparse_model_get_info": [C.c_void_p, C.POINTER(ModelInfo)],
    "hysparse_model_config": [C.c_void_p, _out],
    "hysparse_model_tokenizer": [C.c_void_p, _out],
    "hysparse_logits": [C.c_void_p, C.c_void_p, C.c_size_t, C.c_void_p, C.c_size_t],
    "hysparse_tokenizer_load": [C.c_char_p, _out],
    "hysparse_tokenizer_free": [C.c_void_p],
    "hysparse_tokenizer_get_info": [C.c_void_p, C.POINTER(TokenizerInfo)],
    "hysparse_tokenizer_encode": [C.c_void_p, C.c_char_p, C.c_size_t, C.c_int, C.POINTER(_ids), C.POINTER(C.c_size_t)],
    "hysparse_tokenizer_encode_from_start": [C.c_void_p, C.c_char_p, C.c_size_t, C.c_int, C.POINTER(_ids), C.POINTER(C.c_size_t)],
    "hysparse_tokenizer_decode": [C.c_void_p, C.c_void_p, C.c_size_t, C.c_int, _out, C.POINTER(C.c_size_t)],
    "hysparse_generation_start": [C.c_void_p, C.c_void_p, C.c_size_t, C.POINTER(GenerateOptions), _out],
    "hysparse_generation_next": [C.c_void_p, C.POINTER(Piece)],
    "hysparse_generation_cancel": [C.c_void_p],
    "hysparse_generation_get_result": [C.c_void_p, C.POINTER(GenerationResult)],
    "hysparse_generation_free": [C.c_void_p],
    "hysparse_engine_start": [C.c_void_p, C.POINTER(EngineOptions), _out],
    "hysparse_engine_free": [C.c_void_p],
    "hysparse_engine_submit": [C.c_void_p, C.c_void_p, C.c_size_t, C.POINTER(GenerateOptions), C.POINTER(SubmitOptions), _out],
    "hysparse_engine_get_stats": [C.c_void_p, C.POINTER(EngineStats)],
    "hysparse_answer_next": [C.c_void_p, C.c_int64, C.POINTER(Event)],
    "hysparse_answer_cancel": [C.c_void_p],
    "hysparse_answer_free": [C.c_void_p],
    "hysparse_perplexity": [C.c_void_p, C.c_void_p, C.POINTER(C.c_size_t), C.c_size_t, C.POINTER(PerplexityOptions), C.POINTER(PerplexityResult)],
    "hysparse_plan": [C.c_char_p, C.POINTER(PlanOptions), _out],
}


def _candidates() -> list[str]:
    """HYSPARSE_LIBRARY alone where it is set; else beside this file (the wheel), a build of the source tree, the system's."""
    chosen = os.environ.get("HYSPARSE_LIBRARY")
    if chosen:
        return [chosen]
    here = pathlib.Path(__file__).resolve().parent
    local = [here / "libhysparse.so", here.parent.parent / "build" / "lib" / "libhysparse.so"]
    return [str(p) for p in local if p.exists()] + ["libhysparse.so.0"]


def _load() -> C.CDLL:
    tried: list[str] = []
    for path in _candidates():
        try:
            lib = C.CDLL(path)
        except OSError as e:
            tried.append(str(e))
            continue
        try:
            for name, arguments in _SIGNATURES.items():
                function = getattr(lib, name)
                function.argtypes, function.restype = arguments, C.c_int
            lib.hysparse_version.restype = lib.hysparse_last_error.restype = C.c_char_p
            lib.hysparse_free.argtypes, lib.hysparse_free.restype = [C.c_void_p], None
        except AttributeError as e:
            raise Error(f"{path} does not belong to this version of the Python package: {e}", FAILURE) from None
        return lib
    raise Error(f"libhysparse was not found: {'; '.join(tried)} (build it, or name it in HYSPARSE_LIBRARY)", FAILURE)


_lock = threading.Lock()
_library: Optional[C.CDLL] = None


def library() -> C.CDLL:
    """libhysparse, loaded at the first use."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                _library = _load()
    return _library


def version() -> str:
    found: bytes = library().hysparse_version()
    return found.decode()


def new_handle(name: str, *arguments: Any) -> int:
    """Calls a function whose last argument receives a handle."""
    handle = C.c_void_p()
    call(name, *arguments, C.byref(handle))
    if handle.value is None:
        raise Error(f"{name} gave no handle", FAILURE)
    return handle.value


def call(name: str, *arguments: Any) -> int:
    """Calls a function of the library without the GIL; its code, or Error."""
    lib = library()
    code: int = getattr(lib, name)(*arguments)
    if code < 0:
        raise Error(lib.hysparse_last_error().decode(errors="replace"), code)
    return code


def free_handle(kind: str, handle: int) -> None:
    """For weakref.finalize; in a forked child the library only forgets it."""
    getattr(library(), f"hysparse_{kind}_free")(handle)


def take_bytes(pointer: C.c_void_p, size: int) -> bytes:
    """Copies and frees what the library handed out."""
    try:
        return C.string_at(pointer.value or 0, size) if size else b""
    finally:
        library().hysparse_free(pointer)


def take_text(pointer: C.c_void_p) -> str:
    try:
        return C.string_at(pointer.value or 0).decode()
    finally:
        library().hysparse_free(pointer)
