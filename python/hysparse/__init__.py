"""HySparse language models in Python.

>>> import hysparse
>>> model = hysparse.Model.load("out/demo/model")
>>> model.generate("It is a truth", max_new_tokens=50, seed=7).text
>>> for piece in model.generate("It is a truth", stream=True):
...     print(piece, end="", flush=True)
>>> engine = hysparse.Engine(model)        # many answers at once
>>> engine.generate(["It is", "They were"], n=2)
>>> model.logits([1, 2, 3]).shape          # numpy, [tokens, vocabulary], float32
>>> hysparse.plan("configs/hysparse-7b.json", context=131072)["kv_cache"]

Everything runs in libhysparse (the C API of hysparse/hysparse.h), without the GIL. What the library refuses is
``hysparse.Error`` with its text; arguments of a wrong type are ``TypeError``.

Threads: any thread may use a Model or a Tokenizer; calls on one model take turns, a token or a chunk of a prompt
at a time. A Generation serves one thread at a time (a second one gets an Error; cancel() is for any thread).
After ``os.fork()`` the child's copies of models and generations are dead: load the model in the child.
"""

from ._engine import Choice, Engine, Event, Request
from ._errors import Error
from ._generation import Answer, Generation
from ._library import version as _version
from ._model import Model, Perplexity
from ._plan import plan
from ._tokenizer import Tokenizer

__all__ = ["Answer", "Choice", "Engine", "Error", "Event", "Generation", "Model", "Perplexity", "Request", "Tokenizer", "plan"]


def __getattr__(name: str) -> str:
    if name == "__version__":
        return _version()
    raise AttributeError(f"module 'hysparse' has no attribute {name!r}")
