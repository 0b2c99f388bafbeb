"""Text to ids and back."""

from __future__ import annotations

import ctypes as C
from typing import Union

from . import _arguments as arguments
from . import _library as c
from ._arguments import Ids, Path
from ._handle import Handle


class Tokenizer(Handle):
    """Byte-level BPE in Hugging Face's tokenizer.json form. All threads may use one at once."""

    _kind = c.TOKENIZER
    _vocab_size: int
    _eos: int

    def __init__(self) -> None:
        raise TypeError("use Tokenizer.load(path) or model.tokenizer")

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """From a folder with tokenizer.json, or from that file."""
        return cls._of(c.new_handle("hysparse_tokenizer_load", arguments.path(path, "path")))

    @classmethod
    def _of(cls, handle: int) -> "Tokenizer":
        self = cls.__new__(cls)
        self._own(handle)
        info = c.sized(c.TokenizerInfo)
        c.call("hysparse_tokenizer_get_info", self._handle, C.byref(info))
        self._vocab_size, self._eos = int(info.vocab_size), int(info.eos)
        return self

    @property
    def vocab_size(self) -> int:
        """The largest id + 1."""
        return self._vocab_size

    @property
    def eos_id(self) -> "int | None":
        """The end-of-text token, None where none is known."""
        return None if self._eos < 0 else self._eos

    def encode(self, text: Union[str, bytes], *, special: bool = False, start: bool = False) -> "list[int]":
        """The ids of a text. ``special``: texts of special tokens ("<|endoftext|>") become their ids; else they are
        plain text. ``start``: with what the tokenizer's files put before every text (usually nothing, or BOS), as a model
        reads it from its beginning; else neither BOS nor EOS is added. Any bytes are allowed."""
        data = arguments.text(text, "text")
        ids, count = C.POINTER(C.c_int32)(), C.c_size_t()
        call = "hysparse_tokenizer_encode_from_start" if arguments.flag(start, "start") else "hysparse_tokenizer_encode"
        c.call(call, self._handle, data, len(data), arguments.flag(special, "special"), C.byref(ids), C.byref(count))
        try:
            return ids[: count.value]
        finally:
            c.library().hysparse_free(ids)

    def decode_bytes(self, ids: Ids, *, special: bool = False) -> bytes:
        """The bytes of the ids, exactly. ``special``: special tokens are written, too; else they are left out."""
        array = arguments.token_ids(ids, "ids")
        text, size = C.c_void_p(), C.c_size_t()
        c.call(
            "hysparse_tokenizer_decode", self._handle, array.ctypes.data, array.size, arguments.flag(special, "special"), C.byref(text),
            C.byref(size),
        )
        return c.take_bytes(text, size.value)

    def decode(self, ids: Ids, *, special: bool = False) -> str:
        """The text of the ids; what is no UTF-8 (an id may end within a character) becomes U+FFFD."""
        return self.decode_bytes(ids, special=special).decode("utf-8", "replace")

    def __repr__(self) -> str:
        return f"<hysparse.Tokenizer: {self._vocab_size} ids{', closed' if self.closed else ''}>"
