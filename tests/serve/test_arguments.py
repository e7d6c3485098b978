"""Arguments of calls as values: interfaces/arguments.py."""

from __future__ import annotations

import msgspec
import pytest

from suffice.serve.interfaces.arguments import arguments_of


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("[1]", {}),
        ('{"a', {}),
        ('{"a": "\\ud83d"}', {}),
        ('{"a": ' + "[" * 5000, {}),
        ("[" * 5000 + "]" * 5000, {}),
    ],
)
def test_what_arguments_say(text: str, found: object) -> None:
    assert arguments_of(text) == found


def test_numbers_that_json_has_not_can_be_sent() -> None:
    assert msgspec.json.encode(arguments_of('{"a": NaN, "b": 1e999}')) == b'{"a":null,"b":null}'
