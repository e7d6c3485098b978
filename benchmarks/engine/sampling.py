"""Measure what drawing tokens costs: `LLM.stream` over bare steps, `LLM.generate` over greedy.

    python -m benchmarks.engine.sampling                   5 minutes
    python -m benchmarks.engine.sampling --settings int8   one kind of weights
    python -m benchmarks.engine.sampling --quick           a trial run of a tiny model

One engine runs everything, in rounds. A stream of one request, drawn with the defaults of the
command line, takes turns with the bare decode steps that `suffice bench` measures: same prompt
length, same number of tokens, no sampling and no text. A batch that is drawn takes turns with the
same batch decoded greedily. Ratios are of one round, and the order changes from round to round.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine.runs import Plan, Script
from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from benchmarks.peers.report import spread
from suffice import LLM, SamplingParams
from suffice.cli.options import SamplingFlags
from suffice.errors import InputError
from suffice.eval import bench

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "int8": {"quantization": "int8", "kv_cache_dtype": "int8"},
}
LEAST = {1: 0.95, 8: 0.95, 32: 0.93}  # targets, by the number of requests
WORDS = {1: "`LLM.stream` drawn, over bare steps"} | {
    count: f"`LLM.generate` of {count} drawn, over greedy" for count in LEAST if count > 1
}
MESSAGE = "Here is a short story about the number {number}, a lighthouse and its keeper's old cat."

Turn = dict[str, float]
Rate = Callable[[int], float]
"""Returns tokens per second; the argument is the number of the round."""


def drawn(steps: int, seed: int) -> SamplingParams:
    """Return the defaults of the command line, for one token and `steps` more."""
    return SamplingFlags(n_predict=steps + 1, ignore_eos=True, seed=seed).params()


def greedy(steps: int, seed: int) -> SamplingParams:
    """Return the same, but for a temperature of 0."""
    return dataclasses.replace(drawn(steps, seed), temperature=0.0)


def prompts(llm: LLM, count: int) -> list[list[int]]:
    """Return the tokens of different texts, all of one length."""
    texts = [MESSAGE.format(number=number) for number in range(100, 100 + count)]
    found = [llm.tokenizer.encode(text) for text in texts]
    return [tokens[: min(map(len, found))] for tokens in found]


def stream_rate(llm: LLM, prompt: list[int], params: SamplingParams) -> float:
    """Return the tokens per second of a stream, from its first piece of text to its end."""
    stream = llm.stream(prompt, params)
    _, output = next(stream)
    before, began = len(output.outputs[0].token_ids), time.perf_counter()
    for _, output in stream:  # noqa: B007 (the last one counts)
        pass
    seconds = time.perf_counter() - began
    return (len(output.outputs[0].token_ids) - before) / seconds


def bare_rate(llm: LLM, depth: int, steps: int) -> float:
    """Return the tokens per second of decode steps alone, as `suffice bench` measures them."""
    case = bench.BenchCase(prompt=0, generate=steps, depth=depth, batch=1)
    (result,) = bench.measure(llm.runner, [case], 1, roof_bytes_per_second=1.0)
    return result.mean


def batch_rate(llm: LLM, batch: list[list[int]], params: SamplingParams) -> float:
    """Return the tokens per second of a batch, from the end of its last prompt.

    Raises:
        InputError: A request ended early, for lack of memory.
    """
    outputs = llm.generate(batch, params, use_tqdm=False)
    if failed := [output.error for output in outputs if output.error]:
        raise InputError(failed[0])
    # Prompts run one after the other before the first step: the last one's time is all steps'
    steps = len(outputs[-1].outputs[0].token_ids) - 1
    return len(batch) * steps / outputs[-1].metrics.decode_seconds


def pair(llm: LLM, count: int, steps: int) -> dict[str, Rate]:
    """Return what is compared for a number of requests: `drawn`, and what it is divided by."""
    batch = prompts(llm, count)
    if count == 1:
        return {
            "drawn": lambda seed: stream_rate(llm, batch[0], drawn(steps, seed)),
            "over": lambda _: bare_rate(llm, len(batch[0]), steps),
        }
    return {
        "drawn": lambda seed: batch_rate(llm, batch, drawn(steps, seed)),
        "over": lambda seed: batch_rate(llm, batch, greedy(steps, seed)),
    }


def in_turn(rates: dict[str, Rate], rounds: int) -> list[Turn]:
    """Measure rates one after the other; a first round does not count."""
    found = []
    for number in range(rounds + 1):
        order = list(rates) if number % 2 else list(rates)[::-1]
        turn = {name: rates[name](number) for name in order}
        if number:
            found.append(turn)
    return found


def measure(model: Path, setting: str, plan: Plan) -> dict[str, list[Turn]]:
    """Return the rounds of each number of requests.

    Raises:
        InputError: The model cannot be used.
    """
    llm = LLM(model, max_num_seqs=max(LEAST), **SETTINGS[setting])
    found = {}
    for count in LEAST:
        print(f"{setting}: {WORDS[count]}", file=sys.stderr, flush=True)
        found[str(count)] = in_turn(pair(llm, count, plan.steps), plan.rounds)
    return found


def ratios(turns: Sequence[Turn]) -> list[float]:
    """Return the rate of drawing over the other, in each round."""
    return [turn["drawn"] / turn["over"] for turn in turns]


def lines(data: dict[str, Any]) -> list[list[Any]]:
    """Return a line for each setting and number of requests."""
    found = []
    for setting, by_count in data["settings"].items():
        for count, turns in by_count.items():
            value, least = ratios(turns), LEAST[int(count)]
            found.append(
                [
                    WORDS[int(count)],
                    setting,
                    spread([turn["drawn"] for turn in turns]),
                    spread([turn["over"] for turn in turns]),
                    least,
                    spread(value),
                    "yes" if statistics.median(value) >= least else "**no**",
                ]
            )
    return found


HEAD = ["what", "weights", "drawn, tokens/s", "the other, tokens/s", "at least", "ratio", "reached"]


def table(data: dict[str, Any]) -> str:
    """Return the results as text and a table."""
    note = (
        f"Median (least to greatest) of {data['plan']['rounds']} rounds, in which both take turns; "
        f"ratios are of one round. {data['model']}, {data['threads']} threads, "
        f"{data['machine']['isa']}; {data['plan']['steps']} steps after a short prompt. Drawn with "
        f"the command line's defaults: {data['drawn']}. Bare steps are those of `suffice bench`, "
        "without sampling and text; a stream has both. int8: weights, keys and values."
    )
    return "\n\n".join(["## The cost of drawing tokens", markdown(HEAD, lines(data)), note])


def shown() -> str:
    """Return the parameters that tokens are drawn with."""
    params = drawn(1, 0)
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    return ", ".join(f"{name} {getattr(params, name):g}" for name in names)


SCRIPT = Script(
    "sampling",
    __doc__,
    SETTINGS,
    Plan(rounds=7, steps=128),
    measure,
    table,
    record.results(__file__),
    {"drawn": shown()},
)

if __name__ == "__main__":
    sys.exit(SCRIPT.main())
