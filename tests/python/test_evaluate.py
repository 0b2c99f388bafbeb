import json
import math

import numpy as np
import pytest

import hysparse
from conftest import CONFIG, run


def same_as_program(got, text):
    want = json.loads(text)
    for key in ("documents", "tokens", "bytes", "nats", "nats_per_token", "perplexity", "standard_error", "bits_per_byte",
                "bits_per_byte_standard_error"):
        mine = getattr(got, key)
        assert mine == want[key] if want[key] is not None else math.isnan(mine), key


@pytest.mark.parametrize("options", [{}, {"window": 64, "stride": 8}, {"max_tokens": 100}, {"batch": 1}])
def test_perplexity_is_the_programs(work, model, options):
    text = "line 3: the quick brown fox.\n" * 40
    (work / "one.txt").write_text(text)
    flags = [x for key, value in options.items() for x in ("--" + key.replace("_", "-"), value)]
    same_as_program(model.perplexity(text, **options),
                    run("perplexity", "--model", work / "model", "--input", work / "one.txt", "--json", *flags))


def test_documents(work, model, wordless):
    texts = ["the quick brown fox", "line 5: 天地玄黃", "fox fox"]
    (work / "docs.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    same_as_program(model.perplexity(texts), run("perplexity", "--model", work / "model", "--input", work / "docs.jsonl", "--json"))
    ids = [model.tokenizer.encode(t) for t in texts]
    assert model.perplexity(ids) == model.perplexity(texts)
    assert model.perplexity([np.array(i) for i in ids]) == model.perplexity(texts)
    assert model.perplexity(ids[0]) == model.perplexity(texts[0]) == model.perplexity([texts[0].encode()])
    alone = wordless.perplexity(ids)
    assert alone.nats == model.perplexity(ids).nats and math.isnan(alone.bits_per_byte) and alone.bytes == 0


def test_progress_is_told_and_may_end_it(model):
    seen = []
    ids = [(i * 7) % 320 for i in range(600)]
    r = model.perplexity(ids, window=64, stride=32, batch=1, progress=seen.append)
    assert seen == sorted(seen) and seen[-1] == r.tokens == 599

    def stop(scored):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.perplexity(ids, window=64, progress=stop)
    assert model.perplexity(ids, window=64, stride=32, batch=1).nats == r.nats


def test_perplexity_errors(model, wordless):
    for bad in ("", "a"[:0], [], [[5]], [[5], [6]]):
        with pytest.raises(hysparse.Error, match="no token to score"):
            model.perplexity(bad)
    with pytest.raises(hysparse.Error, match="window: expected at most max_position_embeddings \\(256\\), got 257"):
        model.perplexity("the fox", window=257)
    with pytest.raises(hysparse.Error, match="stride"):
        model.perplexity("the fox", window=8, stride=9)
    with pytest.raises(hysparse.Error, match="there is no tokenizer.json"):
        wordless.perplexity("the fox")
    for bad in (None, 5):
        with pytest.raises(TypeError, match="text: expected a text, token ids, or a list"):
            model.perplexity(bad)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_plan_is_the_programs(work, dtype):
    want = json.loads(run("plan", "--config", work / "config.json", "--context", 4096, "--batch", 2, "--dtype", dtype, "--json"))
    assert hysparse.plan(work / "config.json", context=4096, batch=2, dtype=dtype) == want
    assert hysparse.plan(CONFIG, context=4096, batch=2, dtype=dtype) == want
    assert hysparse.plan(str(work / "model"), context=4096, batch=2, dtype=dtype)["kv_cache"] == want["kv_cache"]


def test_plan_changes_keys(work):
    want = json.loads(run("plan", "--config", work / "config.json", "--context", 64, "--json", "--set", "attention=full", "--set",
                          "tie_word_embeddings=true"))
    assert hysparse.plan(CONFIG, context=64, set={"attention": "full", "tie_word_embeddings": True}) == want


def test_plan_errors(work):
    with pytest.raises(hysparse.Error, match='did you mean "hidden_size"'):
        hysparse.plan({**CONFIG, "hiden_size": 3}, context=64)
    with pytest.raises(hysparse.Error, match="context: expected a whole number from 1"):
        hysparse.plan(CONFIG, context=0)
    with pytest.raises(hysparse.Error, match="dtype: expected bf16 or f32, got int8"):
        hysparse.plan(CONFIG, context=64, dtype="int8")
    with pytest.raises(hysparse.Error, match="absent.json"):
        hysparse.plan("absent.json", context=64)
    with pytest.raises(hysparse.Error, match="{odd"):
        hysparse.plan("{odd", context=64)  # a path, not JSON
    with pytest.raises(TypeError, match="config: it cannot be written as JSON"):
        hysparse.plan({"hidden_size": object()}, context=64)
    for bad in (None, 5):
        with pytest.raises(TypeError, match="config: expected a path"):
            hysparse.plan(bad, context=64)
    with pytest.raises(TypeError, match="context: expected a whole number, got float"):
        hysparse.plan(CONFIG, context=64.0)
