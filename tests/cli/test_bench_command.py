"""`suffice bench`, on a tiny model."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

import tiny
from commands import Cli

# Of the tiny model: embedding and head, three layers, norms.
WEIGHTS = 2 * 320 * 64 + 3 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64 + 2 * 64) + 64
ARGUMENTS = ("bench", "-p", "4", "-n", "3", "-d", "0,8", "-r", "2")


def test_markdown(cli: Cli, checkpoint: Path) -> None:
    ran = cli(*ARGUMENTS, "-m", str(checkpoint), "-ctk", "float32", "-ctv", "int8")
    assert ran.code == 0
    lines = ran.out.splitlines()
    head, rule, *rows = ([cell.strip() for cell in line.split("|")] for line in lines)
    assert head[1:-1] == [
        *("model", "size", "params", "backend", "threads", "type_k", "type_v", "weights", "batch"),
        *("test", "t/s", "GB/s", "roof", "KV/token", "weights/token"),
    ]
    assert set("".join(rule)) <= set("-:")
    found = [dict(zip(head, row, strict=True)) for row in rows]
    assert [row["test"] for row in found] == ["pp4", "tg3", "pp4 @ d8", "tg3 @ d8"]
    for row in found:
        assert (row["backend"], row["type_k"], row["type_v"]) == ("CPU", "float32", "int8")
        assert row["params"] == f"{WEIGHTS / 1e6:.2f} M"
        assert (row["GB/s"] == row["roof"] == "-") == row["test"].startswith("pp")
    assert "tokenization and sampling are not part of the times" in ran.err


def test_json_counts_every_byte(cli: Cli, checkpoint: Path) -> None:
    ran = cli(*ARGUMENTS, "-m", str(checkpoint), "-o", "json", "-ctk", "float32")
    records = {record["test"]: record for record in json.loads(ran.out)}
    shallow, deep = records["tg3"], records["tg3 @ d8"]
    row_bytes = 3 * 2 * 2 * 16 * 4  # layers, keys and values, heads, size, float32
    assert deep["kv_bytes_per_token"] - shallow["kv_bytes_per_token"] == 8 * row_bytes
    assert deep["weight_bytes_per_token"] == shallow["weight_bytes_per_token"] > 0
    assert len(deep["seconds"]) == 2 and deep["tokens_per_second"] > 0
    read = deep["kv_bytes_per_token"] + deep["weight_bytes_per_token"]
    expected = read * deep["tokens_per_second"] / deep["roof_bytes_per_second"]
    assert deep["roof_fraction"] == pytest.approx(expected)
    per_second = read * deep["tokens_per_second"]
    assert deep["read_bytes_per_second"] == pytest.approx(per_second)
    assert records["pp4"]["roof_fraction"] is records["pp4"]["read_bytes_per_second"] is None


def test_experts_have_a_column(cli: Cli, tmp_path: Path) -> None:
    folder = tiny.make(tmp_path, "mixtral", tokenizer=True)
    arguments = ("bench", "-p", "4", "-n", "3", "-r", "1", "-m", str(folder))
    records = {each["test"]: each for each in json.loads(cli(*arguments, "-o", "json").out)}
    assert records["pp4"]["expert_fraction"] is None
    one = records["tg3"]
    assert one["expert_fraction"] == pytest.approx(2 / 6)  # 2 of 6 experts for a row
    every = 3 * 6 * 3 * 64 * 48  # layers, experts, matrices
    assert one["expert_bytes_per_token"] in (every * 2 / 3, every * 4 / 3)  # of bfloat16, float32
    assert one["expert_bytes_per_token"] < one["weight_bytes_per_token"]
    head, _, prompt, decode = cli(*arguments).out.splitlines()
    assert "experts/token" in head and decode.rstrip(" |").endswith(", 33.3 % of all")
    assert prompt.rstrip(" |").endswith("-")


def test_perplexity_lists_which_experts_were_read(cli: Cli, tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "model", "mixtral", tokenizer=True)
    text = tmp_path / "text"
    text.write_text("the quick brown fox " * 40)
    asked = (
        "eval",
        "perplexity",
        "-m",
        str(folder),
        "--text",
        str(text),
        "--window",
        "64",
        "--limit",
        "1",
    )
    asked = (*asked, "--batch-size", "1", "-o", "csv", "--experts")
    tables = [
        {row["measure"]: row["value"] for row in csv.DictReader(io.StringIO(ran.out))}
        for ran in (cli(*asked, "all"), cli(*asked, "mass:0.4"))
    ]
    every, fewer = (float(table["bytes of experts read"]) for table in tables)
    left = "experts' weights left out of a row, bound"
    assert 0 < fewer < every <= 1 and left not in tables[0]
    assert 0 < float(tables[1][left]) <= 0.6


def test_csv(cli: Cli, checkpoint: Path) -> None:
    ran = cli(*ARGUMENTS, "-m", str(checkpoint), "-o", "csv", "-b", "2")
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    assert [row["test"] for row in rows] == ["pp4", "tg3", "pp4 @ d8", "tg3 @ d8"]
    assert all(row["batch"] == "2" and len(row["seconds"].split()) == 2 for row in rows)


def test_lists_of_lengths(cli: Cli, checkpoint: Path) -> None:
    ran = cli("bench", "-p", "4,6", "-n", "2,3", "-r", "1", "-m", str(checkpoint), "-o", "json")
    assert [record["test"] for record in json.loads(ran.out)] == ["pp4", "pp6", "tg2", "tg3"]
