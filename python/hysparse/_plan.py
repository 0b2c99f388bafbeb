"""What a config costs."""

from __future__ import annotations

import ctypes as C
import json
from typing import Any, Mapping, Union

from . import _arguments as arguments
from . import _library as c
from ._arguments import Path


def plan(
    config: Union[Path, Mapping[str, Any]], *, context: int, batch: int = 1, dtype: str = "bf16", set: "Mapping[str, Any] | None" = None
) -> "dict[str, Any]":
    """Parameters, KV cache, FLOPs and training memory of a config; no weights needed.

    ``config``: a run file, a config.json or a model directory, or their content as a dict. ``context``: tokens a
    sequence; ``batch``: sequences; ``dtype`` of the KV cache and of training, "bf16" or "f32"; ``set``: keys that are
    changed, {"attention": "full"}. The result is what ``hysparse plan --json`` prints.
    """
    if isinstance(config, Mapping):
        try:
            source = json.dumps(dict(config), allow_nan=False).encode()
        except (TypeError, ValueError) as e:
            raise TypeError(f"config: it cannot be written as JSON: {e}") from None
    else:
        source = arguments.path(config, "config")
        if source.lstrip(b" \t\r\n").startswith(b"{"):
            source = b"./" + source  # a path all the same
    changes = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in (set or {}).items()]
    sets, set_count = arguments.string_list(changes, "set")
    options = c.sized(
        c.PlanOptions, context=arguments.whole(context, "context"), batch=arguments.whole(batch, "batch"),
        dtype=arguments.name(dtype, "dtype"), set=sets, set_count=set_count,
    )
    text = C.c_void_p()
    c.call("hysparse_plan", source, C.byref(options), C.byref(text))
    result: "dict[str, Any]" = json.loads(c.take_text(text))
    return result
