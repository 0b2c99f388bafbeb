"""Answers as they come and as they came."""

from __future__ import annotations

import contextlib
import ctypes as C
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Iterator, Optional

from . import _library as c
from ._errors import BUSY, Error
from ._handle import Handle

if TYPE_CHECKING:
    from ._model import Model

FINISH = {1: "stop", 2: "eos", 3: "length", 4: "cancelled"}


@dataclass(frozen=True)
class Answer:
    """What a generation made (so far)."""

    text: str  #: "" where the model has no tokenizer
    tokens: "list[int]"  #: drawn, a final end-of-text token included
    finish_reason: Optional[str]  #: "stop" (a stop text), "eos", "length", "cancelled"; None: still going
    prompt_tokens: int
    prompt_seconds: float
    decode_seconds: float
    kv_bytes: int  #: of the KV cache: pages in use and rings

    def __str__(self) -> str:
        return self.text


class Generation(Handle):
    """An answer that is made while it is read: iterate for the pieces of text, or over tokens() for the ids.

    Nothing is computed ahead. Leave it at any time: close() (or the end of a ``with`` block, or the last reference
    going away) frees its cache.
    """

    _kind = c.GENERATION

    def __init__(self, model: "Model", handle: int) -> None:
        self._model = model
        self._done = False
        self._closing = False
        self._answer: Optional[Answer] = None  # once it is complete
        self._user = threading.Lock()  # held while this generation serves a thread, whose texts a close() must not free
        self._own(handle)

    @contextlib.contextmanager
    def _using(self) -> Iterator[int]:
        if not self._user.acquire(blocking=False):
            raise Error("generation: another thread is inside a call with it", BUSY)
        try:
            yield self._handle
        finally:
            self._user.release()
            if self._closing:
                self._finalizer()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closing or not self._finalizer.alive

    def close(self) -> None:
        """Ends the answer and frees its cache; a step that another thread is in ends first."""
        self._closing = True
        with contextlib.suppress(Error):
            self.cancel()
        if self._user.acquire(blocking=False):
            try:
                self._finalizer()
            finally:
                self._user.release()

    def _step(self) -> "tuple[bytes, int]":
        piece = c.sized(c.Piece)
        with self._using() as handle:
            self._done = c.call("hysparse_generation_next", handle, C.byref(piece)) == c.END
            text = C.string_at(piece.text, piece.text_bytes) if piece.text_bytes else b""
            if self._done:
                self._answer = self._read_answer(handle)
        return text, int(piece.token)

    def __iter__(self) -> "Iterator[str]":
        return self

    def __next__(self) -> str:
        """The next piece of text: whole characters, nothing of a stop text."""
        if not self._model.has_tokenizer:
            raise Error("generation: the model has no tokenizer, so there is no text (iterate over tokens())")
        while not self._done and not self.closed:
            text, _ = self._step()
            if text:
                return text.decode("utf-8", "replace")
        raise StopIteration

    def tokens(self) -> "Iterator[int]":
        """The ids as they are drawn, a final end-of-text token included."""
        while not self._done and not self.closed:
            _, token = self._step()
            if token >= 0:
                yield token

    def cancel(self) -> None:
        """Ends the answer at its next step; from any thread."""
        c.call("hysparse_generation_cancel", self._handle)

    def finish(self) -> Answer:
        """Reads to the end."""
        while not self._done:
            self._step()
        return self.answer

    @property
    def answer(self) -> Answer:
        """All that came so far; the whole of a complete answer also after close()."""
        if self._answer is not None:
            return self._answer
        with self._using() as handle:
            return self._read_answer(handle)

    def _read_answer(self, handle: int) -> Answer:
        result = c.sized(c.GenerationResult)
        c.call("hysparse_generation_get_result", handle, C.byref(result))
        text = C.string_at(result.text, result.text_bytes) if result.text_bytes else b""
        return Answer(
            text.decode("utf-8", "replace"), result.tokens[: result.token_count] if result.token_count else [], FINISH.get(result.finish),
            int(result.prompt_tokens), float(result.prompt_seconds), float(result.decode_seconds), int(result.kv_bytes),
        )

    def __repr__(self) -> str:
        return f"<hysparse.Generation: {'closed' if self.closed else 'complete' if self._done else 'going on'}>"
