"""Flags of vLLM that have no effect here, as hidden flags of the commands that run a model."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from suffice.engine.foreign import FOREIGN, Foreign, take

COMMANDS = ("run", "chat", "bench")


def accept(group: Any) -> None:
    """Make the commands accept the flags, with a warning."""
    options = _options()
    for command in COMMANDS:
        group.commands[command].params += options


def _options() -> list[Any]:
    """Return the flags as parameters, which typer makes from a function's signature."""

    def takes() -> None:
        pass

    parameters = [_parameter(name, own) for name, own in FOREIGN.items()]
    takes.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    takes.__annotations__ = {each.name: each.annotation for each in parameters}
    app = typer.Typer(add_completion=False)
    app.command()(takes)
    return [each for each in typer.main.get_command(app).params if each.name in FOREIGN]


def _parameter(name: str, own: Foreign) -> inspect.Parameter:
    flag, negated = (f"--{start}{name.replace('_', '-')}" for start in ("", "no-"))
    kind: Any = bool if own.switch else str

    def given(value: Any) -> None:
        if value is None:
            return
        written = (flag if value else negated) if own.switch else f"{flag}={value}"
        take(name, value, written)

    option = typer.Option(
        f"{flag}/{negated}" if own.switch else flag,
        hidden=True,
        expose_value=False,
        callback=given,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )
