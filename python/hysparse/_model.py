"""Models."""

from __future__ import annotations

import ctypes as C
import json
import logging
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Literal, Optional, Sequence, TypedDict, Union, Unpack, overload

import numpy as np
import numpy.typing as npt

from . import _arguments as arguments
from . import _library as c
from ._arguments import Ids, Path
from ._generation import Answer, Generation
from ._handle import Handle
from ._tokenizer import Tokenizer

_LEVELS = {0: logging.DEBUG, 1: logging.INFO, 2: logging.WARNING}


class GenerateOptions(TypedDict, total=False):
    """The keywords of Model.generate(), with its defaults."""

    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int
    stop: Union[str, Iterable[str]]
    ignore_eos: bool
    special: bool
    context: int
    chunk: int


@dataclass(frozen=True)
class Perplexity:
    """How well a model predicts texts."""

    documents: int
    tokens: int  #: scored: all but the first of each document
    bytes: int  #: of text that the scored tokens stand for; 0 without a tokenizer
    nats: float  #: sum over the scored tokens
    nats_per_token: float
    standard_error: float  #: of nats_per_token
    perplexity: float
    bits_per_byte: float  #: NaN without a tokenizer
    bits_per_byte_standard_error: float


class Model(Handle):
    """A model directory, loaded. Frees its memory with close(), at the end of a ``with`` block or with its last
    reference; generations that are under way keep what they need."""

    _kind = c.MODEL
    _info: Any
    _tokenizer: Optional[Tokenizer]

    def __init__(self) -> None:
        raise TypeError("use Model.load(dir)")

    @classmethod
    def load(cls, dir: Path, *, dtype: str = "f32", threads: int = 0, weights: str = "dtype") -> "Model":
        """Loads a directory with config.json, model*.safetensors and, for text, tokenizer.json.

        ``dtype``: of the computation, "f32", "bf16" or "f64" (the slow reference). ``threads``: 0 for all CPUs this
        process may use; their number never changes a result. ``weights``: what matrices are kept in, "dtype" (as the
        computation), "int8" (a quarter of f32's memory and faster text, a little less exact) or "fp8" (the experts of a mixture alone). What deserves a word goes to the logger "hysparse".
        """
        where = arguments.path(dir, "dir")
        logger = logging.getLogger("hysparse")
        log = c.LogCallback(lambda _, level, message: logger.log(_LEVELS.get(level, logging.INFO), "%s", message.decode(errors="replace")))
        options = c.sized(
            c.ModelOptions, dtype=arguments.name(dtype, "dtype"), threads=arguments.whole(threads, "threads", 0, 2**31 - 1), log=log,
            weights=arguments.name(weights, "weights"),
        )
        self = cls.__new__(cls)
        self._own(c.new_handle("hysparse_model_load", where, C.byref(options)))
        self._info = c.sized(c.ModelInfo)
        c.call("hysparse_model_get_info", self._handle, C.byref(self._info))
        self._tokenizer = None
        return self

    @property
    def vocab_size(self) -> int:
        """Rows of the head; the tokenizer may know fewer ids."""
        return int(self._info.vocab_size)

    @property
    def context(self) -> int:
        """The most tokens of a sequence (max_position_embeddings)."""
        return int(self._info.context)

    @property
    def parameters(self) -> int:
        """How many weights the model has."""
        return int(self._info.parameters)

    @property
    def threads(self) -> int:
        """How many threads compute."""
        return int(self._info.threads)

    @property
    def has_tokenizer(self) -> bool:
        """Whether texts can be read and written."""
        return bool(self._info.has_tokenizer)

    @property
    def config(self) -> "dict[str, Any]":
        """config.json as the model runs it; a fresh copy."""
        text = C.c_void_p()
        c.call("hysparse_model_config", self._handle, C.byref(text))
        result: "dict[str, Any]" = json.loads(c.take_text(text))
        return result

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; Error where the directory has none."""
        if self._tokenizer is None or self._tokenizer.closed:
            self._tokenizer = Tokenizer._of(c.new_handle("hysparse_model_tokenizer", self._handle))
        return self._tokenizer

    def logits(self, ids: Ids) -> "npt.NDArray[np.float32]":
        """Logits [tokens, vocab_size] of every token given those before it: row i predicts token i + 1."""
        array = arguments.token_ids(ids, "ids")
        handle = self._handle
        if not 0 < array.size <= self.context:  # the library's message, and no memory for what it refuses
            c.call("hysparse_logits", handle, array.ctypes.data, array.size, None, 0)
        out: "npt.NDArray[np.float32]" = np.empty((array.size, self.vocab_size), dtype=np.float32)
        c.call("hysparse_logits", handle, array.ctypes.data, array.size, out.ctypes.data, out.size)
        return out

    @overload
    def generate(self, prompt: Union[str, bytes, Ids] = ..., *, stream: Literal[False] = ..., **options: Unpack[GenerateOptions]) -> Answer: ...
    @overload
    def generate(self, prompt: Union[str, bytes, Ids] = ..., *, stream: Literal[True], **options: Unpack[GenerateOptions]) -> Generation: ...
    def generate(
        self,
        prompt: Union[str, bytes, Ids] = "",
        *,
        stream: bool = False,
        max_new_tokens: int = 256,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        stop: Union[str, Iterable[str]] = (),
        ignore_eos: bool = False,
        special: bool = False,
        context: int = 0,
        chunk: int = 512,
        kv_cache_dtype: str = "auto",
    ) -> Union[Answer, Generation]:
        """Continues a prompt, a text or token ids; an empty one starts a new text.

        With ``stream`` a Generation, to be iterated over while the answer is made; else the complete Answer.
        ``max_new_tokens`` -1: until the context is full. ``temperature`` 0: always the likeliest token. ``top_k``,
        ``top_p``, ``min_p``, ``repetition_penalty`` as in transformers, applied in the order penalty, temperature,
        top-k, top-p, min-p. The same ``seed`` gives the same answer on any number of threads. ``stop``: the answer ends
        before the first of these texts. ``ignore_eos``: go on behind end-of-text tokens. ``special``: texts of special
        tokens in the prompt are those tokens. ``context``: most tokens of prompt and answer, 0: the model's.
        ``chunk``: tokens of the prompt that go through the model at once. ``kv_cache_dtype``: what the cache of full
        layers is kept in, "auto" (as the computation), "int8" or "fp8".
        """
        wants_stream = arguments.flag(stream, "stream")
        parse_special = bool(arguments.flag(special, "special"))
        stops, stop_count = arguments.string_list(stop, "stop")
        options = c.sized(
            c.GenerateOptions,
            max_new_tokens=arguments.whole(max_new_tokens, "max_new_tokens"),
            temperature=arguments.real(temperature, "temperature"),
            top_k=arguments.whole(top_k, "top_k"),
            top_p=arguments.real(top_p, "top_p"),
            min_p=arguments.real(min_p, "min_p"),
            repetition_penalty=arguments.real(repetition_penalty, "repetition_penalty"),
            seed=arguments.whole(seed, "seed", 0, 2**64 - 1),
            stop=stops, stop_count=stop_count,
            context=arguments.whole(context, "context"),
            chunk=arguments.whole(chunk, "chunk"),
            ignore_eos=arguments.flag(ignore_eos, "ignore_eos"),
            kv_cache_dtype=arguments.name(kv_cache_dtype, "kv_cache_dtype"),
        )
        if isinstance(prompt, (str, bytes)):
            prompt = self.tokenizer.encode(prompt, special=parse_special, start=True)
        ids = arguments.token_ids(prompt, "prompt")
        generation = Generation(
            self, c.new_handle("hysparse_generation_start", self._handle, ids.ctypes.data, ids.size, C.byref(options))
        )
        if wants_stream:
            return generation
        with generation:
            return generation.finish()

    def perplexity(
        self,
        text: Union[str, bytes, Sequence[Union[str, bytes]], Ids, Sequence[Ids]],
        *,
        window: int = 0,
        stride: int = 0,
        batch: int = 0,
        max_tokens: int = 0,
        progress: Optional[Callable[[int], None]] = None,
    ) -> Perplexity:
        """How well the model predicts a text, or several (each a document); or token ids, or lists of them.

        Every token after the first of a document is scored once, with at least ``window - stride`` tokens of context.
        ``window`` 0: the context, at most 1024; ``stride`` 0: half a window; ``batch``: windows a forward, 0: what fits in
        2048 tokens; ``max_tokens``: stop after so many. ``progress`` is told the scored tokens between forwards; what it
        raises ends the work.
        """
        arrays = [arguments.token_ids(self._encode(d), "text") for d in _documents(text)]
        starts = np.zeros(len(arrays) + 1, dtype=np.uintp)
        np.cumsum([a.size for a in arrays], out=starts[1:]) if arrays else None
        ids = np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int32)
        raised: "list[BaseException]" = []

        def report(_: object, scored: int) -> int:
            try:  # Ctrl-C is raised here, too
                if progress is not None:
                    progress(scored)
                return 0
            except BaseException as e:
                raised.append(e)
                return 1

        callback = c.ProgressCallback(report)
        options = c.sized(
            c.PerplexityOptions, window=arguments.whole(window, "window"), stride=arguments.whole(stride, "stride"),
            batch=arguments.whole(batch, "batch"), max_tokens=arguments.whole(max_tokens, "max_tokens"), progress=callback,
        )
        result = c.sized(c.PerplexityResult)
        try:
            c.call(
                "hysparse_perplexity", self._handle, ids.ctypes.data, starts.ctypes.data_as(C.POINTER(C.c_size_t)), len(arrays),
                C.byref(options), C.byref(result),
            )
        except Exception:
            if raised:
                raise raised[0] from None
            raise
        return Perplexity(**{field: getattr(result, field) for field in Perplexity.__dataclass_fields__})

    def _encode(self, document: Union[str, bytes, Ids]) -> Ids:
        return self.tokenizer.encode(document, start=True) if isinstance(document, (str, bytes)) else document

    def __repr__(self) -> str:
        return f"<hysparse.Model: {self.parameters} parameters{', closed' if self.closed else ''}>"


def _documents(text: Any) -> "list[Any]":
    """A text or ids are one document; a list of those is a list of documents."""
    if isinstance(text, (str, bytes)):
        return [text]
    if isinstance(text, np.ndarray):
        return [text] if text.ndim == 1 else list(text)
    try:
        items = list(text)
    except TypeError:
        raise TypeError(f"text: expected a text, token ids, or a list of those, got {type(text).__name__}") from None
    nested = [isinstance(x, (str, bytes, list, tuple, range, np.ndarray)) for x in items]
    return items if any(nested) else [items]
