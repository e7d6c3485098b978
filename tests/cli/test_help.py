"""`--help`: every command is listed with a whole sentence, and no name is of Python's types.

Also tests groups.py and parameters.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from commands import Cli
from suffice.cli.commands import app
from suffice.cli.groups import Commands

SENTENCE = re.compile(r"[A-Z][^.]*\.")
MAKEFILE = Path(__file__).parents[2] / "Makefile"


def groups(
    group: Commands, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Commands]]:
    """Yield every group of commands with the words that name it."""
    yield path, group
    for name, command in group.known().items():
        if isinstance(command, Commands):
            yield from groups(command, (*path, name))


GROUPS = list(groups(app))


def cut(listing: str, group: Commands) -> list[str]:
    """Return the commands of a group whose listed text is no whole sentence of their help."""
    text = " ".join(listing.partition("Commands:")[2].split())
    found = []
    for name, command in group.known().items():
        sentence = command.short_help or (command.help or "").partition("\n\n")[0]
        whole = " ".join(sentence.split())
        if not command.hidden and not (SENTENCE.fullmatch(whole) and f"{name} {whole}" in text):
            found.append(name)
    return found


@pytest.mark.parametrize("width", ["80", "55"])
@pytest.mark.parametrize(("path", "group"), GROUPS, ids=lambda value: str(value)[:20])
def test_listings_have_whole_sentences(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, path: tuple[str, ...], group: Commands, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    listing = cli(*path, "--help").out
    assert len(group.known()) >= 3 and cut(listing, group) == []
    assert "..." not in listing.partition("Commands:")[2]


def test_a_cut_sentence_is_noticed() -> None:
    one = Commands("one")

    @one.program()
    def plot() -> None:
        """Plot runs as in the papers: scrooge as Figs. 6 to 9, kllm as Figs. 8 to 12."""

    @one.program()
    def draw() -> None:
        """Draw a picture of a very long story about the accelerators of many papers.

        This is not listed.
        """

    listing = "Commands:\n  plot  Plot runs as in the papers: scrooge as Figs.\n  draw  Draw a..."
    assert cut(listing, one) == ["plot", "draw"]
    assert cut(one.get_help(click.Context(one)), one) == ["plot"]


def test_help_names_no_types_of_python(cli: Cli) -> None:
    for path, group in GROUPS:
        for name, command in group.known().items():
            if not isinstance(command, Commands):
                out = cli(*path, name, "--help").out
                assert (
                    "list[" not in out and "[[" not in out and "..." not in out.split("\n")[0][:-3]
                )


def test_the_demo_looks_for_what_info_prints(cli: Cli) -> None:
    looked_for = re.search(r"suffice info \| grep -q '([^']+)'", MAKEFILE.read_text())
    assert looked_for and looked_for[1] in cli("info").out
