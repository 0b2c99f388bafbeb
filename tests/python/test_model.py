import json
import logging
import struct

import numpy as np
import pytest

import hysparse
from conftest import CONFIG, run


def cli_logits(work, ids, dtype, weights="dtype"):
    (work / "ids.json").write_text(json.dumps(ids))
    out = work / "logits.safetensors"
    run("logits", "--model", work / "model", "--tokens", work / "ids.json", "--out", out, "--dtype", dtype, "--weights", weights)
    raw = out.read_bytes()
    (header,) = struct.unpack("<Q", raw[:8])
    begin, end = json.loads(raw[8 : 8 + header])["logits"]["data_offsets"]
    return np.frombuffer(raw[8 + header + begin : 8 + header + end], dtype=np.float32).reshape(len(ids), -1)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
@pytest.mark.parametrize("threads", [1, 3])
def test_logits_are_the_programs(work, dtype, threads):
    ids = [(i * 37 + 11) % 320 for i in range(150)]
    with hysparse.Model.load(str(work / "model"), dtype=dtype, threads=threads) as m:
        assert m.threads == threads
        got = m.logits(ids)
    assert got.dtype == np.float32 and got.shape == (150, 330) and got.flags.owndata
    np.testing.assert_array_equal(got, cli_logits(work, ids, dtype))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_int8_weights_are_the_programs(work, dtype):
    ids = [(i * 37 + 11) % 320 for i in range(150)]
    with hysparse.Model.load(work / "model", dtype=dtype, weights="int8") as m:
        got = m.logits(ids)
    np.testing.assert_array_equal(got, cli_logits(work, ids, dtype, "int8"))
    assert not np.array_equal(got, cli_logits(work, ids, dtype))


@pytest.mark.parametrize("make", [tuple, np.array, lambda x: np.array(x, dtype=np.uint16), lambda x: np.array(x)[::-1][::-1], iter,
                                  lambda x: np.array(x, dtype=">i8"), lambda x: [np.int64(i) for i in x]])
def test_ids_of_any_integer_type(model, make):
    ids = [5, 319, 7, 0]
    np.testing.assert_array_equal(model.logits(make(ids)), model.logits(ids))


def test_strided_ids_are_read_by_their_strides(model):
    wide = np.arange(40, dtype=np.int32)
    np.testing.assert_array_equal(model.logits(wide[::3]), model.logits(list(range(0, 40, 3))))


def test_what_a_model_says_of_itself(work, model, wordless):
    assert model.vocab_size == 330 and model.context == 256
    assert model.has_tokenizer and not wordless.has_tokenizer
    assert model.config["layer_types"][0] == "full_attention" and model.config["hidden_size"] == CONFIG["hidden_size"]
    assert model.config is not model.config
    plan = hysparse.plan(work / "model", context=16)
    assert model.parameters == plan["parameters"]["total"]
    assert hysparse.__version__ == run("--version").split()[1].decode()
    assert "parameters" in repr(model)


def test_bf16_differs_from_f32(work, model):
    with hysparse.Model.load(work / "model", dtype="bf16") as m:
        assert not np.array_equal(m.logits([1, 2, 3]), model.logits([1, 2, 3]))


def test_load_tells_the_logger(work, caplog):
    with caplog.at_level(logging.INFO, logger="hysparse"):
        hysparse.Model.load(work / "model").close()
    assert any("RoPE theta 10000" in r.message and r.levelno == logging.INFO for r in caplog.records)


def test_every_public_name_has_a_docstring():
    for name in hysparse.__all__:
        thing = getattr(hysparse, name)
        assert thing.__doc__, name
        if isinstance(thing, type):
            for member, value in vars(thing).items():
                if not member.startswith("_") and (callable(value) or isinstance(value, (property, classmethod))):
                    assert value.__doc__, f"{name}.{member}"
