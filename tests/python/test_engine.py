import threading

import pytest

import hysparse

PROMPTS = ["line 7: the quick", "the quick 天", "line 7: the quick brown", "", "fox"]
OPTIONS = {"max_new_tokens": 20, "temperature": 1.1, "seed": 5}


@pytest.fixture(scope="module")
def exact(work):
    """The float64 reference: a row's bits do not depend on its batch."""
    with hysparse.Model.load(work / "model", dtype="f64", threads=2) as m:
        yield m


@pytest.fixture
def engine(exact):
    with hysparse.Engine(exact, kv_bytes=2_000_000, page_size=16, max_sequences=3, snapshot_interval=16) as e:
        yield e


def test_many_at_once_say_what_generate_says(exact, engine):
    alone = [exact.generate(p, **OPTIONS) for p in PROMPTS]
    for _ in range(2):  # the second time from the prefix cache
        together = engine.generate(PROMPTS, **OPTIONS)
        assert [c[0].text for c in together] == [a.text for a in alone]
        assert [c[0].tokens for c in together] == [a.tokens for a in alone]
        assert [c[0].finish_reason for c in together] == [a.finish_reason for a in alone]
    stats = engine.stats()
    assert stats["finished"] == stats["submitted"] == 2 * len(PROMPTS) and stats["running"] == stats["queued"] == 0
    assert stats["healthy"] == 1 and stats["context"] == 256 and stats["pages_used"] == stats["pages_cached"]


def test_a_cache_in_8_bits_says_what_generate_says_with_one(exact):
    alone = [exact.generate(p, kv_cache_dtype="int8", **OPTIONS) for p in PROMPTS]
    with hysparse.Engine(exact, kv_bytes=2_000_000, page_size=16, max_sequences=3, kv_cache_dtype="int8") as e:
        for _ in range(2):
            assert [c[0].tokens for c in e.generate(PROMPTS, **OPTIONS)] == [a.tokens for a in alone]
        pages = e.stats()["pages"]
    with hysparse.Engine(exact, kv_bytes=2_000_000, page_size=16, max_sequences=3) as e:
        assert pages > 1.5 * e.stats()["pages"]


def test_choices_differ_and_repeat(engine):
    first, again = (engine.submit("line", n=4, **OPTIONS).finish() for _ in range(2))
    assert first == again and len({tuple(c.tokens) for c in first}) > 1
    request = engine.submit("line", n=4, **OPTIONS)
    request.finish()
    assert request.completion_tokens == sum(len(c.tokens) for c in first) and request.prompt_tokens > 0
    assert request.next(0) is None


def test_streams_and_cancels(engine):
    request = engine.submit("the", max_new_tokens=-1, ignore_eos=True, seed=1)
    event = request.next(60)
    assert event.tokens and event.choice == 0
    request.cancel()
    reasons = [e.finish_reason for e in request if e.finish_reason]
    assert reasons in (["cancelled"], ["length"])  # it may have been done before
    with engine.submit("the", max_new_tokens=-1, ignore_eos=True):
        pass  # dropped
    assert engine.submit("the", max_new_tokens=2).finish()


def test_what_can_never_be_served_is_refused_at_once(exact, engine):
    for bad in ({"n": 0}, {"temperature": float("nan")}, {"max_new_tokens": -2}, {"stop": [""]}):
        with pytest.raises(hysparse.Error):
            engine.submit("a", **bad)
    with pytest.raises(hysparse.Error, match="257 tokens are more than the context of 256"):
        engine.submit([1] * 257)
    with pytest.raises(TypeError):
        engine.submit(None)
    for bad in ({"kv_bytes": 10}, {"page_size": 9}, {"step_tokens": 0}, {"speculate": -1}, {"kv_cache_dtype": "int4"}):
        with pytest.raises(hysparse.Error):
            hysparse.Engine(exact, **bad)


def test_closing_the_engine_ends_its_requests(exact):
    engine = hysparse.Engine(exact, kv_bytes=2_000_000, page_size=16, max_sequences=1)
    requests = [engine.submit("the", max_new_tokens=-1, ignore_eos=True) for _ in range(3)]
    engine.close()
    for request in requests:
        assert [c.finish_reason for c in request.finish()][0] in ("cancelled", "length")
    with pytest.raises(hysparse.Error):
        engine.submit("a")


def test_threads_submit_side_by_side(exact, engine):
    want = {p: exact.generate(p, **OPTIONS).text for p in PROMPTS}
    wrong = []

    def work():
        for p in PROMPTS:
            if engine.submit(p, **OPTIONS).finish()[0].text != want[p]:
                wrong.append(p)
            exact.generate(p, max_new_tokens=2)  # calls on the model take turns with the engine

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
