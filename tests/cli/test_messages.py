"""Messages of bad input: in the words of the command line there, in Python's elsewhere."""

from __future__ import annotations

import pickle

import pytest

from commands import Cli, complaint
from suffice.cli.commands import app
from suffice.cli.messages import in_flags
from suffice.engine.config import Config
from suffice.engine.options import EngineOptions
from suffice.errors import InputError, OptionError, unknown_option
from suffice.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "a", "--temp", "-1"], "--temp -1: must be a number of at least 0"),
        (["run", "a", "--top-p", "2"], "--top-p 2: must be a number in [0, 1]"),
        (["run", "a", "--min-p", "2"], "--min-p 2: must be a number in [0, 1]"),
        (
            ["run", "a", "-n", "-2"],
            "-n -2: must be a whole number of at least 1, or -1 to fill the context",
        ),
        (["run", "a", "--max-tokens=-2"], "--max-tokens -2: must be a whole number of at least 1"),
        (["run", "a", "-n-2"], "-n -2: must be a whole number of at least 1"),
        (
            ["run", "a", "--min-tokens", "9", "-n", "4"],
            "--min-tokens 9: must not be more than -n 4",
        ),
        (
            ["run", "a", "--repeat-penalty", "0"],
            "--repeat-penalty 0: must be a number in [0.01, 100]",
        ),
        (["run", "a", "-c", "-4"], "-c -4: must be a whole number of at least 2"),
        (["run", "a", "-ctk", "int8", "-t", "0"], "-t 0: must be a whole number of at least 1"),
        (["run", "a", "-ctk", "int8", "-c", "1"], "-c 1: must be a whole number of at least 2"),
        (["run", "a", "--audit", "-3"], "--audit -3: must be a whole number of at least 1"),
        (
            ["run", "a", "--audit", "3"],
            "--audit 3: attention=exact with softmax=exact leaves nothing out of decode steps",
        ),
        (
            ["run", "a", "--stop", ""],
            "--stop '': every entry must be a string that is not empty",
        ),
        (["run", "a", "-t", "4096"], "-t 4096: must not be more than "),
        (
            ["run", "a", "--kv-cache-bytes", "much"],
            "--kv-cache-bytes much: must be a positive number of",
        ),
        (
            ["run", "a", "--tepm", "1"],
            "unknown flag '--tepm'. Did you mean '--temp'? `suffice run --help` lists the flags",
        ),
        (["run", "a", "--ctx", "9"], "unknown flag '--ctx'. Did you mean '--ctx-size'? `suffice r"),
        (["bench", "--temp", "1"], "unknown flag '--temp'. `suffice bench --help` lists the flag"),
        (["run", "a", "-x"], "unknown flag '-x'. `suffice run --help` lists the flags"),
        (
            ["run", "Why", "is", "it", "blue?"],
            "unexpected 'is it blue?': put a prompt of several words in quotes; `suffice run --h",
        ),
        (["chat", "hi"], "unexpected 'hi': `suffice chat --help` lists what it takes"),
        (["rm"], "Missing argument 'NAME'. `suffice rm --help` lists what it takes"),
        (["eval"], "Missing command. Known: latency, longbench, perplexity, ruler, tasks"),
        (
            ["eval", "ppl"],
            "No such command 'ppl'. Known: latency, longbench, perplexity, ruler, tasks",
        ),
    ],
)
def test_bad_input_is_named_as_it_was_given(cli: Cli, arguments: list[str], message: str) -> None:
    assert complaint(cli(*arguments)).startswith(message)


def test_a_bad_value_of_a_variable_is_named_by_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUFFICE_PORT", "foo")
    monkeypatch.setenv("SUFFICE_MAX_NUM_SEQS", "bar")
    wrong = "is not a whole number"
    assert complaint(cli("serve")) == f"Invalid value for 'SUFFICE_PORT': 'foo' {wrong}"
    assert complaint(cli("serve", "--port", "x")) == f"Invalid value for '--port': 'x' {wrong}"
    said = complaint(cli("serve", "--port", "1"))
    assert said == f"Invalid value for 'SUFFICE_MAX_NUM_SEQS': 'bar' {wrong}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run a -t 0", "-t 0: must be 1, not --seed 3"),
        ("run a --threads 0", "--threads 0: must be 1, not --seed 3"),
        ("run a --threads=0", "--threads 0: must be 1, not --seed 3"),
        ("run a -t0", "-t 0: must be 1, not --seed 3"),
        ("run a -t 4 -t 0", "-t 0: must be 1, not --seed 3"),
        ("run a --top-k 0", "SUFFICE_THREADS=many: must be 1, not --seed 3"),
    ],
)
def test_the_flag_that_was_given_is_named(
    monkeypatch: pytest.MonkeyPatch, arguments: str, message: str
) -> None:
    monkeypatch.setenv("SUFFICE_THREADS", "many")
    error = OptionError("threads", "0", "must be 1, not seed=3", ", or None")
    given = [*arguments.split(), "--seed", "3"]
    assert in_flags(error, given, app.parameters()) == message


def test_an_option_that_was_not_given_keeps_its_name() -> None:
    error = OptionError("max_num_seqs", 0, "must be at least n=1 and seed=3")
    assert in_flags(error, ["run", "a"], app.parameters()) == str(error)


@pytest.mark.parametrize("option", ["max_tokens", "temperature", "top_k", "min_tokens"])
def test_python_keeps_its_names(option: str) -> None:
    with pytest.raises(OptionError, match=rf"{option}=-5: must be a") as refused:
        SamplingParams(**{option: -5})
    none = str(refused.value).endswith(", or None")
    assert none == (option == "max_tokens")
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_python_is_told_of_none() -> None:
    for options in ({"threads": 0}, {"audit": -3}, {"kv_cache_bytes": "4GX"}):
        with pytest.raises(InputError, match=r"=.*: must be .*, or None$"):
            Config.built(EngineOptions("m", **options))


def test_an_unknown_option_is_named_with_the_nearest() -> None:
    message = "attention 'x' has no option 'epsilon'. Did you mean 'eps'? Options: eps, values"
    assert str(unknown_option("attention 'x'", "epsilon", ["values", "eps"])) == message
    assert str(unknown_option("attention 'x'", "a", [])) == (
        "attention 'x' has no option 'a'. It has no options"
    )
