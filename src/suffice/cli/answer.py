"""Prints a text as it is generated, and then a summary of the run."""

from __future__ import annotations

import contextlib
import math
import operator
import resource
import sys
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from suffice.errors import InputError
from suffice.progress import PromptBar
from suffice.warned import held_back

if TYPE_CHECKING:
    from suffice.cli.speaking import Spoken
    from suffice.engine.llm import LLM
    from suffice.engine.request import RequestOutput
    from suffice.speculate.stats import DraftStats
    from suffice.trace import Audit, Trace

OF_LONGEST = " of the longest value"
COLUMNS = 100  # of a line of the summary; longer lines wrap between two items


class Answer:
    """Prints a text as it is generated, and then, unless `quiet`, a summary of the run."""

    def __init__(self, llm: LLM, quiet: bool = False, spoken: Spoken | None = None) -> None:
        """Begin; `spoken` tells thinking from the text, if the model's answers have both."""
        self._llm = llm
        self._quiet = quiet
        self._spoken = spoken
        self.text = ""
        self.thought = ""
        self.summary = ""

    def show(self, stream: Generator[tuple[str, RequestOutput]]) -> None:
        """Print a stream to its end, or until Ctrl-C; a bar shows how far a long prompt is.

        Raises:
            KeyboardInterrupt: Ctrl-C, after the text so far and its summary are printed, if any.
        """
        before = self._llm.runner.trace.copy()
        output = None
        try:
            with (
                contextlib.closing(stream),
                contextlib.closing(PromptBar()) as bar,
                held_back(),
            ):
                for delta, output in stream:
                    total = len(output.prompt_token_ids)
                    bar.show(output.num_prompt_tokens_done, total, output.num_cached_tokens)
                    self._print(delta, last=output.finished)
        finally:
            self._print("", last=True)
            begun = output is not None and output.outputs[0].token_ids
            if output is not None and begun and (self.text or not output.error):
                print(flush=True)
                trace = self._llm.runner.trace.since(before)
                self.summary = summary(output, trace, weights(self._llm))
                if not self._quiet:
                    print(self.summary, file=sys.stderr)
        if output is not None and output.error:
            raise InputError(output.error)

    def _print(self, delta: str, *, last: bool) -> None:
        if self._spoken is None:
            self.text += delta
            sys.stdout.write(delta)
            sys.stdout.flush()
            return
        self._spoken.push(delta, last=last)
        self.text, self.thought = self._spoken.text, self._spoken.thought


def weights(llm: LLM) -> str:
    """Return how the weights are stored in the model's file and in memory, in a few words."""
    from suffice.quant import QUANTS

    runner, quant = llm.runner, llm.config.quantization
    name = "none" if quant is None else QUANTS.name_of(quant)
    kept = {"codes", "float8"}.intersection(runner.runs_as.split(" and "))
    if name == "file" and kept:
        mixed = "" if runner.runs_as in kept else f", run as {runner.runs_as}"
        return f"weights {runner.stored_as}{mixed}, {runner.bits_per_weight:.1f} bits a weight"
    stored, run = runner.stored_as, runner.runs_as if name in ("file", "none") else name
    same = stored.partition(":")[0] == run
    return f"weights {stored or run}" if same or not stored else f"weights {stored}, run as {run}"


def summary(output: RequestOutput, trace: Trace, weights: str) -> str:
    """Return the summary of a run: two lines of up to `COLUMNS` columns, or some more.

    `cache A -> B MiB, read R %`: A is the size of all tokens' keys and values at the end, in the
    type that the model runs in; B is the size of the rows that the cache holds, as stored. R is
    the bytes that decode steps read, sketches included, over the bytes that exact attention to all
    tokens in the model's type would have read. `states A MiB`: what layers keep of the request
    along with keys and values, and a step reads and writes. `experts A MiB, read R %`: A
    is the size of the experts of all layers, and R the bytes that a step read of them, on average.
    What `--experts` left out, as a share of a token's weights, comes after it. An audit has a line
    of its own.
    """
    metrics = output.metrics
    run = len(output.prompt_token_ids) - output.num_cached_tokens
    decoded = len(output.outputs[0].token_ids) - 1  # the first comes with the prompt
    cached = f" ({output.num_cached_tokens} cached)" if output.num_cached_tokens else ""
    parts = [
        f"prompt {run} tokens{cached} {_rate(run, metrics.prefill_seconds)}",
        f"decode {max(decoded, 0)} tokens {_rate(decoded, metrics.decode_seconds)}",
        *drafted(output.speculation),
        *([] if cached else [weights]),  # only in a conversation's first turn
        *prompts_read(trace.tile_rows_read, trace.tile_rows_held),
        *kv_read(trace),
        *states_moved(trace),
        *experts_read(trace),
        f"memory {_size(peak_memory_bytes())}",
    ]
    audit = []
    if trace.audit and trace.audit.tokens:
        audit = [audited(trace.audit, trace.estimates, certain=trace.confidence == 1)]
    return "\n".join([*_wrapped(parts), *audit])


def _wrapped(parts: Sequence[str]) -> list[str]:
    lines = [parts[0]]
    for part in parts[1:]:
        longer = f"{lines[-1]} | {part}"
        if len(longer) <= COLUMNS:
            lines[-1] = longer
        else:
            lines.append(part)
    return lines


def kv_read(trace: Trace) -> list[str]:
    """Return the bytes of keys and values held and read, and the bound on the unread softmax."""
    tokens, held = trace.cached
    whole = tokens * trace.plain_token_bytes
    by_layer = trace.rows[2].sum(axis=-1).tolist()
    plain = sum(map(operator.mul, by_layer, trace.plain_row_bytes))
    if not whole or not plain:
        return []
    size = _size(whole) if held == whole else f"{_size(whole, held)} -> {_size(held)}"
    sketch = ", sketch included" if trace.sketch_bytes_read and not trace.estimates else ""
    read = f"cache {size}, read{_percent(trace.kv_bytes_read, plain)}{sketch}"
    return [read, *_bounds(trace)]


def states_moved(trace: Trace) -> list[str]:
    """Return the size of the states, which a step reads and writes; nothing if there are none."""
    moved = trace.state_bytes_moved
    return [f"states {_size(moved // (2 * trace.steps))}, rewritten each step"] if moved else []


def _bounds(trace: Trace) -> list[str]:
    """Return by how much a softmax and an output may be off, on average and at most."""
    if not trace.missing:
        return []
    if not trace.estimates:
        return [f"up to {_share(trace.missing)} of softmax unread"]
    mean, mean_shift = trace.bounds.means or (trace.missing, trace.shift)
    after = "after this prompt, " if trace.tile_rows_read < trace.tile_rows_held else ""
    parts = [f"{after}softmax off by {_at_most(mean, trace.missing)}"]
    if trace.shift:
        parts.append(f"outputs moved by {_at_most(mean_shift, trace.shift, OF_LONGEST)}")
    if trace.confidence < 1:
        parts.append(f"each bound {100 * trace.confidence:.6g} % sure")
    return parts


def _at_most(mean: float, most: float, of: str = "") -> str:
    """Return bounds on a share, their mean and the largest; one of 100 % or more says nothing."""
    if mean >= 1:
        return "an amount that has no useful bound"
    worst = "worst: no useful bound" if most >= 1 else f"worst {_share(most)}"
    return f"at most {_share(mean)}{of} on average ({worst})"


def prompts_read(rows: int, held: int) -> list[str]:
    """Return the share of the keys that tiles of prompts read; nothing if prompts have no tiles."""
    if not held:
        return []
    return [f"prompt attention read{_percent(rows, held)}{', without a bound' * (rows < held)}"]


def experts_read(trace: Trace) -> list[str]:
    """Return the bytes of all experts, and the share that a step read; nothing without experts."""
    if not trace.expert_bytes_held:
        return []
    size = _size(trace.expert_bytes_held / trace.steps)
    read = f"experts {size}, read{_percent(trace.expert_bytes_read, trace.expert_bytes_held)}"
    if not trace.experts_left_out:
        return [read]
    return [read, f"up to {_share(trace.experts_missing)} of experts' weights left out"]


def drafted(stats: DraftStats) -> list[str]:
    """Return how many drafts were accepted, in a few words; an empty list without drafts."""
    if not stats.num_drafts:
        return []
    return [
        f"drafts accepted {stats.num_accepted_tokens} of {stats.num_draft_tokens}, "
        f"{stats.tokens_per_step:.2f} tokens a step"
    ]


def audited(audit: Audit, estimates: bool = False, *, certain: bool = True) -> str:
    """Return the results of an audit in one line; `estimates`: see `Trace`.

    Where bounds are not `certain`, some queries may be beyond theirs, so it says of how many.
    """
    found = audit.plain()
    softmax = "softmax off by" if estimates else "softmax unread"
    said = [
        f"{words} {_share(figures['mean'])} (worst {_share(figures['most'])}){of}"
        for name, words, of in (
            ("missing", softmax, ""),
            ("error", "output error", ""),
            ("shift", "output moved by", OF_LONGEST),
        )
        if isinstance(figures := found.get(name), dict)
    ]
    of = "" if certain else f" of {audit.queries:,}"
    beyond = f"; {audit.beyond}{of} queries beyond their bound" if audit.beyond else ""
    return f"audit of {audit.tokens} tokens: {', '.join(said)}{beyond}"


def _share(value: float) -> str:
    percent = 100 * value
    return f"{percent:.0f} %" if percent >= 99.5 else f"{percent:.2g} %"  # :.2g has 1e+02


def _rate(tokens: int, seconds: float) -> str:
    return f"{_short(tokens / seconds)} tok/s" if tokens > 0 and seconds > 0 else "- tok/s"


def _size(count: float, like: float | None = None) -> str:
    """Return a number of bytes with its unit, which is left out if that of `like` is the same."""
    unit, name = (2**30, "GiB") if count >= 1000 * 2**20 else (2**20, "MiB")
    same = like is not None and (like >= 1000 * 2**20) == (unit == 2**30)
    return _short(count / unit) + ("" if same else f" {name}")


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _percent(part: int, whole: int) -> str:
    # Rounded down, so that only the whole is 100 %.
    return f" {math.floor(1000 * part / whole) / 10:g} %"


def peak_memory_bytes() -> int:
    """Return the peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
