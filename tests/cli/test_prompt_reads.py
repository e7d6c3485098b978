"""Commands say what tiles of prompts read (`tiers:prompt=`), where prompts have tiles."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import tiny
from commands import Cli
from suffice.eval.report_points import of_bench

TILED = ("--attention", "tiers:eps=0.5,prompt=0.3")
SAID = re.compile(r"prompt attention read ([\d.]+) %, without a bound")
TEXT = "the quick brown fox jumps over the lazy dog " * 90


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return tiny.make(folder, "llama", tokenizer=True, max_position_embeddings=4096)


def test_bench_has_a_column(cli: Cli, folder: Path) -> None:
    asked = ("bench", "-m", folder, "-p", "1500", "-n", "2", "-r", "1")
    records = {each["test"]: each for each in json.loads(cli(*asked, *TILED, "-o", "json").out)}
    assert 0.2 < records["pp1500"]["prompt_fraction"] < 1
    assert records["tg2"]["prompt_fraction"] is None
    head, _, prompt, decode = cli(*asked, *TILED).out.splitlines()
    share = f"{100 * records['pp1500']['prompt_fraction']:.1f} %"
    assert head.split("|")[-2].strip() == "prompt read"
    assert [row.split("|")[-2].strip() for row in (prompt, decode)] == [share, "-"]
    assert head.split("|")[-3].strip() == "techniques"
    assert prompt.split("|")[-3].strip() == records["tg2"]["techniques"] == "tiers:prompt=0.3"
    assert of_bench(records["tg2"]).endswith(" · tiers:prompt=0.3")
    plain = cli(*asked).out
    assert "prompt read" not in plain and "techniques" not in plain


def test_evaluations_say_it_below_the_table(cli: Cli, folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text(TEXT)
    asked = ("eval", "perplexity", "-m", str(folder), "--text", str(text), "--limit", "1")
    sizes = ("--window", "1500", "--mode", "prefill")
    found = cli(*asked, *sizes, *TILED)
    assert found.code == 0 and (said := SAID.search(found.err)) and 20 < float(said[1]) < 100
    assert "prompt attention" not in found.out + cli(*asked, *sizes).err


def test_a_batch_says_it_at_its_end(cli: Cli, folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    body = {"prompt": TEXT[:3000], "max_tokens": 2}
    request = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    source.write_text(json.dumps(request) + "\n")
    found = cli("batch", "-m", folder, "-i", source, "-o", tmp_path / "out.jsonl", *TILED)
    assert found.code == 0 and SAID.search(found.err.splitlines()[-1]), found.err
