"""Flags of vLLM that have no effect here, as hidden flags of the commands that run a model."""

from __future__ import annotations

import click

from suffice.cli.parameters import Option
from suffice.engine.foreign import FOREIGN, Foreign, take


def foreign_flags() -> list[Option]:
    """Return the flags; a given one is taken with a warning."""
    return [_option(name, own) for name, own in FOREIGN.items()]


def _option(name: str, own: Foreign) -> Option:
    flag, negated = (f"--{start}{name.replace('_', '-')}" for start in ("", "no-"))

    def given(context: click.Context, option: click.Parameter, value: object) -> None:
        if value is None:
            return
        written = (flag if value else negated) if own.switch else f"{flag}={value}"
        take(name, value, written)

    return Option(
        [name, f"{flag}/{negated}" if own.switch else flag],
        panel=None,
        hidden=True,
        expose_value=False,
        default=None,
        callback=given,
    )
