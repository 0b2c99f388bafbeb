import json
import threading

import numpy as np
import pytest

import hysparse
from conftest import run

TEXTS = ["", "the quick brown fox", "天地玄黃，宇宙洪荒", "a\0b\n\t ", "<|endoftext|> the", "🦊" * 3, "line 7: x" * 2000]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("special", [False, True])
def test_encode_and_decode_are_the_programs(work, model, text, special):
    (work / "encode.txt").write_text(text)
    ids = model.tokenizer.encode(text, special=special)
    flag = ["--special"] if special else []
    assert ids == json.loads(run("tokenizer", "encode", "--tokenizer", work / "tok", "--input", work / "encode.txt", *flag))
    assert model.tokenizer.decode(ids, special=True) == text
    (work / "decode.json").write_text(json.dumps(ids))
    said = run("tokenizer", "decode", "--tokenizer", work / "tok", "--input", work / "decode.json", *flag)
    assert model.tokenizer.decode_bytes(ids, special=special) == said
    assert model.tokenizer.decode(np.array(ids, dtype=np.int64), special=special).encode() == said


def test_bos_where_the_tokenizer_asks_for_it(work, model):
    folder = work / "with_bos"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_bytes((work / "model" / name).read_bytes())
    eos = json.loads((work / "tok/tokenizer_config.json").read_text())["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos, "bos_token": eos, "add_bos_token": True}))
    with hysparse.Model.load(folder) as m:
        plain = m.tokenizer.encode("the fox")
        whole = m.tokenizer.encode("the fox", start=True)
        assert whole == [m.tokenizer.eos_id, *plain] == json.loads(
            run("tokenizer", "encode", "--tokenizer", folder, "--text", "the fox", "--start"))
        options = dict(temperature=0, max_new_tokens=6, ignore_eos=True)
        answer = m.generate("the fox", **options)
        assert answer.tokens == m.generate(whole, **options).tokens
        assert answer.text == run("generate", "--model", folder, "--prompt", "the fox", "--temperature", 0, "--max-new-tokens", 6,
                                  "--ignore-eos").decode()[:-1]
        assert m.perplexity("the fox").nats == m.perplexity(whole).nats != m.perplexity(plain).nats
    assert model.tokenizer.encode("the fox", start=True) == model.tokenizer.encode("the fox")


def test_any_bytes(model):
    raw = bytes(range(256)) + b"\xe5\xa4"
    assert model.tokenizer.decode_bytes(model.tokenizer.encode(raw)) == raw
    assert model.tokenizer.encode("é".encode()) == model.tokenizer.encode("é")
    surrogate = b"\xff".decode("utf-8", "surrogateescape")
    assert model.tokenizer.encode(surrogate) == model.tokenizer.encode(b"\xff")
    first = model.tokenizer.encode("天")[:1]
    if len(model.tokenizer.encode("天")) > 1:
        assert "\ufffd" in model.tokenizer.decode(first)


def test_alone_and_of_a_model(work, model):
    tokenizer = hysparse.Tokenizer.load(work / "tok")
    assert tokenizer.vocab_size == model.tokenizer.vocab_size == 320
    assert tokenizer.eos_id == model.tokenizer.eos_id == tokenizer.encode("<|endoftext|>", special=True)[0]
    assert hysparse.Tokenizer.load(work / "tok" / "tokenizer.json").encode("fox") == tokenizer.encode("fox")
    assert model.tokenizer is model.tokenizer
    m = hysparse.Model.load(work / "model")
    kept = m.tokenizer
    m.close()
    assert kept.encode("fox") == tokenizer.encode("fox")


def test_many_threads_encode_at_once(model):
    text = "line 7: the quick brown fox " * 500
    want = model.tokenizer.encode(text)
    wrong = []

    def work():
        for _ in range(5):
            if model.tokenizer.encode(text) != want:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_errors(model, work):
    with pytest.raises(hysparse.Error, match="5000"):
        model.tokenizer.decode([5000])
    with pytest.raises(hysparse.Error, match="surrogates not allowed"):
        model.tokenizer.encode("\ud800")
    for bad in (None, 5, ["a"]):
        with pytest.raises(TypeError, match="text: expected str or bytes"):
            model.tokenizer.encode(bad)
    with pytest.raises(TypeError, match="special: expected True or False, got int"):
        model.tokenizer.encode("a", special=1)
    with pytest.raises(hysparse.Error, match="absent"):
        hysparse.Tokenizer.load(work / "absent")
    with pytest.raises(TypeError):
        hysparse.Tokenizer()
