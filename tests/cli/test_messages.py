"""Messages of bad input: in the words of the command line there, in Python's elsewhere."""

from __future__ import annotations

import pickle

import pytest
import typer

from suffice.cli.commands import app
from suffice.cli.environment import parameters
from suffice.cli.messages import in_flags
from suffice.engine.config import Config
from suffice.engine.options import EngineOptions
from suffice.errors import InputError, OptionError, unknown_option
from suffice.sampling_params import SamplingParams


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
    known = parameters(typer.main.get_command(app))
    assert in_flags(error, [*arguments.split(), "--seed", "3"], known) == message


def test_an_option_that_was_not_given_keeps_its_name() -> None:
    error = OptionError("max_num_seqs", 0, "must be at least n=1 and seed=3")
    known = parameters(typer.main.get_command(app))
    assert in_flags(error, ["run", "a"], known) == str(error)


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
