"""The lines that sum up a run."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tiny
from commands import SUMMARY, Cli, complaint
from fake_engine import fake_llm, scripted
from suffice import SamplingParams
from suffice.cache.kv import KVCache
from suffice.cli.answer import COLUMNS, audited, summary
from suffice.engine.llm import LLM
from suffice.engine.request import Metrics, RequestOutput
from suffice.speculate.tree import Tree
from suffice.trace import Audit, BoundSums, Trace

MIB = 2**20
WEIGHTS = "weights Q4_K_M, run as bfloat16"


def read(share: float, *, held: int, cached: int, sketch: int = 0) -> Trace:
    """Return what a model of 2 layers and 2 heads of 256 bytes a row read of `held` rows a head.

    The cache held `cached` bytes at the last step, that of 512 tokens.
    """
    trace = Trace(2, 2)
    trace.rows[2] += held
    trace.plain_row_bytes, trace.plain_token_bytes = (512, 512), 512 * trace.rows[0].size
    trace.cached = (512, cached)
    trace.kv_bytes_read = int(share * 2 * trace.rows_held * 256)
    trace.sketch_bytes_read = sketch
    return trace


@pytest.fixture
def output() -> RequestOutput:
    [output] = fake_llm(scripted(3, 4, 8)).generate("c", use_tqdm=False)
    return output


def test_bytes_before_and_after(output: RequestOutput) -> None:
    said = summary(output, read(0.25, held=4000, cached=MIB // 4), WEIGHTS)
    assert "\ncache 1.0 -> 0.2 MiB, read 25 % | memory " in said and WEIGHTS in said
    assert SUMMARY.fullmatch(said)
    said = summary(output, read(1, held=4000, cached=MIB), WEIGHTS)
    assert "\ncache 1.0 MiB, read 100 % | memory " in said
    said = summary(output, read(0.9999, held=4000, cached=MIB, sketch=1), WEIGHTS)
    assert "read 99.9 %, sketch included | " in said, "not all is not 100 %"


def test_experts_stand_beside_keys_and_values(output: RequestOutput) -> None:
    trace = read(1, held=4000, cached=MIB)
    trace.steps, trace.expert_bytes_held, trace.expert_bytes_read = 4, 40 * MIB, 5 * MIB
    said = summary(output, trace, WEIGHTS)
    assert "cache 1.0 MiB, read 100 % | experts 10.0 MiB, read 12.5 % | memory" in said
    assert SUMMARY.fullmatch(said)
    assert "experts" not in summary(output, read(1, held=4000, cached=MIB), WEIGHTS)


def test_states_stand_beside_keys_and_values(tmp_path: Path) -> None:
    """What a real model moves; its cache is no larger for that."""
    llm = LLM(tiny.make(tmp_path, "lfm2", tokenizer=True), threads=1, dtype="float32")
    [output] = llm.generate([[5, 6, 7]], SamplingParams(max_tokens=4, ignore_eos=True))
    trace = llm.runner.trace
    assert trace.state_bytes_moved == 3 * 2 * llm.runner.open("size", 9).cache.native.state_bytes
    trace.state_bytes_moved *= 4096
    said = summary(output, trace, WEIGHTS)
    size = trace.state_bytes_moved / 6 / MIB
    assert f"read 100 % | states {size:.1f} MiB, rewritten each step | memory" in said
    assert SUMMARY.fullmatch(said)
    assert " -> " not in said


def test_a_cache_is_summed_up_once_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(tiny.make(tmp_path, "llama", tokenizer=True), threads=1, dtype="float32")
    row, asked = llm.runner.trace.plain_token_bytes, []
    known = KVCache.held_bytes.fget
    assert known is not None

    def held_bytes(cache: KVCache) -> int:
        asked.append(cache)
        return int(known(cache))

    monkeypatch.setattr(KVCache, "held_bytes", property(held_bytes))
    for prompt, count in (([5, 6, 7], 9), ([5, 6], 4)):
        llm.generate([prompt], SamplingParams(max_tokens=count, ignore_eos=True), use_tqdm=False)
        tokens = len(prompt) + count - 1  # the last one is not run
        assert llm.runner.trace.cached == (tokens, tokens * row)
    assert len(asked) == 2


def audit_of(*figures: list[float]) -> Audit:
    """Return the audit of a token with some of the figures of its queries; others are not known."""
    found = np.full((5, 1, 1, len(figures[0])), np.nan, np.float32)
    found[: len(figures), 0, 0] = figures
    audit = Audit(1, len(figures[0]))
    audit.add(found)
    return audit


def test_the_bound_in_words(output: RequestOutput) -> None:
    trace = read(0.5, held=400, cached=MIB)
    trace.missing = 0.0312
    said = summary(output, trace, WEIGHTS)
    assert "read 50 % | up to 3.1 % of softmax unread | memory" in said
    assert SUMMARY.fullmatch(said)


def test_estimated_weights_are_off_rather_than_unread(output: RequestOutput) -> None:
    trace = read(0.5, held=400, cached=MIB, sketch=1)
    trace.estimates, trace.missing = True, 0.0312
    said = summary(output, trace, WEIGHTS)
    assert "read 50 % | softmax off by at most 3.1 % on average (worst 3.1 %)" in said
    assert SUMMARY.fullmatch(said)
    trace.shift, trace.bounds = 0.074, BoundSums(4, 4 * 0.0123, 4 * 0.051)
    said = summary(output, trace, WEIGHTS)
    assert "softmax off by at most 1.2 % on average (worst 3.1 %)" in said
    assert "outputs moved by at most 5.1 % of the longest value on average (worst 7.4 %)" in said
    assert SUMMARY.fullmatch(said) and "sure" not in said
    trace.audit = audit_of([0.02, 0.04], [0.5, 0.5], [0.1, 0.1], [0.01, 0.02], [0.3, 0.3])
    assert summary(output, trace, WEIGHTS).splitlines()[-1] == (
        "audit of 1 tokens: softmax off by 3 % (worst 4 %), output error 50 % (worst 50 %), "
        "output moved by 1.5 % (worst 2 %) of the longest value"
    )


def test_a_bound_at_a_confidence_in_words(output: RequestOutput) -> None:
    trace = read(0.5, held=400, cached=MIB, sketch=1)
    trace.estimates, trace.missing, trace.confidence = True, 0.0412, 0.99
    said = summary(output, trace, WEIGHTS)
    assert "softmax off by at most 4.1 % on average (worst 4.1 %)" in said
    assert "each bound 99 % sure | memory" in said
    assert SUMMARY.fullmatch(said)
    trace.confidence = 0.999
    assert "each bound 99.9 % sure" in summary(output, trace, WEIGHTS)
    trace.audit = audit_of([0.02, 0.04], [0.5, 0.5], [0.03, 0.03])
    assert summary(output, trace, WEIGHTS).endswith("; 1 of 2 queries beyond their bound")
    trace.audit = audit_of([0.02, 0.04], [0.5, 0.5], [0.05, 0.05])
    assert "beyond" not in summary(output, trace, WEIGHTS)
    trace.audit = audit_of([0.02, 0.04], [1.234, 1.234], [0.05, 0.05])
    assert "output error 123 % (worst 123 %)" in summary(output, trace, WEIGHTS)


def test_a_bound_that_says_nothing_is_no_number(output: RequestOutput) -> None:
    trace = read(0.5, held=400, cached=MIB, sketch=1)
    trace.estimates, trace.missing, trace.shift, trace.confidence = True, 1.0, 2.0, 0.99
    trace.bounds = BoundSums(4, 4 * 0.31, 4 * 1.2)
    said = summary(output, trace, WEIGHTS)
    assert "softmax off by at most 31 % on average (worst: no useful bound)" in said
    assert "outputs moved by an amount that has no useful bound" in said
    assert SUMMARY.fullmatch(said) and all(len(line) <= COLUMNS for line in said.splitlines())


def test_what_a_prompt_read_has_no_bound(output: RequestOutput) -> None:
    trace = read(0.5, held=400, cached=MIB, sketch=1)
    trace.estimates, trace.missing, trace.shift = True, 0.04, 0.1
    trace.tile_rows_read, trace.tile_rows_held = 621, 1000
    said = summary(output, trace, WEIGHTS)
    assert "prompt attention read 62.1 %, without a bound" in said
    assert "after this prompt, softmax off by at most 4 % on average" in said
    assert SUMMARY.fullmatch(said)
    trace.tile_rows_read = 1000
    said = summary(output, trace, WEIGHTS)
    assert "prompt attention read 100 % | " in said and "after this prompt" not in said


def test_two_lines_at_most_and_none_too_long(output: RequestOutput) -> None:
    trace = read(0.123, held=4000, cached=119 * MIB, sketch=1)
    trace.cached = (512 * 995, 119 * MIB)
    trace.missing = 0.0312
    metrics = Metrics(prefill_seconds=9, decode_seconds=9)
    large = dataclasses.replace(output, prompt_token_ids=(3,) * 12036, metrics=metrics)
    sample = dataclasses.replace(output.outputs[0], token_ids=(3,) * 1999)
    large = dataclasses.replace(large, outputs=(sample,))
    said = summary(large, trace, WEIGHTS)
    assert "cache 995 -> 119 MiB" in said
    assert len(said.splitlines()) == 2
    large.speculation.add(Tree.chain([3, 4, 8]), 1)
    said = summary(large, trace, WEIGHTS)
    assert SUMMARY.fullmatch(said) and "drafts accepted 1 of 3, 1.25 tokens a step" in said
    assert all(len(line) <= COLUMNS for line in said.splitlines())


def test_an_audit_has_a_line_of_its_own(output: RequestOutput) -> None:
    audit = audit_of([0.02, 0.04], [0.5, 0.5], [0.1, 0.1])
    line = "audit of 1 tokens: softmax unread 3 % (worst 4 %), output error 50 % (worst 50 %)"
    assert audited(audit) == line and len(line) <= COLUMNS
    trace = read(0.5, held=400, cached=MIB)
    trace.audit = audit
    assert summary(output, trace, WEIGHTS).splitlines()[-1] == line


def test_quiet_prints_the_text_alone(cli: Cli, fake: Callable[..., LLM]) -> None:
    fake(scripted(3, 4), template=False)
    assert cli("run", "c", "--temp", "0", "-q").err == ""
    assert cli("run", "c", "--temp", "0", "--quiet").out == "abc\n"
    ran = cli("run", "")
    assert ran.err.startswith("suffice: error: "), "errors stay"


def test_what_fails_before_its_first_word_has_no_summary(cli: Cli, checkpoint: Path) -> None:
    ran = cli("run", "--raw", "-m", str(checkpoint), "hello", "--kv-cache-bytes", "3")
    said = complaint(ran)
    assert re.fullmatch(
        r"the KV cache needs \d+ more bytes, but its limit is 3 and 0 are in use", said
    )


def test_what_is_stored_in_fewer_bits_is_held_in_fewer_bytes(cli: Cli, checkpoint: Path) -> None:
    arguments = ("run", "--raw", "-m", str(checkpoint), "hello", "-n", "40", "--ignore-eos")
    said = cli(*arguments, "-ctk", "int8", "--quant", "int8").err
    assert "weights float32, run as int8" in said
    assert SUMMARY.fullmatch(said.strip()) and " -> " in said and "read 100 %" not in said
