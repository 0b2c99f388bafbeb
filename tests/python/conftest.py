"""A tiny random model made with the command line, whose outputs the package is held to."""
import json
import os
import pathlib
import subprocess

import pytest

import hysparse

PROGRAM = os.environ["HYSPARSE_PROGRAM"]
CONFIG = {
    "num_hidden_layers": 5, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 48, "vocab_size": 330, "max_position_embeddings": 256, "attention": "hysparse", "full_attention_interval": 3,
    "sliding_window": 8, "hysparse_block_size": 8, "hysparse_topk_tokens": 16, "initializer_range": 0.3,
}


def run(*arguments, code=0):
    """The program's standard output."""
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True)
    assert done.returncode == code, done.stderr.decode()
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="session")
def work(tmp_path_factory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("hysparse")
    lines = [f"line {i * 7919 % 1000}: the quick brown fox jumps, 天地玄黃.\n" for i in range(400)]
    (root / "text.txt").write_text("".join(lines))
    (root / "config.json").write_text(json.dumps(CONFIG))
    run("tokenizer", "train", "--input", root / "text.txt", "--vocab-size", 320, "--out", root / "tok")
    run("init", "--config", root / "config.json", "--tokenizer", root / "tok", "--seed", 7, "--out", root / "model")
    run("init", "--config", root / "config.json", "--seed", 7, "--out", root / "wordless")
    return root


@pytest.fixture(scope="session")
def model(work):
    with hysparse.Model.load(work / "model", threads=2) as m:
        yield m


@pytest.fixture(scope="session")
def wordless(work):
    """A model without a tokenizer."""
    with hysparse.Model.load(work / "wordless") as m:
        yield m
