"""`structured_outputs` of LLM and AsyncLLM: every form is followed, by each sample, with drafts."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny
from fake_engine import fake_llm
from suffice import LLM, AsyncLLM, SamplingParams, StructuredOutputsParams
from suffice.engine.service import Engine, Work
from suffice.errors import InputError
from suffice.models.tokenizer import load_tokenizer
from suffice.sampling import grammar

SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "maximum": 99}, "kind": {"enum": ["cat", "owl"]}},
    "required": ["age", "kind"],
    "additionalProperties": False,
}
SHAPES = {
    "json": (SCHEMA, r'\{.*"age".*"kind".*\}'),
    "regex": ("[a-c]{2,5}[0-9]", "[a-c]{2,5}[0-9]"),
    "choice": (["yes", "no"], "yes|no"),
    "grammar": ('root ::= "a" ("b" | "c") "d"', "abd|acd"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("words")
    return tiny.make(made, "llama", tokenizer=True, max_position_embeddings=1024)


@pytest.fixture(scope="module", params=["plain", "drafts"])
def llm(folder: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    """A tiny model with random weights: what it writes by itself is noise."""
    drafts = "ngram" if request.param == "drafts" else None
    yield LLM(str(folder), threads=1, speculative_config=drafts)


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"seed": 1, "max_tokens": 90, **fields})


def batch() -> list[SamplingParams]:
    """One request of each form, and one without."""
    shaped = [params(structured_outputs={name: form}) for name, (form, _) in SHAPES.items()]
    return [*shaped, params(max_tokens=12, ignore_eos=True)]


def test_every_form_is_followed_in_one_batch(llm: LLM) -> None:
    outputs = llm.generate(["hello"] * len(batch()), batch(), use_tqdm=False)
    texts = [output.outputs[0].text for output in outputs]
    for text, (_, pattern) in zip(texts, SHAPES.values(), strict=False):
        assert re.fullmatch(pattern, text, re.DOTALL), text
    assert set(json.loads(texts[0])) == {"age", "kind"}
    assert all(output.outputs[0].finish_reason == "stop" for output in outputs[:-1])
    alone = [llm.generate("hello", one, use_tqdm=False)[0].outputs for one in batch()]
    assert [output.outputs for output in outputs] == alone


def test_samples_follow_it_each_by_itself(llm: LLM) -> None:
    (output,) = llm.generate("hello", params(n=3, structured_outputs={"regex": "[a-z]{4}"}))
    texts = [sample.text for sample in output.outputs]
    assert all(re.fullmatch("[a-z]{4}", text) for text in texts) and len(set(texts)) > 1


def test_coroutines_get_the_same(llm: LLM) -> None:
    async def work() -> list[Any]:
        async with AsyncLLM.over(llm) as own:
            return await asyncio.gather(*(own.generate("hello", one) for one in batch()))

    wanted = llm.generate(["hello"] * len(batch()), batch(), use_tqdm=False)
    assert [found.outputs for found in asyncio.run(work())] == [each.outputs for each in wanted]


def test_tokens_that_are_known_count_for_the_grammar(llm: LLM) -> None:
    """As when another engine goes on with a text."""
    text = grammar.grammar_of(StructuredOutputsParams(regex="[a-z]{6}"))
    whole = finished(llm, Work("whole", (5, 6), params(), grammar=text))
    again = Work("again", (5, 6), params(), grammar=text, known=(tuple(whole[:2]),))
    assert whole[:2] + finished(llm, again) == whole


def finished(llm: LLM, work: Work) -> list[int]:
    """Return the new tokens of a work."""
    engine, tokens = Engine(llm), list[int]()
    engine.submit(work, lambda delta: tokens.extend(delta.tokens))
    engine.drain()
    engine.close()
    return tokens


def test_two_grammars_contradict_each_other(llm: LLM) -> None:
    work = Work("x", (5,), params(structured_outputs={"regex": "a"}), grammar="start: /a/")
    engine = Engine(llm)
    with pytest.raises(InputError, match="contradict each other"):
        engine.submit(work, lambda delta: None)
    engine.close()


@pytest.mark.parametrize(
    "given, said",
    [
        ({}, "give one of json, regex, choice, grammar, json_object, not none"),
        ({"regex": "a", "choice": ["b"]}, "not 2"),
        ({"rejex": "a"}, "Did you mean 'regex'"),
        ({"choice": "yes"}, "must be a list"),
        ({"choice": []}, "must hold at least one text"),
        ({"choice": [1]}, "every entry must be a string"),
        ({"regex": 3}, "must be a text"),
        ({"json": 3}, "must be a JSON schema"),
        ({"json": False}, "nothing fulfils"),
        ("regex", "must be a StructuredOutputsParams"),
    ],
)
def test_bad_values_are_refused_before_a_model_is_needed(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        SamplingParams(structured_outputs=given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", [{"regex": "("}, {"json": "{"}, {"grammar": "start: nope"}])
def test_a_bad_grammar_is_one_line_and_stops_nothing(llm: LLM, form: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        llm.generate("hello", params(structured_outputs=form))
    assert "\n" not in str(caught.value)
    assert llm.generate("hello", params(max_tokens=1))[0].finished


def test_without_llguidance_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InputError, match=r"pip install 'suffice\[grammar\]'"):
        fake_llm().generate("ab", params(structured_outputs={"json_object": True}))


def test_others_do_not_load_llguidance() -> None:
    code = "import sys, suffice.engine.llm; print('llguidance' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_grammars_are_kept_and_bad_ones_are_the_requests_fault(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    size = len(tokenizer.vocabulary())
    grammars = grammar.Grammars(lambda: tokenizer.stored()[1], tokenizer.eos_ids, size)

    def choice(text: str) -> str:
        return grammar.grammar_of(StructuredOutputsParams(choice=[text]))

    found = grammars.compiled(choice("a"))
    assert grammars.compiled(choice("a")) is found
    for at in range(grammar.MOST_KEPT):
        grammars.compiled(choice(f"a{at}"))
    assert grammars.compiled(choice("a")) is not found
    with pytest.raises(InputError, match="the grammar is bad"):
        grammars.compiled("start: nope")
