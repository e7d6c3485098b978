"""Structured output in `LLM` and `AsyncLLM`."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import tiny
from suffice import LLM, AsyncLLM, SamplingParams
from suffice.errors import InputError

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"]}
LARK = "start: /<[0-9]{3}>/"


@pytest.fixture(scope="module", params=[None, "ngram:adaptive=false"])
def llm(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> LLM:
    folder: Path = tiny.make(
        tmp_path_factory.mktemp("words"), "llama", tokenizer=True, max_position_embeddings=512
    )
    return LLM(str(folder), threads=1, speculative_config=request.param)


def params(seed: int = 1, **structure: Any) -> SamplingParams:
    return SamplingParams(max_tokens=60, seed=seed, structured_outputs=structure)


def test_each_form_is_followed_in_one_batch(llm: LLM) -> None:
    forms: list[dict[str, Any]] = [
        {"json": SCHEMA},
        {"json": json.dumps(SCHEMA)},
        {"regex": "[a-c]{4}"},
        {"choice": ["yes", "no"]},
        {"grammar": LARK},
        {"json_object": True},
    ]
    asked = [params(seed, **form) for seed, form in enumerate(forms)]
    found = [each.outputs[0].text for each in llm.generate(["hello"] * len(asked), asked)]
    assert all(json.loads(text)["a"] in (1, 22) for text in found[:2])
    assert re.fullmatch("[a-c]{4}", found[2]) and found[3] in ("yes", "no")
    assert re.fullmatch("<[0-9]{3}>", found[4]) and found[5].startswith("{")
    alone = [llm.generate("hello", each)[0].outputs[0].text for each in asked]
    assert alone == found


def test_samples_follow_it_each_for_itself(llm: LLM) -> None:
    given = SamplingParams(n=3, seed=2, max_tokens=20, structured_outputs={"regex": "[a-z]{5}"})
    (found,) = llm.generate("hello", given)
    assert all(re.fullmatch("[a-z]{5}", each.text) for each in found.outputs)


def test_async(llm: LLM) -> None:
    async def run() -> str:
        async with AsyncLLM.over(llm) as engine:
            return (await engine.generate("hello", params(choice=["yes", "no"]))).outputs[0].text

    assert asyncio.run(run()) in ("yes", "no")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("json", "structured_outputs='json': must map one of json, regex, "),
        ({}, "must map one of"),
        ({"json": {}, "regex": "a"}, "must map one of"),
        ({"jsn": {}}, "Did you mean 'json'?"),
        ({"regex": 3}, "structured_outputs: regex=3: must be a regular expression"),
        ({"choice": []}, "structured_outputs: choice=[]: must be a list of texts"),
        ({"choice": [""]}, "choice"),
        ({"json_object": False}, "json_object=False: must be True"),
    ],
)
def test_bad_forms_are_refused_at_once(given: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        SamplingParams(structured_outputs=given)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "form", [{"grammar": "start: nope"}, {"regex": "("}, {"json": "{"}, {"json": {"type": "x"}}]
)
def test_bad_grammars_are_refused_before_anything_runs(llm: LLM, form: dict[str, Any]) -> None:
    before = llm.runner.trace.steps
    with pytest.raises(InputError) as error:
        llm.generate(["hello", "hello"], [SamplingParams(), params(**form)])
    assert "\n" not in str(error.value) and llm.runner.trace.steps == before


def test_what_is_missing_is_named(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InputError, match="structured_outputs needs llguidance: pip install"):
        llm.generate("hello", params(regex="a"))
