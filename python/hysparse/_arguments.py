"""What callers may pass, checked and turned into what C takes. A wrong type is a TypeError that says what came."""

from __future__ import annotations

import ctypes as C
import operator
import os
from typing import Any, Iterable, Sequence, Union

import numpy as np
import numpy.typing as npt

from ._errors import Error

Ids = Union[Sequence[int], "npt.NDArray[np.integer[Any]]"]
Path = Union[str, "os.PathLike[str]"]


def path(value: Path, what: str) -> bytes:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{what}: expected a path, got {type(value).__name__}")
    encoded = os.fsencode(value)
    if b"\0" in encoded:
        raise Error(f"{what}: a path holds no NUL")
    return encoded


def name(value: str, what: str) -> bytes:
    """A text without NUL, for what C ends at one."""
    if not isinstance(value, str):
        raise TypeError(f"{what}: expected str, got {type(value).__name__}")
    if "\0" in value:
        raise Error(f"{what}: no NUL can stand in it")
    return utf8(value, what)


def utf8(value: str, what: str) -> bytes:
    """Lone surrogates, as of os.fsdecode(), stand for the bytes that they came from."""
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as e:
        raise Error(f"{what}: {e.reason} at {e.start}") from None


def text(value: Union[str, bytes], what: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise TypeError(f"{what}: expected str or bytes, got {type(value).__name__}")
    return utf8(value, what)


def whole(value: int, what: str, low: int = -(2**63), high: int = 2**63 - 1) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{what}: expected a whole number, got bool")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what}: expected a whole number, got {type(value).__name__}") from None
    if not low <= number <= high:
        raise Error(f"{what}: expected {low} to {high}, got {number}")
    return number


def real(value: float, what: str) -> float:
    if isinstance(value, (bool, np.bool_, str, bytes)):
        raise TypeError(f"{what}: expected a number, got {type(value).__name__}")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{what}: expected a number, got {type(value).__name__}") from None
    except OverflowError:
        raise Error(f"{what}: the number is too large") from None


def flag(value: bool, what: str) -> int:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{what}: expected True or False, got {type(value).__name__}")
    return int(value)


def _array_of(value: Any, what: str) -> "npt.NDArray[Any]":
    try:
        items = list(value)
    except TypeError:
        raise TypeError(f"{what}: expected token ids, got {type(value).__name__}") from None
    try:
        array = np.array(items)
    except (ValueError, OverflowError):  # ragged, or beyond 64 bits: named below
        array = np.zeros(0)
    if array.dtype.kind in "iu" and array.ndim == 1:
        return array
    return np.array([whole(x, f"{what}: token {i}") for i, x in enumerate(items)], dtype=np.int64)


def token_ids(value: Ids, what: str) -> "npt.NDArray[np.int32]":
    """A contiguous int32 array of a list, tuple, range or integer array of one dimension."""
    if isinstance(value, (str, bytes)) or value is None:
        raise TypeError(f"{what}: expected token ids, got {type(value).__name__}")
    array = value if isinstance(value, np.ndarray) else _array_of(value, what)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{what}: expected whole numbers, got an array of {array.dtype}")
    if array.ndim != 1:
        raise TypeError(f"{what}: expected one dimension, got {array.ndim}")
    wrong = (array < 0) | (array > 2**31 - 1)
    if wrong.any():
        at = int(wrong.argmax())
        raise Error(f"{what}: token {at}: expected an id from 0 to {2**31 - 1}, got {array[at]}")
    return np.ascontiguousarray(array, dtype=np.int32)


def string_list(values: Union[str, Iterable[str]], what: str) -> "tuple[Any, int]":
    """A char*[] and its length; a single text counts as a list of one."""
    if isinstance(values, str):
        values = [values]
    try:
        items = list(values)
    except TypeError:
        raise TypeError(f"{what}: expected texts, got {type(values).__name__}") from None
    encoded = [name(x, f"{what}[{i}]") for i, x in enumerate(items)]
    return (C.c_char_p * len(encoded))(*encoded), len(encoded)
