"""Wrong arguments, closed objects, threads, processes: errors, never a crash or a hang."""
import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import hysparse
from conftest import run


@pytest.mark.parametrize("bad, error, message", [
    (None, TypeError, "ids: expected token ids, got NoneType"),
    ("text", TypeError, "ids: expected token ids, got str"),
    (b"text", TypeError, "ids: expected token ids, got bytes"),
    (7, TypeError, "ids: expected token ids, got int"),
    ([1.5], TypeError, "ids: token 0: expected a whole number, got float"),
    ([1, None], TypeError, "ids: token 1: expected a whole number, got NoneType"),
    ([1, "2"], TypeError, "ids: token 1: expected a whole number, got str"),
    ([[1, 2]], TypeError, "ids: token 0: expected a whole number, got list"),
    ([[1], [2, 3]], TypeError, "ids: token 0: expected a whole number, got list"),
    ([True], TypeError, "ids: token 0: expected a whole number, got bool"),
    (np.zeros(3), TypeError, "ids: expected whole numbers, got an array of float64"),
    (np.zeros(3, bool), TypeError, "ids: expected whole numbers, got an array of bool"),
    (np.zeros((2, 2), int), TypeError, "ids: expected one dimension, got 2"),
    (np.array(5), TypeError, "ids: expected one dimension, got 0"),
    ([], hysparse.Error, "ids: expected at least one token id, got none"),
    (np.zeros(0, int), hysparse.Error, "ids: expected at least one token id, got none"),
    ([1, -1], hysparse.Error, "ids: token 1: expected an id from 0 to"),
    ([1, 330], hysparse.Error, "ids: token 1: expected an id from 0 to 329, got 330"),
    ([2**32 + 5], hysparse.Error, "ids: token 0: expected an id from 0 to"),
    ([2**80], hysparse.Error, "ids: token 0: expected"),
    (np.array([2**64 - 1], dtype=np.uint64), hysparse.Error, "ids: token 0: expected an id from 0 to"),
    ([1] * 257, hysparse.Error, "ids: expected at most 256 tokens"),
])
def test_ids(model, bad, error, message):
    with pytest.raises(error) as e:
        model.logits(bad)
    assert message in str(e.value)


@pytest.mark.parametrize("options, error, message", [
    ({"temperature": float("nan")}, hysparse.Error, "temperature: expected a number >= 0, got nan"),
    ({"temperature": "hot"}, TypeError, "temperature: expected a number, got str"),
    ({"temperature": None}, TypeError, "temperature: expected a number, got NoneType"),
    ({"top_k": -1}, hysparse.Error, "top_k"),
    ({"top_k": 1.5}, TypeError, "top_k: expected a whole number, got float"),
    ({"top_p": 2}, hysparse.Error, "top_p"),
    ({"min_p": -0.1}, hysparse.Error, "min_p"),
    ({"repetition_penalty": 0}, hysparse.Error, "repetition_penalty"),
    ({"seed": -1}, hysparse.Error, "seed: expected 0 to 18446744073709551615, got -1"),
    ({"seed": 2**64}, hysparse.Error, "seed: expected 0 to"),
    ({"max_new_tokens": -2}, hysparse.Error, "max_new_tokens: expected -1 or more, got -2"),
    ({"max_new_tokens": 2**70}, hysparse.Error, "max_new_tokens: expected"),
    ({"max_new_tokens": True}, TypeError, "max_new_tokens: expected a whole number, got bool"),
    ({"context": 257}, hysparse.Error, "context"),
    ({"chunk": 0}, hysparse.Error, "chunk: expected at least 1 token, got 0"),
    ({"stop": [""]}, hysparse.Error, "stop: expected a text of at least one character"),
    ({"stop": [None]}, TypeError, "stop[0]: expected str, got NoneType"),
    ({"stop": 5}, TypeError, "stop: expected texts, got int"),
    ({"stop": "a\0b"}, hysparse.Error, "stop[0]: no NUL can stand in it"),
    ({"stream": 1}, TypeError, "stream: expected True or False, got int"),
    ({"ignore_eos": None}, TypeError, "ignore_eos: expected True or False, got NoneType"),
])
def test_generate_options(model, options, error, message):
    with pytest.raises(error) as e:
        model.generate("the", **options)
    assert message in str(e.value)


def test_prompts(model):
    with pytest.raises(TypeError, match="prompt: expected token ids, got NoneType"):
        model.generate(None)
    with pytest.raises(hysparse.Error, match="prompt: 257 tokens are more than the context of 256"):
        model.generate([1] * 257)
    with pytest.raises(hysparse.Error, match="prompt: token 1: expected an id from 0 to 329, got 330"):
        model.generate([1, 330])
    with pytest.raises(TypeError, match="temprature"):
        model.generate("the", temprature=1)


def test_the_text_is_the_programs(work):
    """The same refusal on the command line, with its prefix."""
    for dir in ("absent", "tok"):
        with pytest.raises(hysparse.Error) as e:
            hysparse.Model.load(work / dir)
        assert run("generate", "--model", work / dir, "--prompt", "a", code=2).decode().strip() == f"error: {e.value}"
        assert e.value.kind == "input"
    with pytest.raises(hysparse.Error) as e:
        hysparse.Model.load(work / "model", dtype="f16")
    assert run("generate", "--model", work / "model", "--prompt", "a", "--dtype", "f16", code=2).decode().strip() == f"error: {e.value}"


def test_load(work):
    for bad in (None, 5, ["a"], b"bytes"):
        with pytest.raises(TypeError, match="dir: expected a path"):
            hysparse.Model.load(bad)
    with pytest.raises(hysparse.Error, match="dir: a path holds no NUL"):
        hysparse.Model.load("a\0b")
    with pytest.raises(TypeError, match="dtype: expected str, got NoneType"):
        hysparse.Model.load(work / "model", dtype=None)
    with pytest.raises(hysparse.Error, match=r"weights: expected dtype \(as the computation\), int8 or fp8, got 'int4'"):
        hysparse.Model.load(work / "model", weights="int4")
    with pytest.raises(TypeError, match="weights: expected str, got NoneType"):
        hysparse.Model.load(work / "model", weights=None)
    with pytest.raises(hysparse.Error, match="threads: expected 0 to 4096, got 5000"):
        hysparse.Model.load(work / "model", threads=5000)
    with pytest.raises(hysparse.Error, match="threads: expected 0 to"):
        hysparse.Model.load(work / "model", threads=-1)
    with pytest.raises(TypeError):
        hysparse.Model()


def test_closed(work):
    m = hysparse.Model.load(work / "model")
    stream = m.generate("the", stream=True, max_new_tokens=5)
    tokenizer = m.tokenizer
    m.close()
    m.close()
    assert m.closed and "closed" in repr(m)
    for use in (lambda: m.logits([1]), lambda: m.generate("the"), lambda: m.generate([1]), lambda: m.perplexity([1, 2]), lambda: m.config,
                m.__enter__):
        with pytest.raises(hysparse.Error, match="model: it was closed"):
            use()
    assert len(stream.finish().tokens) == 5  # has what it needs
    tokenizer.close()
    with pytest.raises(hysparse.Error, match="tokenizer: it was closed"):
        tokenizer.encode("a")


def test_neither_copied_nor_pickled(model):
    for thing in (model, model.tokenizer, model.generate("a", stream=True)):
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="can neither be pickled nor copied"):
                duplicate(thing)
    error = pickle.loads(pickle.dumps(hysparse.Error("text", -6)))
    assert str(error) == "text" and error.kind == "busy"


def in_threads(count, work):
    failed = []

    def guarded(i):
        try:
            work(i)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
        assert not t.is_alive()
    if failed:
        raise failed[0]


def test_threads_share_a_model(model):
    want = [model.generate([i, 9], max_new_tokens=40, seed=i, ignore_eos=True).tokens for i in range(4)]
    logits = model.logits([3, 1, 4])

    def work(i):
        for _ in range(3):
            assert model.generate([i, 9], max_new_tokens=40, seed=i, ignore_eos=True).tokens == want[i]
            assert np.array_equal(model.logits([3, 1, 4]), logits)

    in_threads(4, work)


def test_a_generation_serves_one_thread(model):
    busy = []
    for _ in range(50):
        stream = model.generate("the", stream=True, max_new_tokens=-1, ignore_eos=True)
        drawn = []

        def work(_):
            while True:
                try:
                    drawn.extend(stream.tokens())
                    return
                except hysparse.Error as e:
                    assert e.kind == "busy" and "another thread" in str(e)
                    busy.append(1)

        in_threads(2, work)
        assert sorted(drawn) == sorted(stream.answer.tokens)
        if busy:
            break
    assert busy


def test_closing_under_other_threads(work):
    for _ in range(5):
        m = hysparse.Model.load(work / "model")
        stream = m.generate("the", stream=True, max_new_tokens=-1, ignore_eos=True)
        started = threading.Event()

        def read(i):
            if i == 0:
                started.wait()
                stream.close()
                m.close()
                return
            for _ in stream:
                started.set()
            started.set()

        in_threads(2, read)
        assert stream.closed


def child_of_fork(checks):
    """Exit code of a forked child that runs `checks`."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            import signal

            signal.alarm(60)
            checks()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_fork(work):
    m = hysparse.Model.load(work / "model", threads=2)
    stream = m.generate("the", stream=True, max_new_tokens=5, seed=1)
    want = m.generate("the", max_new_tokens=5, seed=1).tokens

    def checks():
        for use in (lambda: m.logits([1, 2]), lambda: m.generate([1]), lambda: stream.finish()):
            with pytest.raises(hysparse.Error, match="made before fork\\(\\) and cannot be used in the child"):
                use()
        assert m.tokenizer.encode("fox")  # these may be used
        stream.close()
        m.close()
        with hysparse.Model.load(work / "model", threads=2) as own:
            assert own.generate("the", max_new_tokens=5, seed=1).tokens == want

    m.tokenizer
    assert child_of_fork(checks) == 0
    assert stream.finish().tokens == want


def square_of_context(dir):
    with hysparse.Model.load(dir, threads=1) as m:
        return m.context**2


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(work, model, method):
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(square_of_context, [str(work / "model")] * 2) == [65536, 65536]


def test_exit_with_everything_open(work):
    script = f"""
import threading, hysparse
m = hysparse.Model.load({str(work / 'model')!r}, threads=2)
t = m.tokenizer
s = m.generate("the", stream=True, max_new_tokens=-1, ignore_eos=True)
next(s.tokens())
def work():
    while True:
        m.logits([1] * 200)
def score():  # the interpreter may end within its callback
    m.perplexity([1, 2] * 100000, window=8, stride=8, batch=1, progress=lambda n: None)
for target in (work, score):
    threading.Thread(target=target, daemon=True).start()
m.logits([1])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120)
    assert done.returncode == 0 and done.stderr == b"", done.stderr.decode()


def test_library_is_named_when_it_is_missing(tmp_path):
    env = {**os.environ, "HYSPARSE_LIBRARY": str(tmp_path / "absent.so")}
    script = "import hysparse\ntry: hysparse.plan({}, context=1)\nexcept hysparse.Error as e: print(e.kind, e)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=env, text=True)
    assert done.stdout.startswith("failure libhysparse was not found") and "absent.so" in done.stdout, done.stderr
