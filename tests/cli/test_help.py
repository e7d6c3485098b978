"""`--help`: every command is listed with a whole sentence, and no name is of Python's types."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from commands import Cli
from suffice.cli.commands import app
from suffice.cli.flags import show_whole_sentences

SENTENCE = re.compile(r"[A-Z][^.]*\.")
MAKEFILE = Path(__file__).parents[2] / "Makefile"


def groups(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every group of commands with the words that name it."""
    yield path, group
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from groups(command, (*path, name))


GROUPS = list(groups(typer.main.get_command(app)))


def cut(listing: str, group: Any) -> list[str]:
    """Return the commands of a group whose listed text is no whole sentence of their help."""
    text = " ".join(listing.partition("Commands:")[2].split())
    found = []
    for name, command in group.commands.items():
        sentence = command.short_help or (command.help or "").partition("\n\n")[0]
        whole = " ".join(sentence.split())
        if not command.hidden and not (SENTENCE.fullmatch(whole) and f"{name} {whole}" in text):
            found.append(name)
    return found


@pytest.mark.parametrize("width", ["80", "55"])
@pytest.mark.parametrize(("path", "group"), GROUPS, ids=lambda value: str(value)[:20])
def test_listings_have_whole_sentences(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, path: tuple[str, ...], group: Any, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    listing = cli(*path, "--help").out
    assert len(group.commands) > 3 and cut(listing, group) == []
    assert "..." not in listing.partition("Commands:")[2]


def test_a_cut_sentence_is_noticed() -> None:
    one = typer.Typer(add_completion=False)

    @one.command("plot")
    def plot() -> None:
        """Plot runs as in the papers: scrooge as Figs. 6 to 9, kllm as Figs. 8 to 12."""

    @one.command("draw")
    def draw() -> None:
        """Draw a picture of a very long story about the accelerators of many papers."""

    group = typer.main.get_command(one)
    listing = "Commands:\n  plot  Plot runs as in the papers: scrooge as Figs.\n  draw  Draw a..."
    assert cut(listing, group) == ["plot", "draw"]
    show_whole_sentences(group)
    listing = f"Commands:\n  draw  {group.commands['draw'].short_help}"
    assert cut(listing, group) == ["plot"]


def test_help_names_no_types_of_python(cli: Cli) -> None:
    for path, group in GROUPS:
        for name, command in group.commands.items():
            if not hasattr(command, "commands"):
                out = cli(*path, name, "--help").out
                assert (
                    "list[" not in out and "[[" not in out and "..." not in out.split("\n")[0][:-3]
                )


def test_the_demo_looks_for_what_info_prints(cli: Cli) -> None:
    looked_for = re.search(r"suffice info \| grep -q '([^']+)'", MAKEFILE.read_text())
    assert looked_for and looked_for[1] in cli("info").out
