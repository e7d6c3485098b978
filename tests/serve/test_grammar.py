"""Structured output: grammar.py, and constraints of sampling states."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llguidance
import pytest
from llguidance import gbnf_to_lark

from serving import Served, events, served
from suffice.cli.options import ModelFlags
from suffice.cli.serve import engine_options
from suffice.engine import structured
from suffice.engine.options import EngineOptions
from suffice.errors import InputError
from suffice.serve.errors import Problem
from suffice.serve.interfaces import grammar
from suffice.serve.settings import ENGINE
from suffice.text.tokenizer import load_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "maximum": 99}, "kind": {"enum": ["cat", "owl"]}},
    "required": ["age", "kind"],
    "additionalProperties": False,
}
MESSAGES = [{"role": "user", "content": "a"}]


@pytest.fixture(scope="module", params=["plain", "drafts"])
def real(words: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    """A tiny model with random weights: what it writes by itself is noise."""
    drafts = "ngram" if request.param == "drafts" else None
    given = EngineOptions(model=str(words), threads=1, speculative_config=drafts)
    options = engine_options(ModelFlags(options=given), 4)
    with served(words, engine=ENGINE, options=options, model="tiny") as found:
        yield found


def text(server: Served, **fields: Any) -> str:
    answer = server.chat("hello", **{"seed": 1, "max_tokens": 90, **fields})
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "stop", choice
    return str(choice["message"]["content"])


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_schema_is_followed(real: Served, temperature: float) -> None:
    own = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    found = json.loads(text(real, response_format=own, temperature=temperature))
    assert set(found) == {"age", "kind"} and found["kind"] in ("cat", "owl")
    again = json.loads(text(real, structured_outputs={"json": SCHEMA}, temperature=temperature))
    assert found == again


def test_a_regex_a_choice_and_a_grammar_are_followed(real: Served) -> None:
    assert re.fullmatch(
        r"[a-c]{2,5}[0-9]", text(real, structured_outputs={"regex": r"[a-c]{2,5}[0-9]"})
    )
    choice = ['say "yes"', "né", "no\nno"]
    assert text(real, structured_outputs={"choice": choice}) in choice
    lark = 'start: "<" NUMBER ">"\nNUMBER: /[0-9]{3}/'
    assert re.fullmatch(r"<\d{3}>", text(real, structured_outputs={"grammar": lark}))
    gbnf = 'root ::= "a" ("b" | "c") "d"'
    assert text(real, structured_outputs={"grammar": gbnf}) in ("abd", "acd")


def test_thousands_of_choices_are_followed(real: Served) -> None:
    choices = [f"option number {at}" for at in range(3000)]
    assert text(real, structured_outputs={"choice": choices}, seed=3) in choices


def test_a_grammar_that_becomes_too_complex_names_itself(real: Served) -> None:
    answer = real.chat(structured_outputs={"regex": "((a{100}){100}){100}"}, max_tokens=50)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert (
        message == "the grammar is too complex here: lexer error: too many expressions constructed"
    )
    assert real.chat(max_tokens=1).status_code == 200


def test_samples_follow_it_each_by_itself(real: Served) -> None:
    fields = {"n": 3, "structured_outputs": {"regex": "[a-z]{4}"}, "stream": True, "seed": 2}
    parts = [""] * 3
    for each in events(real.chat(**fields))[:-1]:
        for choice in each["choices"]:
            parts[choice["index"]] += choice["delta"].get("content") or ""
    assert all(re.fullmatch("[a-z]{4}", part) for part in parts) and len(set(parts)) > 1


def test_other_requests_stay_as_they_are(real: Served) -> None:
    alone = real.chat(seed=7, max_tokens=20).json()["choices"]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as pool:
        own = [pool.submit(text, real, structured_outputs={"regex": "[a-f]{9}"}) for _ in range(3)]
        assert real.chat(seed=7, max_tokens=20).json()["choices"] == alone
        assert all(re.fullmatch("[a-f]{9}", each.result()) for each in own)


def test_completions_have_it_too(real: Served) -> None:
    body = {"prompt": "a", "structured_outputs": {"choice": ["yes", "no"]}, "max_tokens": 20}
    assert real.post("/v1/completions", body).json()["choices"][0]["text"] in ("yes", "no")


def test_a_grammar_that_leaves_nothing_ends_its_request_alone(real: Served) -> None:
    fields = {"structured_outputs": {"choice": ["zzz"]}, "allowed_token_ids": [3]}
    answer = real.chat(**fields)
    assert answer.status_code == 400 and "no token is left" in answer.json()["error"]["message"]
    assert real.chat(max_tokens=1).status_code == 200


@pytest.mark.parametrize(
    ("regex", "why"),
    [
        ("(", "unclosed group"),
        ("(" * 5000 + ")" * 5000, "exceed the maximum number of nested parentheses"),
        ("(?=a)b", "look-around, including look-ahead and look-behind, is not supported"),
        ("a" * 300_000, "at most 262144 are allowed"),
    ],
    ids=["open", "nested", "ahead", "long"],
)
def test_what_is_wrong_with_a_regex_is_said_first(server: Served, regex: str, why: str) -> None:
    answer = server.chat(structured_outputs={"regex": regex})
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400 and why in message and len(message) < 130


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "xml"}},
        {"structured_outputs": {}},
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        {"structured_outputs": {"regex": "("}},
        {"structured_outputs": {"json": "{"}},
        {"structured_outputs": {"json": {"type": "nothing"}}},
        {"structured_outputs": {"grammar": "start: nope"}},
        {"structured_outputs": {"grammar": "root ::= ("}},
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        {"structured_outputs": {"json": {"enum": ["x" * 300_000]}}},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_bad_grammars(server: Served, fields: dict[str, Any]) -> None:
    answer = server.chat(**fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "invalid_schema"
    assert len(answer.content) < 4096 and "\\n" not in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("grammar", "", "grammar: it has no rule"),
        ("grammar", "\n", "grammar: it has no rule"),
        ("grammar", " ", "grammar: it has no rule"),
        ("grammar", "# c", "grammar: it has no rule"),
        ("grammar", 'root ::= "a foo"\n  foo', "grammar: Expected ::= at line 2"),
        ("grammar", '# foo\nroot ::= "foo" foo', "grammar: line 2: there is no rule 'foo'"),
        ("grammar", "root ::= a{2,1}", "grammar: line 1: there is no rule 'a'"),
        ("grammar", "é ::= x", "grammar: line 1: there is no rule 'x'"),
        ("grammar", 'foo ::= "a"', "grammar: there is no rule 'root' (of GBNF) or 'start'"),
        ("grammar", 'root ::= "\\', "grammar: it ends within a text"),
        (
            "grammar",
            'root ::= "a"{2,1}',
            "is bad: range end must be >= start, got (2, 1) in: start:",
        ),
        ("grammar", "start: a\na: b\nc: d", 'is bad: at 2(4): unknown name: "b" in: a: b'),
        ("regex", "\\", "regex: it ends with a backslash that escapes nothing"),
        ("regex", "a\\\\\\", "regex: it ends with a backslash that escapes nothing"),
        ("json", {"oneOf": [{"type": "string"}, {"maxLength": 3}]}, "bad: oneOf is not supported"),
    ],
)
def test_what_is_wrong_with_a_grammar_is_said(
    server: Served, kind: str, value: Any, message: str
) -> None:
    answer = server.chat(structured_outputs={kind: value})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["code"] == "invalid_schema", error
    assert message in error["message"] and error["param"] == "structured_outputs"
    assert "coerce" not in error["message"]


@pytest.mark.parametrize("kind", ["json", "regex", "choice", "grammar"])
def test_what_is_too_long_is_not_converted(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(*given: Any) -> str:
        raise AssertionError("it is converted")

    for name in ("grammar_from_json_schema", "grammar_from_regex", "grammar_from_lark"):
        monkeypatch.setattr(llguidance.LLMatcher, name, convert)
    monkeypatch.setattr(gbnf_to_lark, "any_to_lark", convert)
    long = "a" * (structured.LONGEST + 1)
    value = {"json": {"const": long}, "choice": [long[9:], "b" * 9]}.get(kind, long)
    with pytest.raises(InputError, match=f"^{kind}: the grammar has 2621.* are allowed"):
        structured.grammar_of(kind, value)


def test_many_rules_of_gbnf_are_not_converted(server: Served) -> None:
    """Each names the next: the conversion would look at all of them as often as there are rules."""

    def rules(count: int) -> str:
        named = "\n".join(f'r{at} ::= "a" r{at + 1}' for at in range(count))
        return f'root ::= r0\n{named}\nr{count} ::= "x"'

    assert structured.fault(structured.grammar_of("grammar", rules(500))) == ""
    for path, body in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": MESSAGES}),
    ):
        answer = server.post(path, {**body, "structured_outputs": {"grammar": rules(9000)}})
        assert answer.status_code == 400
        assert (
            "allowed in GBNF of 9002 rules: write it in Lark" in answer.json()["error"]["message"]
        )


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_grammar_is_converted_in_a_worker(
    server: Served, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop, for which all streams wait, does not do it."""
    where: list[str] = []
    real = structured.grammar_of

    def noted(*given: Any) -> str:
        where.append(threading.current_thread().name)
        return real(*given)

    monkeypatch.setattr(structured, "grammar_of", noted)
    body: dict[str, Any] = {"structured_outputs": {"grammar": 'root ::= "a"'}}
    asked = {"prompt": "a"} if path == "/v1/completions" else {"messages": MESSAGES}
    server.post(path, body | asked)
    assert [name.partition("_")[0] for name in where] == ["text"]


def test_a_regex_may_end_with_a_backslash() -> None:
    assert structured.fault(structured.grammar_of("regex", "a\\\\")) == ""


def test_a_check_has_an_end() -> None:
    async def run(work: Callable[[], str]) -> str:
        await asyncio.sleep(60)
        return work()

    with pytest.raises(Problem, match="too complex"):
        asyncio.run(
            grammar.check(grammar.grammar_of("regex", "a", ""), run, "structured_outputs", 0.01)
        )


def test_grammars_are_kept_and_bad_ones_are_the_requests_fault(words: Path) -> None:
    tokenizer = load_tokenizer(words)
    grammars = structured.Grammars(tokenizer, len(tokenizer.vocabulary()))
    found = grammars.compiled(grammar.grammar_of("choice", ["a"], ""))
    assert grammars.compiled(grammar.grammar_of("choice", ["a"], "")) is found
    for at in range(structured.MOST_KEPT):
        grammars.compiled(grammar.grammar_of("choice", [f"a{at}"], ""))
    assert grammars.compiled(grammar.grammar_of("choice", ["a"], "")) is not found
    with pytest.raises(InputError, match="the grammar is bad"):
        grammars.compiled("start: nope")
