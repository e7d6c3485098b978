"""Grammars of answers whose calls are held to their tools, in every form: dialects/grammar.py."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import speaking
from dialect_writers import TOOLS, WRITERS, answers, harmony
from suffice.dialects import families
from suffice.dialects.dialect import Dialect, Spelling
from suffice.dialects.grammar import AnswerGrammar, Held
from suffice.dialects.schemas import kinds_of, properties_of
from suffice.engine.structured import SPACES, grammar_of
from suffice.text.tokenizer import Tokenizer, load_tokenizer

FORMS = (*WRITERS, "harmony")
TEXT_AND_TOKENS = pytest.mark.parametrize("tokens", [False, True], ids=["text", "tokens"])
# Calls that are not of the tools: by their name, by what is missing, by the type of a value.
BAD = (
    (("other", {}),),
    (("weather", {"days": 1}),),
    (("weather", {"city": "Ош", "days": "two"}),),
)


@functools.cache
def tokenizer_of(marks: tuple[str, ...]) -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return written_to(Path(folder), marks)


def written_to(folder: Path, marks: Sequence[str]) -> Tokenizer:
    (folder / "config.json").write_text("{}")
    speaking.write_tokenizer(folder, marks)
    return load_tokenizer(folder)


class Written:
    """A form as the answers of a model whose marks are tokens, or not."""

    def __init__(self, form: str, *, tokens: bool) -> None:
        calls = families.CALLS.get(form)
        dialect = families.HARMONY if calls is None else Dialect(families.THINKINGS["qwen3"], calls)
        whole = [mark for mark in dialect.marks if mark.endswith((">", "]")) and len(mark) > 4]
        if any("｜DSML｜" in mark for mark in whole):  # which is the token there
            whole = ["｜DSML｜"]
        marks = sorted({*whole} - {"<|end|>"}) if tokens or calls is None else []
        self.tokenizer = tokenizer_of(tuple(marks))
        self._spelling = Spelling(dialect, self.tokenizer.whole())
        self._dialect = self._spelling.dialect(dialect)

    def grammar(self, held: Held | None, form: str | None = None, *, opened: bool = False) -> str:
        whole = self.tokenizer.whole().values()
        ids = self._spelling.token_ids
        return AnswerGrammar(self._dialect, ids, whole, opened=opened).text(held, form)

    def matcher(self, grammar: str) -> Any:
        from llguidance import LLMatcher, LLTokenizer

        _, text = self.tokenizer.stored()
        ends = sorted(self.tokenizer.eos_ids)
        found = LLMatcher(LLTokenizer(text, eos_token=ends), grammar, log_level=0)
        assert not found.is_error(), found.get_error()
        return found

    def takes(self, matcher: Any, text: str) -> bool:
        own = matcher.deep_copy()
        tokens = self.tokenizer.encode(text, special=False)
        return own.try_consume_tokens(tokens) == len(tokens) and own.is_accepting()


def held(**own: Any) -> Held:
    return Held(TOOLS, **{"must": False, "options": SPACES, **own})


def written(form: str, calls: Sequence[Any]) -> str:
    return harmony("", "", calls) if form == "harmony" else WRITERS[form][0](calls)


def plain_answers(form: str) -> Iterator[tuple[str, str, Sequence[Any]]]:
    """Yield published answers without thinking, which no grammar sees where its marks are tokens.

    With channels a call ends the answer, and there is always a message.
    """
    for whole, thought, said, calls in answers(form, "qwen3"):
        several = form == "harmony" and (len(calls) > 1 or not whole)
        if not thought and not several:
            yield whole, said, calls


@pytest.mark.parametrize("form", FORMS)
@TEXT_AND_TOKENS
def test_every_published_answer_may_come(form: str, tokens: bool) -> None:
    own, count = Written(form, tokens=tokens), 0
    matcher = own.matcher(own.grammar(held()))
    one = own.matcher(own.grammar(held(several=False)))
    for whole, _, calls in plain_answers(form):
        assert own.takes(matcher, whole), whole
        assert own.takes(one, whole) == (len(calls) < 2), whole
        count += 1
    assert count >= 7


@pytest.mark.parametrize("form", FORMS)
@TEXT_AND_TOKENS
def test_no_call_that_is_not_of_the_tools_may_come(form: str, tokens: bool) -> None:
    own = Written(form, tokens=tokens)
    matcher = own.matcher(own.grammar(held()))
    for calls in BAD:
        assert not own.takes(matcher, written(form, calls)), calls
        if form not in ("llama3", "pythonic", "llama4_pythonic"):  # where text is no call
            before = "" if form == "harmony" else "Жди.\n"
            assert not own.takes(matcher, before + written(form, calls)), calls


@pytest.mark.parametrize("form", [each for each in FORMS if each != "llama4_pythonic"])
@TEXT_AND_TOKENS
def test_a_call_that_must_be_made_comes_as_it_is_published(form: str, tokens: bool) -> None:
    own = Written(form, tokens=tokens)
    matcher = own.matcher(own.grammar(held(must=True)))
    for whole, said, calls in plain_answers(form):
        assert own.takes(matcher, whole) == bool(calls and not said), whole


def test_the_letters_of_a_mark_in_other_tokens_are_text() -> None:
    own = Written("hermes", tokens=True)
    matcher = own.matcher(own.grammar(held()))
    apart = [own.tokenizer.encode(part, special=False) for part in ("One writes <tool_", "call> x")]
    tokens = [token for part in apart for token in part]
    assert matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("form", ["hermes", "kimi_k2", "harmony"])
def test_an_answer_calls_or_obeys_a_form(form: str) -> None:
    own = Written(form, tokens=True)
    answer = grammar_of("choice", ["yes", "no"])
    matcher = own.matcher(own.grammar(held(), answer))
    final = "<|channel|>final<|message|>" if form == "harmony" else ""
    assert own.takes(matcher, f"{final}yes") and not own.takes(matcher, f"{final}Yes")
    for whole, said, calls in plain_answers(form):
        assert own.takes(matcher, whole) == bool(calls and not said), whole
    alone = own.matcher(own.grammar(None, answer))
    assert own.takes(alone, f"{final}yes") and not own.takes(alone, f"{final}Yes")


def test_a_mark_of_thinking_that_ends_within_a_token(tmp_path: Path) -> None:
    own = Written("hermes", tokens=False)
    written_to(tmp_path, ())
    path = tmp_path / "tokenizer.json"
    found = json.loads(path.read_text())
    vocabulary = found["model"]["vocab"]
    first = 1 + max(*vocabulary.values(), *(each["id"] for each in found["added_tokens"]))
    both = (first, first + 1)
    for letter, token in zip("Hy", both, strict=True):
        vocabulary[f">{letter}"] = token
        found["model"]["merges"].append([">", letter])
    path.write_text(json.dumps(found))
    own.tokenizer = load_tokenizer(tmp_path)
    answer = grammar_of("choice", ["yes", "no"])
    for opened, begun in ((True, "Hm. {1} </thin"), (False, "<think>Hm. {1} </thin")):
        matcher = own.matcher(own.grammar(None, answer, opened=opened))
        tokens = own.tokenizer.encode(f"{begun}k", special=False)
        assert matcher.try_consume_tokens(tokens) == len(tokens)
        may = [matcher.deep_copy().try_consume_tokens([token]) for token in both]
        assert may == [0, 1], "the rest of a token is of the answer"
        for text, takes in (("\n\nyes", True), ("no", True), ("\n\n", False), ("Hello", False)):
            assert (
                own.takes(own.matcher(own.grammar(None, answer, opened=opened)), f"{begun}k>{text}")
                == takes
            )
    unthought = own.matcher(own.grammar(None, answer))
    assert own.takes(unthought, "yes") and not own.takes(unthought, "Hm.</think>yes")


NESTED = {
    "type": "object",
    "properties": {"at": {"$ref": "#/$defs/Place"}, "or": {"anyOf": [{"$ref": "#/$defs/Place"}]}},
    "required": ["at"],
    "$defs": {
        "Place": {
            "type": "object",
            "properties": {"near": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]}},
            "required": ["near"],
            "additionalProperties": False,
        }
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_schemas_may_refer_to_their_parts(form: str) -> None:
    own = Written(form, tokens=True)
    matcher = own.matcher(own.grammar(Held({"go": NESTED}, must=True)))
    for value, takes in (({"near": None}, True), ({"near": 1}, False)):
        if form in ("pythonic", "llama4_pythonic"):
            call = f"[go(at={json.dumps(value)})]"
            call += "<|python_end|>" if form == "llama4_pythonic" else ""
        elif form in ("gemma4", "functiongemma"):
            call = written(form, (("go", {"at": "@"}),))
            quote = '<|"|>' if form == "gemma4" else "<escape>"
            call = call.replace(f"{quote}@{quote}", json.dumps(value))
        else:
            call = written(form, (("go", {"at": value}),))
        assert own.takes(matcher, call) == takes, call


def test_the_kinds_of_what_a_schema_refers_to() -> None:
    kinds = {name: kinds_of(each) for name, each in properties_of(NESTED).items()}
    assert kinds == {"at": {"object"}, "or": {"object"}}
    odd = {"properties": {"a": {"$ref": "#/$defs/None"}, "b": True, "c": {"$ref": 1}}}
    assert {name: kinds_of(each) for name, each in properties_of(odd).items()} == {
        "a": set(),
        "b": set(),
        "c": set(),
    }
