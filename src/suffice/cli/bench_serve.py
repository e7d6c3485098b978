"""`suffice bench serve`: loads any OpenAI-compatible server and prints what it measured."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suffice.cli.flags import flag
from suffice.cli.output import markdown
from suffice.errors import InputError, unknown

if TYPE_CHECKING:
    from suffice.eval.serving_load import Load

_OUTPUTS = ("md", "json")


@dataclass(frozen=True)
class LoadFlags:
    """The server, and what is sent to it."""

    base_url: str = flag(
        "http://127.0.0.1:8000", "--base-url", "The server, such as http://127.0.0.1:8000."
    )
    model: str | None = flag(
        None, "--model", "Its model's name; default: the first it lists.", environment=False
    )
    key: str = flag("", "--key", "The API key to send.", metavar="KEY")
    dataset: str = flag(
        "random",
        "--dataset-name",
        "random, shared-prefix, multi-turn, spec-bench or speed-bench.",
    )
    file: Path | None = flag(None, "--dataset-path", "The file of spec-bench or speed-bench.")
    requests: int = flag((64), "--num-prompts", "Requests, or conversations.")
    input_len: int = flag(
        128, "--input-len --random-input-len", "Tokens of a prompt, or words of a message."
    )
    output_len: int = flag(128, "--output-len --random-output-len", "Tokens to generate.")
    range_ratio: float = flag(
        0.0, "--range-ratio --random-range-ratio", "Lengths vary by this share."
    )
    prefix_len: int = flag((1024), "--prefix-len", "Tokens that prompts share.")
    prefixes: int = flag(1, "--num-prefixes", "Different shared beginnings.")
    turns: int = flag(4, "--num-turns", "Requests of a conversation.")
    concurrency: int | None = flag(
        None, "--max-concurrency", "Most requests at a time; default: 8, with a rate any."
    )
    rate: float | None = flag(None, "--request-rate", "Requests per second, at random times.")
    warmups: int = flag(2, "--num-warmups", "Requests before the measurement.")
    goodput: list[str] | None = flag(
        None,
        "--goodput",
        "Count requests within ttft:MS, tpot:MS, e2el:MS; may be repeated.",
        metavar="GOAL",
    )
    stop_at_eos: bool = flag(False, "--stop-at-eos", "Let answers end before their length.")
    extra_body: str = flag(
        "{}", "--extra-body", 'Further fields of requests, such as {"top_k": 1}.', metavar="JSON"
    )
    seed: int = flag(0, "--seed", "Same seed, same requests; default: 0.", environment=False)
    timeout: float = flag((3600.0), "--timeout", "Longest seconds of a request.")
    output: str = flag("md", "-o --output", "Format: md or json.", environment=False)

    def load(self) -> Load:
        """Return what is sent.

        Raises:
            InputError: A value out of range.
        """
        from suffice.eval.serving_load import Load

        limit = 8 if self.concurrency is None and self.rate is None else self.concurrency
        return Load(
            dataset=self.dataset,
            requests=self.requests,
            input_len=self.input_len,
            output_len=self.output_len,
            range_ratio=self.range_ratio,
            prefix_len=self.prefix_len,
            prefixes=self.prefixes,
            turns=self.turns,
            file=self.file,
            concurrency=limit,
            rate=self.rate,
            seed=self.seed,
            ignore_eos=not self.stop_at_eos,
            extra=_extra(self.extra_body),
        )


def run(*, flags: LoadFlags) -> None:
    """Measure a server by OpenAI's API: latency, gaps, throughput, errors.

    Raises:
        InputError: A flag is bad, the server cannot be reached, or it answered nothing.
    """
    from suffice.eval import serving_client, serving_report

    if flags.output not in _OUTPUTS:
        raise unknown("output", flags.output, _OUTPUTS)
    limits = serving_report.goals(flags.goodput or [])
    target = serving_client.Target.of(flags.base_url, flags.key)
    load = flags.load()
    measured = _measured(target, flags.model, load, flags.warmups, flags.timeout)
    figures = serving_report.summary(asyncio.run(measured), limits)
    print(drawn(figures, flags.output))
    if not figures["completed"]:
        raise InputError(f"no request was answered: {figures['first_error']}")


async def _measured(target: Any, model: str | None, load: Any, warmups: int, timeout: float) -> Any:
    from suffice.eval import serving_client, serving_load

    if model is None:
        cards = await serving_client.get(target, "/v1/models")
        model = str(cards["data"][0]["id"])
    if warmups:
        await serving_load.run(target, model, serving_load.warm_up(load, warmups), timeout)
    print(f"measuring {model}", file=sys.stderr, flush=True)
    return await serving_load.run(target, model, load, timeout)


def _extra(text: str) -> tuple[tuple[str, Any], ...]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InputError(f"--extra-body {text[:60]}: must be a JSON object")
    return tuple(found.items())


def drawn(figures: dict[str, Any], output: str) -> str:
    """Format the figures as a table (md) or json."""
    if output == "json":
        return json.dumps(figures, indent=1)
    rows = [
        [name, f"{value:.2f}" if isinstance(value, float) else value]
        for name, value in figures.items()
    ]
    return markdown(["figure", "value"], rows)
