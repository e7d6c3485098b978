"""Checks of numbers in a checkpoint's configuration; their errors name its fields."""

from __future__ import annotations

from typing import Any

from suffice.errors import InputError, brief

MAX_SIZE = 2**31 - 1  # sizes and positions are 32-bit numbers in the native core
_MAX_LAYERS = 1024  # several times as many as any published decoder has
_MAX_NUMBER = 3.4e38  # the decoder computes in float32, where larger numbers are infinite


def check_size(field: str, value: Any) -> None:
    """Refuse values that are not a size or a count.

    Raises:
        InputError: Not a whole number of at least 1.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_SIZE:
        raise InputError(
            f"config field '{field}' = {brief(value)} must be a whole number from 1 to {MAX_SIZE}"
        )


def check_number(field: str, value: Any, above: float = 0) -> None:
    """Refuse values that are not finite float32 numbers above `above`.

    Raises:
        InputError: It is not.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not above < value < _MAX_NUMBER:
        raise InputError(
            f"config field '{field}' = {brief(value)} must be a finite number above {above:g}"
        )


def check_layers(count: int, field: str = "num_hidden_layers") -> None:
    """Refuse a number of layers that no decoder has, before anything is made for each.

    Raises:
        InputError: There are more than 1024.
    """
    if count > _MAX_LAYERS:
        raise InputError(f"config field '{field}' = {count} must be at most {_MAX_LAYERS}")
