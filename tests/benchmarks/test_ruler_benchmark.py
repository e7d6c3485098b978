"""The RULER benchmark on a tiny model: shared prompts change nothing, tables tell it rightly."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import tiny
from suffice import LLM, SamplingParams
from suffice.engine.config import Config
from suffice.engine.runner import load
from suffice.trace import Trace

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import ruler
import shared_prompts

COUNTS = ("steps", "kv_bytes_read", "kv_bytes_held", "sketch_bytes_read")
SHARED = (
    "exact",
    "aet:k=0.8",
    "art:tau=1e-1,phi=1e-1,p=1",
    "certified:bounded=false,eps=0.5",
    "snapkv:budget=40",
    "snapkv:ratio=0.2",
    "pyramidkv:ratio=0.6",
    "streaming:ratio=0.5",
    "h2o:ratio=0.3",
    "h2o:keep=true + art:tau=1e-1,phi=1e-1,p=1",
    "quest:ratio=0.4",
    "snapkv:keep=true + art:tau=1e-1,phi=1e-1,p=1",
)


def counts(trace: Trace) -> list[Any]:
    return [*(getattr(trace, name) for name in COUNTS), trace.rows.tolist()]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_shared_prompt_is_as_good_as_ones_own(tmp_path: Path, family: str) -> None:
    model = tiny.make(tmp_path / "model", family, tokenizer=True, max_position_embeddings=512)
    whole = Config.create(model, threads=1, max_model_len=400)
    prompts = [[1, *(3 + 7 * n * n % 190 for n in range(size))] for size in (200, 330)]
    greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    config, runner, tokenizer = load(whole)
    techniques = ruler.accepted(str(model), list(SHARED), {})
    llms, shared = shared_prompts.engines(config, runner, tokenizer, techniques)
    read = {}
    for name in SHARED:
        llm = LLM(model, threads=1, max_model_len=400, **ruler.parts(name))
        alone = [out.outputs[0].token_ids for out in llm.generate(prompts, greedy, use_tqdm=False)]
        outputs = llms[name].generate(prompts, greedy, use_tqdm=False)
        assert [out.outputs[0].token_ids for out in outputs] == alone, name
        assert counts(llms[name].runner.trace) == counts(llm.runner.trace), name
        read[name] = llm.runner.trace.kv_bytes_read / llm.runner.trace.kv_bytes_held
    less = [name for name in SHARED if read[name] < 0.95 * read["exact"]]
    assert len(less) > 6, read
    shared.forget()
    assert shared.run(prompts[0]).cache.length == len(prompts[0])
