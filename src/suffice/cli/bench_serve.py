"""`suffice bench serve`: loads any OpenAI-compatible server and prints what it measured."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from suffice.cli.flags import NUMBER, WHOLE, flag
from suffice.cli.output import markdown
from suffice.errors import InputError, unknown

if TYPE_CHECKING:
    from suffice.eval.serving_load import Load

_OUTPUTS = ("md", "json")


@dataclass(frozen=True)
class LoadFlags:
    """The server, and what is sent to it."""

    base_url: Annotated[
        str, flag("--base-url", help="The server, such as http://127.0.0.1:8000.")
    ] = "http://127.0.0.1:8000"
    model: Annotated[
        str | None,
        flag("--model", help="Its model's name; default: the first it lists.", environment=False),
    ] = None
    key: Annotated[str, flag("--key", help="The API key to send.", metavar="KEY")] = ""
    dataset: Annotated[
        str,
        flag("--dataset-name", help="random, shared-prefix, multi-turn or spec-bench."),
    ] = "random"
    file: Annotated[Path | None, flag("--dataset-path", help="The file of spec-bench.")] = None
    requests: Annotated[int, flag("--num-prompts", help="Requests, or conversations.", **WHOLE)] = (
        64
    )
    input_len: Annotated[
        int,
        flag(
            "--input-len",
            "--random-input-len",
            help="Tokens of a prompt, or words of a message.",
            **WHOLE,
        ),
    ] = 128
    output_len: Annotated[
        int, flag("--output-len", "--random-output-len", help="Tokens to generate.", **WHOLE)
    ] = 128
    range_ratio: Annotated[
        float,
        flag("--range-ratio", "--random-range-ratio", help="Lengths vary by this share.", **NUMBER),
    ] = 0.0
    prefix_len: Annotated[int, flag("--prefix-len", help="Tokens that prompts share.", **WHOLE)] = (
        1024
    )
    prefixes: Annotated[
        int, flag("--num-prefixes", help="Different shared beginnings.", **WHOLE)
    ] = 1
    turns: Annotated[int, flag("--num-turns", help="Requests of a conversation.", **WHOLE)] = 4
    concurrency: Annotated[
        int | None,
        flag(
            "--max-concurrency",
            help="Most requests at a time; default: 8, with a rate any.",
            **WHOLE,
        ),
    ] = None
    rate: Annotated[
        float | None, flag("--request-rate", help="Requests per second, at random times.", **NUMBER)
    ] = None
    warmups: Annotated[
        int, flag("--num-warmups", help="Requests before the measurement.", **WHOLE)
    ] = 2
    goodput: Annotated[
        list[str] | None,
        flag(
            "--goodput",
            help="Count requests within ttft:MS, tpot:MS, e2el:MS; may be repeated.",
            metavar="GOAL",
        ),
    ] = None
    stop_at_eos: Annotated[
        bool, flag("--stop-at-eos", help="Let answers end before their length.")
    ] = False
    extra_body: Annotated[
        str,
        flag(
            "--extra-body", help='Further fields of requests, such as {"top_k": 1}.', metavar="JSON"
        ),
    ] = "{}"
    seed: Annotated[
        int,
        flag("--seed", help="Same seed, same requests; default: 0.", environment=False, **WHOLE),
    ] = 0
    timeout: Annotated[float, flag("--timeout", help="Longest seconds of a request.", **NUMBER)] = (
        3600.0
    )
    output: Annotated[
        str, flag("-o", "--output", help="Format: md or json.", environment=False)
    ] = "md"

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
