"""The package's public names, which load nothing until they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import suffice


def loaded(code: str) -> set[str]:
    """Return the modules a fresh interpreter has loaded after running some code."""
    report = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", report], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_every_public_name_exists() -> None:
    assert sorted(suffice.__all__) == sorted(
        ["LLM", "CompletionOutput", "Config", "RequestOutput", "SamplingParams", "__version__"]
    )
    for name in suffice.__all__:
        value = getattr(suffice, name)
        assert getattr(value, "__name__", name) == name
    assert set(suffice.__all__) <= set(dir(suffice))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'suffice' has no attribute 'LLMs'"):
        suffice.LLMs  # noqa: B018


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import suffice", "numpy"),
        ("from suffice import SamplingParams; SamplingParams()", "numpy"),
        ("from suffice import Config; Config.create('model', threads=1)", "tokenizers"),
        ("from suffice import LLM", "jinja2"),
    ],
)
def test_nothing_is_loaded_before_it_is_needed(code: str, absent: str) -> None:
    assert not loaded(code) & {"torch", "transformers", "gguf", absent}


def test_the_loaded_modules_are_seen() -> None:
    assert "numpy" in loaded("from suffice import LLM")
