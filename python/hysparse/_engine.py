"""Many answers at once: an engine over a model, and what comes out of it."""

from __future__ import annotations

import contextlib
import ctypes as C
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Optional, Union

from . import _arguments as arguments
from . import _library as c
from ._arguments import Ids
from ._errors import BUSY, Error
from ._generation import FINISH
from ._handle import Handle

if TYPE_CHECKING:
    from ._model import Model

_WAIT_MS = 100  # a wait in the library ends this often, so that Ctrl-C is heard


@dataclass(frozen=True)
class Event:
    """What is new of one choice."""

    choice: int
    text: str  #: whole characters, nothing of a stop text
    tokens: "list[int]"
    finish_reason: Optional[str]  #: "stop", "eos", "length", "cancelled", "error"; None: more may follow


@dataclass(frozen=True)
class Choice:
    """One complete answer."""

    text: str
    tokens: "list[int]"
    finish_reason: str


class Request(Handle):
    """A request that an engine works at: iterate for its events, or take the whole with finish()."""

    _kind = c.ANSWER

    def __init__(self, handle: int) -> None:
        self._user = threading.Lock()
        self._done = False
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0  #: known once it is complete
        self._own(handle)

    def next(self, timeout: Optional[float] = None) -> Optional[Event]:
        """The next event; None: the time (seconds) is over, or all was taken."""
        event = c.sized(c.Event)
        left = float("inf") if timeout is None else max(0.0, arguments.real(timeout, "timeout")) * 1000
        if not self._user.acquire(blocking=False):
            raise Error("answer: another thread is inside a call with it", BUSY)
        try:
            while not self._done:
                wait = min(_WAIT_MS, left)
                if c.call("hysparse_answer_next", self._handle, int(wait), C.byref(event)) == c.END:
                    self._done = True
                elif event.choice >= 0:
                    return self._taken(event)
                elif left <= 0:
                    return None
                left -= wait
            return None
        finally:
            self._user.release()

    def _taken(self, event: Any) -> Event:
        if event.last:
            self.prompt_tokens, self.cached_tokens = int(event.prompt_tokens), int(event.cached_tokens)
            self.completion_tokens = int(event.completion_tokens)
        if event.finish == 5:
            raise Error(event.error.decode(errors="replace"))
        text = C.string_at(event.text, event.text_bytes) if event.text_bytes else b""
        tokens = event.tokens[: event.token_count] if event.token_count else []
        return Event(int(event.choice), text.decode("utf-8", "replace"), tokens, FINISH.get(event.finish))

    def __iter__(self) -> Iterator[Event]:
        while (event := self.next()) is not None:
            yield event

    def finish(self) -> "list[Choice]":
        """Reads to the end: the choices in order."""
        texts: "dict[int, str]" = {}
        tokens: "dict[int, list[int]]" = {}
        reasons: "dict[int, str]" = {}
        for e in self:
            texts[e.choice] = texts.get(e.choice, "") + e.text
            tokens.setdefault(e.choice, []).extend(e.tokens)
            if e.finish_reason:
                reasons[e.choice] = e.finish_reason
        return [Choice(texts[i], tokens[i], reasons[i]) for i in sorted(reasons)]

    def cancel(self) -> None:
        """From any thread: its choices end as "cancelled"."""
        c.call("hysparse_answer_cancel", self._handle)


class Engine(Handle):
    """Serves many requests at once over a model, in a thread of the library; any thread may submit."""

    _kind = c.ENGINE

    def __init__(
        self, model: "Model", *, context: int = 0, kv_bytes: int = 0, page_size: int = 0, max_sequences: int = 0, step_tokens: int = 512,
        snapshot_interval: int = 4096, speculate: int = 0, max_queued: int = -1, prefix_cache: bool = True, recompute: bool = False,
        batch_invariant: Optional[bool] = None, kv_cache_dtype: str = "auto",
    ) -> None:
        """As the flags of ``hysparse batch``; 0 is each one's default."""
        whole = arguments.whole
        options = c.sized(
            c.EngineOptions, context=whole(context, "context"), kv_bytes=whole(kv_bytes, "kv_bytes"), page_size=whole(page_size, "page_size"),
            max_sequences=whole(max_sequences, "max_sequences"), step_tokens=whole(step_tokens, "step_tokens"),
            snapshot_interval=whole(snapshot_interval, "snapshot_interval"), speculate=whole(speculate, "speculate"),
            max_queued=whole(max_queued, "max_queued"), prefix_cache=arguments.flag(prefix_cache, "prefix_cache"),
            recompute=arguments.flag(recompute, "recompute"),
            batch_invariant=-1 if batch_invariant is None else arguments.flag(batch_invariant, "batch_invariant"),
            kv_cache_dtype=arguments.name(kv_cache_dtype, "kv_cache_dtype"),
        )
        self._model = model
        self._own(c.new_handle("hysparse_engine_start", model._handle, C.byref(options)))

    def submit(
        self, prompt: Union[str, bytes, Ids] = "", *, n: int = 1, priority: int = 0, cache_prompt: bool = True, max_new_tokens: int = 256,
        temperature: float = 0.8, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = 1.0, seed: int = 0,
        stop: Union[str, Iterable[str]] = (), ignore_eos: bool = False, special: bool = False,
    ) -> Request:
        """Queues a request and returns at once; Error for what can never be served. Options as of Model.generate."""
        stops, stop_count = arguments.string_list(stop, "stop")
        options = c.sized(
            c.GenerateOptions, max_new_tokens=arguments.whole(max_new_tokens, "max_new_tokens"), temperature=arguments.real(temperature, "temperature"),
            top_k=arguments.whole(top_k, "top_k"), top_p=arguments.real(top_p, "top_p"), min_p=arguments.real(min_p, "min_p"),
            repetition_penalty=arguments.real(repetition_penalty, "repetition_penalty"), seed=arguments.whole(seed, "seed", 0, 2**64 - 1),
            stop=stops, stop_count=stop_count, ignore_eos=arguments.flag(ignore_eos, "ignore_eos"),
        )
        extra = c.sized(
            c.SubmitOptions, n=arguments.whole(n, "n", -(2**31), 2**31 - 1), priority=arguments.whole(priority, "priority", -(2**31), 2**31 - 1),
            cache_prompt=arguments.flag(cache_prompt, "cache_prompt"),
        )
        if isinstance(prompt, (str, bytes)):
            prompt = self._model.tokenizer.encode(prompt, special=bool(arguments.flag(special, "special")), start=True)
        ids = arguments.token_ids(prompt, "prompt")
        return Request(c.new_handle("hysparse_engine_submit", self._handle, ids.ctypes.data, ids.size, C.byref(options), C.byref(extra)))

    def generate(self, prompts: "Iterable[Union[str, bytes, Ids]]", **options: Any) -> "list[list[Choice]]":
        """All prompts at once; the choices of each, in their order."""
        with contextlib.ExitStack() as stack:
            requests = [stack.enter_context(self.submit(p, **options)) for p in prompts]
            return [r.finish() for r in requests]

    def stats(self) -> "dict[str, Union[int, float]]":
        """Figures of now (queued, running, pages, slots) and since the start."""
        stats = c.sized(c.EngineStats)
        c.call("hysparse_engine_get_stats", self._handle, C.byref(stats))
        return {field[0]: getattr(stats, field[0]) for field in c.EngineStats._fields_ if field[0] != "size"}
