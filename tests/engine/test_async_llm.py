"""Coroutines get what `LLM` gives, and take their requests with them when they end."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import tiny
from fake_engine import FakeTokenizer, fake_llm, mixed, runner_of
from suffice import AsyncLLM, SamplingParams
from suffice.engine.service import Closed
from suffice.errors import InputError

TALK = [{"role": "user", "content": "ab"}]


def params(seed: int) -> SamplingParams:
    return SamplingParams(max_tokens=9, seed=seed, ignore_eos=True, logprobs=1)


def test_many_coroutines_get_what_they_would_get_alone() -> None:
    async def work() -> list[Any]:
        async with AsyncLLM.over(fake_llm()) as llm:
            return await asyncio.gather(*(llm.generate("ab", params(seed)) for seed in range(6)))

    for seed, output in enumerate(asyncio.run(work())):
        (alone,) = fake_llm().generate("ab", params(seed))
        assert output.outputs == alone.outputs


def test_streams_add_up() -> None:
    async def work() -> list[Any]:
        async with AsyncLLM.over(fake_llm()) as llm:
            return [delta async for delta in llm.stream([3, 4], params(1))]

    deltas = asyncio.run(work())
    (alone,) = fake_llm().generate([[3, 4]], params(1))
    assert "".join(delta.text for delta in deltas) == alone.outputs[0].text
    assert deltas[-1].final is not None and len(deltas) > 1


def test_a_chat_is_that_of_the_template() -> None:
    async def work() -> Any:
        async with AsyncLLM.over(fake_llm()) as llm:
            return await llm.chat(TALK, params(2))

    output = asyncio.run(work())
    assert output.prompt_token_ids == tuple(FakeTokenizer().encode("ab\nE"))
    assert output.outputs == fake_llm().chat(TALK, params(2))[0].outputs


def test_a_cancelled_coroutine_takes_its_request_with_it() -> None:
    def slow(history: list[int]) -> Any:
        time.sleep(1e-3)
        return mixed(history)

    llm = fake_llm(slow)

    async def work() -> None:
        async with AsyncLLM.over(llm) as shared:
            endless = SamplingParams(max_tokens=60, ignore_eos=True)
            task = asyncio.create_task(shared.generate("ab", endless))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(shared.engine.drain)
            assert runner_of(llm).open_sequences == []
            assert len(runner_of(llm).batches) < 59

    asyncio.run(work())


def test_errors_are_raised_where_they_are_made() -> None:
    async def work() -> None:
        llm = AsyncLLM.over(fake_llm())
        with pytest.raises(InputError, match="the prompt is empty"):
            await llm.generate("")
        await llm.close()
        with pytest.raises(Closed):
            await llm.generate("ab")

    asyncio.run(work())


def test_an_output_becomes_json() -> None:
    (output,) = fake_llm().generate("ab", params(3))
    found = json.loads(json.dumps(output.to_dict()))
    sample = output.outputs[0]
    assert found["outputs"][0]["token_ids"] == list(sample.token_ids)
    assert sample.logprobs is not None
    first = sample.token_ids[0]
    assert found["outputs"][0]["logprobs"][0][str(first)]["rank"] == sample.logprobs[0][first].rank
    assert found["speculation"]["steps"] == output.speculation.steps


LEFT_OPEN = """
import asyncio
import sys
from suffice import AsyncLLM, SamplingParams

async def main():
    llm = AsyncLLM(sys.argv[1], threads=2)
    params = SamplingParams(max_tokens=90, ignore_eos=True)
    streams = [llm.stream([5, 6, at], params) for at in range(8)]
    for stream in streams:
        await anext(stream)
    print("streaming")

asyncio.run(main())
"""


def test_one_left_open_ends_with_python_in_silence(tmp_path: Path) -> None:
    folder = str(tiny.make(tmp_path, "llama", tokenizer=True))
    command = [sys.executable, "-c", LEFT_OPEN, folder]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "streaming\n", "")
