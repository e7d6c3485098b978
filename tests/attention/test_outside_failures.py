"""Techniques from outside that cannot be loaded or run: each is one line."""

from __future__ import annotations

import queue
import re
from pathlib import Path

import pytest

from attention.test_outside import PROMPT, load, tokens
from commands import Cli, complaint
from suffice import SamplingParams
from suffice.engine.service import Delta, Engine, Work
from suffice.errors import InputError

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "my_rul:MyRule",
            "attention 'my_rul:MyRule': there is no module 'my_rul', here or installed. Did you "
            "mean 'my_rule'? Known techniques: aet, art, certified, exact, skip_softmax, tiers",
        ),
        (
            "my_rule:MyRul:margin=1",
            "attention 'my_rule:MyRul': module my_rule (HERE/my_rule.py) has no class 'MyRul'. Did "
            "you mean 'MyRule'? Classes: MyRule",
        ),
        (
            "my_rule:MyRule:margn=1",
            "attention 'my_rule:MyRule' has no option 'margn'. Did you mean 'margin'? Options: "
            "margin, recent, sinks",
        ),
        (
            "broken:Newest:rows=0",
            "attention 'broken:Newest': rows=0 must be at least 1",
        ),
        (
            "my_rule.py:MyRule",
            "attention 'my_rule.py:MyRule': a file cannot be named. Go to its folder, and name "
            "the module and the class: MODULE:CLASS",
        ),
        (
            "../rules/my_rule.py:MyRule",
            "attention '../rules/my_rule.py': a file cannot be named. Go to its folder, and name "
            "the module and the class: MODULE:CLASS",
        ),
        (
            "aett:keys=1",
            "unknown attention 'aett'. Did you mean 'aet'? Known: aet, art, certified, exact, "
            "skip_softmax, tiers",
        ),
        (
            "broken:NoDataclass",
            "attention 'broken:NoDataclass': NoDataclass must be a frozen dataclass: put "
            "@dataclass(frozen=True) before it",
        ),
        (
            "broken:Bare",
            "attention 'broken:Bare': Bare lacks exact_limit, reference: must have "
            "the members of suffice.attention.Attention",
        ),
        ("broken:Newest", "attention 'broken:Newest': option 'rows' has no default: give it"),
        (
            "unfinished:X",
            "attention 'unfinished:X': importing unfinished fails: ModuleNotFoundError: No module "
            "named 'no_such_module' (unfinished.py, line 1)",
        ),
        (
            "parts.rules:X",
            "attention 'parts.rules:X': importing parts.rules fails: ModuleNotFoundError: No "
            "module named 'parts.gone' (rules.py, line 1)",
        ),
        (
            "parts.gone:X",
            "attention 'parts.gone:X': there is no module 'parts.gone', here or installed. Known "
            "techniques: aet, art, certified, exact, skip_softmax, tiers",
        ),
    ],
)
def test_what_cannot_be_loaded(text: str, message: str, cli: Cli, folder: Path) -> None:
    ran = cli("run", "-m", "none", "--attention", text, "x")
    assert complaint(ran) == message.replace("HERE", str(folder))


NO_CAPACITY = r"next_capacity\(\d+, 0, \d+\) returns"
NO_DRAFTS = "propose returns"


@pytest.mark.parametrize(
    ("flag", "technique", "message"),
    [
        ("growth", "Stuck", r" fails: KeyError: \d+ \(others.py, line \d+\)"),
        ("growth", "Wild:what=leaves", r" fails: SystemExit: 0 \(others.py, line \d+\)"),
        ("growth", "Wild:what=none", f": {NO_CAPACITY} None: must be a whole number from .*"),
        ("growth", "Wild:what=less", f": {NO_CAPACITY} 0: must be .*"),
        ("growth", "Wild:what=more", f": {NO_CAPACITY} 1000000000000: must be .*"),
        ("growth", "Wild:what=text", f": {NO_CAPACITY} '7': must be .*"),
        ("growth", "Wild:what=half", rf": {NO_CAPACITY} \d+\.5: must be .*"),
        ("speculate", "Rambles:what=proposer", " fails: AttributeError: .*"),
        ("speculate", "Rambles:what=none", f": {NO_DRAFTS} None: must be a list of a Tree .*"),
        ("speculate", "Rambles:what=fewer", rf": {NO_DRAFTS} \[\]: must be .*, here 1"),
        ("speculate", "Rambles:what=lists", rf": {NO_DRAFTS} \[1\]: must be a Tree of tokens .*"),
        *(
            ("speculate", f"Rambles:what={what}", rf": {NO_DRAFTS} Tree\(.*: must be a Tree of .*")
            for what in ("unknown", "below", "floats", "orphans", "later")
        ),
        ("speculate", "Rambles:what=other", " fails: KeyError: 'other' .*"),
        ("speculate", "Rambles:what=forgets", " fails: SystemExit: 0 .*"),
    ],
)
def test_a_technique_of_another_seam_that_fails_is_one_line(
    flag: str, technique: str, message: str, cli: Cli, checkpoint: Path
) -> None:
    kind = {"growth": "growth", "speculate": "speculator"}[flag]
    ran = cli("run", "-m", str(checkpoint), "-t", "1", f"--{flag}", f"others:{technique}", "x")
    found, name = ran.err.splitlines()[-1], technique.partition(":")[0]
    assert re.fullmatch(f"suffice: error: {kind} 'others:{name}'{message}", found), found
    assert ran.code == 2


def test_a_server_says_which_technique_fails(checkpoint: Path) -> None:
    engine = Engine(load(checkpoint, growth="others:Wild:what=leaves"))
    ended = queue.Queue[Delta]()
    try:
        for name in "ab":  # the engine goes on
            engine.submit(Work(name, PROMPT, SamplingParams(max_tokens=2)), ended.put)
            why = str(ended.get(timeout=60).final)
            assert re.fullmatch(
                r".*a step failed: growth 'others:Wild' fails: SystemExit: 0 \(others.py, .*", why
            )
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("attention", "options", "message"),
    [
        (
            "broken:Newest:rows=1",
            {},
            r"attention 'broken:Newest': its exact_limit\(\) is off by [\d.]+ of exact attention's "
            "output: must equal it",
        ),
        (
            "broken:Fails",
            {},
            "attention 'broken:Fails' fails in layer 0: ValueError: assignment destination is "
            r"read-only \(broken.py, line \d+\)",
        ),
        (
            "broken:FailsAtOnce",
            {},
            r"attention 'broken:FailsAtOnce' fails where its exact_limit\(\) is checked: "
            r"ValueError: assignment destination is read-only \(broken.py, line \d+\)",
        ),
        (
            "broken:Turned",
            {},
            r"attend_to: chosen has the shape \(2, 1, \d+\): must be \(1, 2, \d+\), "
            r"\[tokens, key/value heads, rows\]",
        ),
        ("broken:Blind", {}, "attend_to: no row is chosen for token 0 and key/value head 0"),
        (
            "broken:Wrong",
            {},
            r"attention 'broken:Wrong': reference returns output of shape \(1, 16\): must be "
            r"\(4, 1, 16\)",
        ),
        *(
            (f"broken:Odd:what={what}", {}, f"attention 'broken:Odd'{message}")
            for what, message in (
                ("nan", ": reference returns an output that is not finite"),
                ("complex", ": reference returns output as complex64: must be floats"),
                ("list", ": reference returns output as list: must be an array"),
                ("floats", ": reference returns keys as float64: must be bool"),
                ("below", ": reference returns sketch_bytes below 0"),
                ("parts", ": reference returns sketch_bytes as float64: must be integers"),
                (
                    "state",
                    r" fails in layer 0: ZeroDivisionError: division by zero \(broken.py, .*",
                ),
                ("leaves", r" fails in layer 0: SystemExit: 3 \(broken.py, line \d+\)"),
                ("writes", " fails in layer 0: ValueError: output array is read-only .*"),
            )
        ),
        (
            "broken:NoLimit",
            {},
            r"attention 'broken:NoLimit': rule\(\) or exact_limit\(\) fails: AttributeError: "
            r"type object 'NoLimit' has no attribute 'forgotten' \(broken.py, line \d+\)",
        ),
        (
            "broken:Nothing",
            {},
            "attention 'broken:Nothing': reference returns NoneType: must be Attended",
        ),
        (
            "broken:Remembers",
            {"speculative_config": "ngram"},
            "speculator 'ngram' with attention 'broken:Remembers', which keeps state in Python "
            "that drafts cannot undo: the speculator must be 'none'",
        ),
        (
            "my_rule:MyRule",
            {"policy": "quest:budget=48"},
            "policy 'quest' selects within native attention, with attention 'my_rule:MyRule', "
            "which has no native code: the policy must evict, or be 'full'",
        ),
        (
            "copies:Early:order=sketch,block=16",
            {},
            "attention 'copies:Early', which has no native code: only native code reads the "
            "cache's sketches and bases",
        ),
    ],
)
def test_what_cannot_run(
    attention: str, options: dict[str, str], message: str, checkpoint: Path
) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        tokens(load(checkpoint, attention, **options), [PROMPT], 2)
