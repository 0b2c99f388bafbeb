import gc
import itertools
import signal
import threading

import pytest

import hysparse
from conftest import run

VARIANTS = {
    "plain": {},
    "greedy": {"temperature": 0.0},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.3},
    "min_p": {"min_p": 0.2},
    "penalty": {"repetition_penalty": 3.0},
    "seed": {"seed": 2**64 - 1},
    "short": {"max_new_tokens": 3},
    "context": {"context": 40},
    "chunk": {"chunk": 4},
    "int8": {"kv_cache_dtype": "int8"},
    "fp8": {"kv_cache_dtype": "fp8", "chunk": 7},
    "endless": {"max_new_tokens": -1, "ignore_eos": True},
}


def flags(options):
    for key, value in options.items():
        yield "--" + key.replace("_", "-")
        if value is not True:
            yield value


@pytest.mark.parametrize("name", VARIANTS)
def test_text_and_ids_are_the_programs(work, model, name):
    options = {"max_new_tokens": 30, "temperature": 1.1, "seed": 5, **VARIANTS[name]}
    prompt = "line 7: the quick 天"
    answer = model.generate(prompt, **options)
    want = run("generate", "--model", work / "model", "--prompt", prompt, *flags(options))
    assert answer.text == want.decode()[:-1]
    ids = model.tokenizer.encode(prompt)
    said = run("generate", "--model", work / "model", "--tokens", "--prompt", " ".join(map(str, ids)), *flags(options))
    assert answer.tokens == [int(x) for x in said.split()]
    assert answer.prompt_tokens == len(ids) and answer.kv_bytes > 0
    assert str(answer) == answer.text
    if name == "endless":
        assert len(answer.tokens) == 256 - len(ids) and answer.finish_reason == "length"


def test_streams_are_the_same_text_in_pieces(model):
    options = {"max_new_tokens": 40, "seed": 3, "ignore_eos": True}
    whole = model.generate("the", **options)
    stream = model.generate("the", stream=True, **options)
    pieces = list(stream)
    assert len(pieces) > 5 and "" not in pieces and "".join(pieces) == whole.text
    assert stream.answer.tokens == whole.tokens and stream.answer.finish_reason == "length"
    assert list(stream) == []
    assert list(model.generate("the", stream=True, **options).tokens()) == whole.tokens


def test_nothing_is_computed_ahead(model):
    stream = model.generate("the", stream=True, max_new_tokens=-1, ignore_eos=True, seed=3)
    assert stream.answer.tokens == [] and stream.answer.finish_reason is None
    first = list(itertools.islice(stream.tokens(), 3))
    assert stream.answer.tokens == first and len(first) == 3
    text = stream.answer.text
    assert stream.finish().text.startswith(text)


def test_specials_and_stops(work, model):
    prompt = "the <|endoftext|>fox"
    options = {"max_new_tokens": 20, "seed": 1, "ignore_eos": True}
    plain, special = model.generate(prompt, **options), model.generate(prompt, special=True, **options)
    assert plain.prompt_tokens > special.prompt_tokens
    assert special.text == run("generate", "--model", work / "model", "--prompt", prompt, "--special", *flags(options)).decode()[:-1]
    stop = next(c for c in plain.text[3:] if c.isprintable() and c != "\ufffd")
    cut = model.generate(prompt, stop=stop, **options)
    assert cut.text == plain.text[: plain.text.index(stop)] and cut.finish_reason == "stop"
    assert model.generate(prompt, stop=["never there", stop], **options).text == cut.text


def test_an_empty_prompt_starts_a_new_text(work, model, wordless):
    assert model.generate(max_new_tokens=9).text == run("generate", "--model", work / "model", "--prompt", "", "--max-new-tokens", 9).decode()[:-1]
    with pytest.raises(hysparse.Error, match="neither a BOS nor an EOS token"):
        wordless.generate([])


def test_without_a_tokenizer_ids_work_and_texts_say_why(wordless):
    answer = wordless.generate([5, 6], max_new_tokens=8)
    assert len(answer.tokens) == 8 and answer.text == ""
    assert list(wordless.generate([5, 6], max_new_tokens=8, stream=True).tokens()) == answer.tokens
    with pytest.raises(hysparse.Error, match="there is no tokenizer.json"):
        wordless.generate("text")
    with pytest.raises(hysparse.Error, match="there is no tokenizer.json"):
        wordless.generate([5], stop="x")
    with pytest.raises(hysparse.Error, match="no tokenizer"):
        next(wordless.generate([5], stream=True))


def test_left_midway(model):
    stream = model.generate("the", stream=True, max_new_tokens=-1, ignore_eos=True)
    for piece in stream:
        break
    before = stream.answer
    assert before.finish_reason is None
    stream.close()
    stream.close()
    assert stream.closed and list(stream) == [] and list(stream.tokens()) == []
    with pytest.raises(hysparse.Error, match="generation: it was closed"):
        stream.answer
    with pytest.raises(hysparse.Error, match="generation: it was closed"):
        stream.cancel()
    with model.generate("the", stream=True, max_new_tokens=4) as whole:
        "".join(whole)
    assert whole.closed and whole.answer.finish_reason == "length"
    tokens = model.generate("the", stream=True, max_new_tokens=-1).tokens()
    next(tokens)
    tokens.close()
    del tokens, stream
    gc.collect()
    assert model.generate("the", max_new_tokens=3).tokens


def test_cancel_from_another_thread(model):
    stream = model.generate("the", stream=True, max_new_tokens=-1, ignore_eos=True)
    next(stream.tokens())
    other = threading.Thread(target=stream.cancel)
    other.start()
    other.join()
    assert stream.finish().finish_reason == "cancelled" and len(stream.answer.tokens) == 1


def test_a_signal_reaches_python_between_steps(model):
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Alarm):
            while True:
                model.generate("the", max_new_tokens=-1, ignore_eos=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert model.generate("the", max_new_tokens=2).tokens
