"""The one exception of the package."""

from __future__ import annotations

BAD_ARGUMENT = -1
FAILURE = -4
CANCELLED = -5
BUSY = -6
_KINDS = {BAD_ARGUMENT: "input", FAILURE: "failure", CANCELLED: "cancelled", BUSY: "busy"}


class Error(Exception):
    """What the library refused or failed at: what was expected, what came, where.

    ``kind`` is "input" (an argument, a file or data is wrong), "failure" (no memory, an I/O error), "cancelled",
    or "busy" (another thread is using the generation).
    """

    kind: str

    def __init__(self, message: str, code: int = BAD_ARGUMENT) -> None:
        super().__init__(message)
        self.kind = _KINDS.get(code, "failure")

    def __reduce__(self) -> tuple[object, ...]:
        code = next((c for c, kind in _KINDS.items() if kind == self.kind), FAILURE)
        return (type(self), (str(self), code))
