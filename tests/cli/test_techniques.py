"""`suffice info SEAM` and `suffice info TECHNIQUE`."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from commands import Cli, complaint, loaded_by
from suffice.cli.techniques import SEAMS, Page, Seam, described, listed

ALL = [(seam, name) for seam in SEAMS for name in seam.table.names()]


@pytest.mark.parametrize(("seam", "name"), ALL, ids=[f"{s.name}-{n}" for s, n in ALL])
def test_every_option_of_every_technique_is_documented(seam: Seam, name: str) -> None:
    page = Page.of(seam, name)
    fields = [field for field in dataclasses.fields(seam.table.load(name)) if field.init]
    assert list(page.options) == [field.name for field in fields]
    assert all(page.options.values()) and page.sentence
    seam.table.build(page.example)
    text = described(seam, name)
    assert all(f"\n{field.name} " in text for field in fields)
    if page.limit:
        assert seam.table.build(page.limit) == seam.table.load(name).exact_limit()


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.table.kind)
def test_the_text_of_a_technique_builds_it_again(seam: Seam) -> None:
    for name in seam.table.names():
        made = seam.table.build(Page.of(seam, name).example)
        assert seam.table.build(seam.table.text_of(made)) == made


def test_an_option_without_an_entry_is_found() -> None:
    @dataclasses.dataclass(frozen=True)
    class Undocumented:
        unheard_of: int = 1

    seam = dataclasses.replace(SEAMS[0], table=type(SEAMS[0].table)("attention", {"x": "m:X"}))
    seam.table.load = lambda name: Undocumented  # type: ignore[method-assign]
    with pytest.raises(LookupError, match="no entry in Options for unheard_of"):
        Page.of(seam, "x")


def test_no_entry_is_of_an_option_that_is_not_there() -> None:
    from suffice.cli.techniques import _options

    for seam, name in ALL:
        technique = seam.table.load(name)
        module = sys.modules[technique.__module__]
        classes = [
            value
            for value in vars(module).values()
            if dataclasses.is_dataclass(value) and isinstance(value, type)
        ]
        known = {field.name for each in classes for field in dataclasses.fields(each)}
        assert set(_options(module.__doc__ or "")) <= known, module.__name__


def test_a_seam_is_one_line_for_each_technique(cli: Cli) -> None:
    ran = cli("info", "attention")
    assert ran.code == 0 and ran.err == ""
    lines = ran.out.splitlines()
    assert lines[0].startswith("--attention NAME or NAME:OPTION=VALUE,...: how attention is")
    start = "art          Run-time termination: stop once the running output has settled ["
    assert start + 'Qiu et al., "ART"]' in lines
    assert len(lines) == 5 + len(SEAMS[0].table.names())
    assert lines == listed(SEAMS[0]).splitlines()


def test_a_technique(cli: Cli) -> None:
    out = cli("info", "aet").out
    assert out == cli("info", "attention", "aet").out
    for line in (
        "sinks       1        first tokens, always read\n",
        "limit    --attention aet:keys=all,values=0 equals the exact result: a test compares them",
        'example  suffice run --attention aet:keys=0.9,values=0.001 "your prompt"',
        'source   Byeon et al., "Scrooge: ',
        "native   csrc/",
    ):
        assert f"\n{line}" in out
    assert all(len(line) <= 100 for line in out.splitlines())
    assert "no options" in cli("info", "attention", "exact").out
    assert cli("info", "exaq_km").code == 0


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["atention"],
            "unknown seam or technique 'atention'. Did you mean 'attention'? Seams: att",
        ),
        (
            ["certifid"],
            "unknown seam or technique 'certifid'. Did you mean 'certified'? Seams: att",
        ),
        (
            ["qqq"],
            "unknown seam or technique 'qqq'. Seams: attention, softmax, policy, experts, gr",
        ),
        (["exact"], "'exact' is a technique of several seams: `suffice info attention exact` or "),
        (
            ["attention", "att"],
            "unknown attention 'att'. Did you mean 'art'? Known: aet, art, cert",
        ),
        (
            ["atention", "aet"],
            "unknown seam 'atention'. Did you mean 'attention'? Seams: attention",
        ),
        (["a", "b", "c"], "info a b c: give a seam, a technique, or a seam and one"),
        (["aet", "-m", "x"], "info aet: goes with neither -m nor --measure"),
    ],
)
def test_unknown_names(cli: Cli, names: list[str], message: str) -> None:
    assert complaint(cli("info", *names)).startswith(message)


def test_a_technique_without_tensors_loads_no_torch() -> None:
    for arguments, loaded in loaded_by((["info", "attention"], ["info", "snapkv"]), ["torch"]):
        assert not loaded, arguments


def test_the_help_of_run_names_it(cli: Cli) -> None:
    words = " ".join(cli("run", "--help").out.replace("\u2502", " ").split())
    assert "`suffice info attention` lists them" in words
