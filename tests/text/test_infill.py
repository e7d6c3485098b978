"""Prompts that fill in: text/infill.py."""

from __future__ import annotations

import pytest

from suffice.text.infill import Infill


def encode(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize(
    ("names", "prompt"),
    [
        (("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"), [500, 97, 501, 98, 502]),
        (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), [500, 97, 501, 98, 502]),
        (("▁<PRE>", "▁<SUF>", "▁<MID>"), [500, 97, 501, 98, 502]),
        (("[PREFIX]", "[SUFFIX]"), [501, 98, 500, 97]),
    ],
)
def test_the_order_of_a_family(names: tuple[str, ...], prompt: list[int]) -> None:
    form = Infill.of({name: 500 + at for at, name in enumerate(names)})
    assert form is not None and form.prompt("a", "b", encode) == prompt


def test_a_model_without_these_tokens() -> None:
    assert Infill.of({"<|fim_prefix|>": 1, "<|fim_suffix|>": 2}) is None and Infill.of({}) is None
