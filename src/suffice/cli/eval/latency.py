"""`suffice eval latency`: runs requests, shows progress, prints latencies and throughput."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from suffice.cli.answer import peak_memory_bytes
from suffice.cli.bench import whole_numbers
from suffice.cli.eval.results import check_output, record, show
from suffice.cli.output import busy, wrapped
from suffice.errors import InputError
from suffice.progress import progress_bar

if TYPE_CHECKING:
    import rich.progress

    from suffice.cli.eval.options import LatencyFlags
    from suffice.cli.options import ModelFlags
    from suffice.engine.llm import LLM
    from suffice.eval.latency import LatencyCase, LatencyResult, Rate, Spread
    from suffice.trace import Trace

LENGTHS = "128/128,128/1920,1920/128,1920/1920"
MAX_TOKENS = 256
NOTE = (
    "times are mean / median / p99 in ms; TTFT and queue are measured from arrival; tokenization "
    "of prompts and the warm-up are not included"
)
COLUMNS = (
    *("case", "batch", "requests", "tokens in", "tokens out", "TTFT", "TPOT", "ITL", "queue"),
    *("output tokens/s", "total tokens/s", "requests/s"),
    *("KV/token", "weights/token", "peak memory", "context"),
)


@dataclass(frozen=True)
class Asked:
    """Requests by flags: pairs of lengths, or texts with at most `max_tokens` new tokens."""

    batch_sizes: list[int]
    lengths: list[tuple[int, int]]
    texts: list[str]
    max_tokens: int


@dataclass(frozen=True)
class Speeds:
    """The results of all cases."""

    cases: list[LatencyResult]


def run(flags: LatencyFlags, model: ModelFlags) -> None:
    """Run the cases that the flags describe and print the results; after Ctrl-C, those finished.

    Raises:
        KeyboardInterrupt: Ctrl-C, raised after the finished cases are printed.
    """
    asked = _read(flags)
    model.check_audit("audited steps take longer, so there is nothing to time")
    with busy(f"loading {model.model}"):
        llm = _widened(model.load(seed=0), max(asked.batch_sizes))
    from suffice.eval.latency import check_fits

    cases = _cases(asked, flags.prompts, llm)
    check_fits(cases, llm)
    done: list[tuple[LatencyResult, Trace]] = []
    interrupted = False
    try:
        done.extend(_measured(llm, cases, flags.repetitions))
    except KeyboardInterrupt:
        interrupted = True
    if not done:
        raise KeyboardInterrupt
    results, reads = [result for result, _ in done], done[-1][1]
    found = record("speed", llm, flags, Speeds(results), reads=reads, interrupted=interrupted)
    show(found, *_table(results, flags.output), flags.output)
    print(NOTE, file=sys.stderr)
    if interrupted:
        raise KeyboardInterrupt


def _read(flags: LatencyFlags) -> Asked:
    """Check the flags and read the prompts."""
    check_output(flags.output)
    if flags.repetitions < 1:
        raise InputError(f"--repetitions={flags.repetitions}: must be at least 1")
    default = "1" if flags.prompts is None else "32"
    batch_sizes = _batch_sizes(default if flags.batch_size is None else flags.batch_size)
    if flags.prompts is None:
        _only_with_prompts("--limit", flags.limit)
        _only_with_prompts("--max-tokens", flags.max_tokens)
        lengths = _lengths(LENGTHS if flags.lengths is None else flags.lengths)
        return Asked(batch_sizes, lengths, [], 0)
    if flags.lengths is not None:
        raise InputError("--lengths and --prompts: give one of them; prompts have their own length")
    limit = None if flags.limit is None else _at_least_1("--limit", flags.limit)
    most = _at_least_1("--max-tokens", MAX_TOKENS if flags.max_tokens is None else flags.max_tokens)
    from suffice.eval.prompts import load_prompts

    return Asked(batch_sizes, [], load_prompts(flags.prompts, flags.data_dir)[:limit], most)


def _only_with_prompts(name: str, value: int | None) -> None:
    if value is not None:
        raise InputError(f"{name}={value}: needs --prompts; --lengths sets both lengths itself")


def _at_least_1(name: str, value: int) -> int:
    if value < 1:
        raise InputError(f"{name}={value}: must be at least 1")
    return value


def _batch_sizes(text: str) -> list[int]:
    return [_at_least_1("--batch-size", size) for size in whole_numbers("--batch-size", text)]


def _lengths(text: str) -> list[tuple[int, int]]:
    """Return the pairs of a list such as `128/1920,1920/128`."""
    pairs = []
    for part in text.split(","):
        numbers = [number.strip() for number in part.split("/")]
        if len(numbers) != 2 or not all(n.isascii() and n.isdigit() and int(n) for n in numbers):
            raise InputError(
                f"--lengths={text}: '{part}' must be PROMPT/OUTPUT tokens, each at least 1, such "
                "as 128/1920"
            )
        pairs.append((int(numbers[0]), int(numbers[1])))
    return pairs


def _widened(llm: LLM, most: int) -> LLM:
    """Return an LLM of the same parts that runs up to `most` requests together."""
    from suffice.engine.llm import LLM

    config = dataclasses.replace(llm.config, max_num_seqs=most)
    return LLM.from_parts(config, llm.runner, llm.tokenizer)


def _cases(asked: Asked, source: str | None, llm: LLM) -> list[LatencyCase]:
    from suffice.eval.latency import LatencyCase, fixed
    from suffice.sampling_params import SamplingParams

    if source is None:
        return fixed(asked.lengths, asked.batch_sizes, llm.runner.vocabulary)
    prompts = [_tokens(llm, text) for text in asked.texts]
    params = SamplingParams(temperature=0, max_tokens=asked.max_tokens)
    name = PurePath(source).name
    return [LatencyCase(name, size, prompts, params) for size in asked.batch_sizes]


def _tokens(llm: LLM, text: str) -> list[int]:
    prompt = wrapped(llm, text, None)
    if prompt is None:
        return llm.tokenizer.encode(text)
    return llm.tokenizer.encode(prompt, special=False)


def _measured(
    llm: LLM, cases: Sequence[LatencyCase], repetitions: int
) -> Iterator[tuple[LatencyResult, Trace]]:
    """Yield the result of each case, and the reads of all cases so far."""
    from suffice.eval.latency import measure, warm_up

    totals = [repetitions * len(case.prompts) * case.most_tokens for case in cases]
    with _bar() as bar:
        task = bar.add_task("warming up", total=sum(totals))
        for case in cases:
            warm_up(llm, case)
        before = llm.runner.trace.copy()

        def report(new: int) -> None:
            bar.update(task, advance=new)

        for done, case in enumerate(cases):
            what = f"{done}/{len(cases)} cases done, {case.name} in batches of {case.batch_size}"
            bar.update(task, completed=sum(totals[:done]), description=what)
            result = measure(llm, case, repetitions, None if bar.disable else report)
            result = dataclasses.replace(result, peak_memory_bytes=peak_memory_bytes())
            yield result, llm.runner.trace.since(before)


def _bar() -> rich.progress.Progress:
    from rich.progress import BarColumn, ProgressColumn, Task, TimeRemainingColumn
    from rich.text import Text

    class TokenSpeed(ProgressColumn):
        """Tokens per second, computed per refresh of the bar, not per token."""

        def render(self, task: Task) -> Text:
            return Text(f"{task.speed or 0:.1f} tokens/s")

    return progress_bar("{task.description}", BarColumn(), TokenSpeed(), TimeRemainingColumn())


def _table(
    results: Sequence[LatencyResult], output: str
) -> tuple[Sequence[str], list[list[object]]]:
    """Return columns and a row per case: every figure for csv, a selection for md."""
    if output == "md":
        return COLUMNS, [_row(result) for result in results]
    flat = [_flat(dataclasses.asdict(result)) for result in results]
    return list(flat[0]), [list(row.values()) for row in flat]


def _flat(values: dict[str, Any]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in values.items():
        inner = value if isinstance(value, dict) else {"": value}
        flat |= {f"{name}_{part}".rstrip("_"): figure for part, figure in inner.items()}
    return flat


def _row(result: LatencyResult) -> list[object]:
    return [
        result.case,
        result.batch_size,
        result.requests,
        result.prompt_tokens,
        result.output_tokens,
        *map(_ms, (result.ttft_seconds, result.tpot_seconds, result.itl_seconds)),
        _ms(result.queue_seconds),
        _rate(result.output_tokens_per_second),
        _rate(result.total_tokens_per_second),
        _rate(result.requests_per_second),
        _mib(result.kv_bytes_per_token),
        _mib(result.weight_bytes_per_token),
        _mib(result.peak_memory_bytes),
        result.context,
    ]


def _ms(spread: Spread) -> str:
    values = (spread.mean, spread.median, spread.p99)
    return " / ".join("-" if value is None else f"{1000 * value:.1f}" for value in values)


def _rate(rate: Rate) -> str:
    return f"{rate.mean:.2f}" + ("" if rate.deviation is None else f" ± {rate.deviation:.2f}")


def _mib(size_bytes: float | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / 2**20:.2f} MiB"
