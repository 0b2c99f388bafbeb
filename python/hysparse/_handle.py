"""What Model, Tokenizer and Generation have in common: a handle that is freed once."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Any, NoReturn, Optional, TypeVar

from ._errors import Error
from ._library import free_handle

Self = TypeVar("Self", bound="Handle")


class Handle:
    """Owns a handle of the library; a context manager."""

    _kind: str

    def _own(self, handle: int) -> None:
        self._value = handle
        self._finalizer = weakref.finalize(self, free_handle, self._kind, handle)
        self._finalizer.atexit = False  # daemon threads may still be using it then; the process gives all back

    @property
    def _handle(self) -> int:
        value: Optional[int] = getattr(self, "_value", None)
        if value is None or not self._finalizer.alive:
            raise Error(f"{self._kind}: it was closed")
        return value

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return not self._finalizer.alive

    def close(self) -> None:
        """Frees it. Calls that run in other threads end in good order; later ones are Errors."""
        self._finalizer()

    def __enter__(self: Self) -> Self:
        self._handle
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {self._kind} can neither be pickled nor copied: load it where it is needed")

    def __copy__(self) -> NoReturn:
        self.__reduce__()

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__reduce__()
