"""The targets of speed.py, and the tables of its results."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.tables import markdown
from benchmarks.peers.report import spread

Turn = dict[str, dict[str, float]]  # a round: figures by server
Value = Callable[[Turn], float]
COMMAND = "python -m benchmarks.serve.speed --cases"


@dataclass(frozen=True)
class Bar:
    """A target: a value of a case's rounds, and its limit.

    With `over`, it is a figure of the server `ours` over that of the peer for which the ratio is
    hardest; otherwise `value` of the round.
    """

    what: str
    case: str
    limit: float
    least: bool
    figure: str = ""
    ours: str = "default"
    over: tuple[str, ...] = ()
    value: Value | None = None

    def rounds(self, turns: Sequence[Turn]) -> tuple[list[float], str]:
        """Return the value of each round and the peer; no values where nothing was measured."""
        if self.value is not None:
            return _defined(self.value, turns), ""
        found = {
            peer: _defined(lambda turn, peer=peer: self._ratio(turn, peer), turns)  # type: ignore[misc]
            for peer in self.over
        }
        found = {peer: values for peer, values in found.items() if values}
        if not found:
            return [], ""
        hardest = min if self.least else max
        peer = hardest(found, key=lambda name: statistics.median(found[name]))
        return found[peer], peer

    def _ratio(self, turn: Turn, peer: str) -> float:
        return turn[self.ours][self.figure] / turn[peer][self.figure]

    def reached(self, values: Sequence[float]) -> bool:
        """Return whether the median of the rounds is within the limit."""
        middle = statistics.median(values)
        return middle >= self.limit if self.least else middle <= self.limit


def _defined(value: Value, turns: Sequence[Turn]) -> list[float]:
    found = []
    for turn in turns:
        try:
            found.append(value(turn))
        except KeyError:  # a server that could not be measured
            continue
    return found


def _of(server: str, one: str, other: str) -> Value:
    """Return a figure of a server over another figure of it."""
    return lambda turn: turn[server][one] / turn[server][other]


VLLM, LLAMA = ("vllm", "vllm-tuned"), ("llama", "llama-tuned")
_STREAMS = {1: (2.5, 1.6), 8: (2.0, 2.2), 16: (1.4, 2.2)}  # over vLLM, over llama-server
BARS = (
    *(
        Bar(f"tokens/s over vLLM's, {count} streams", f"streams-{count}", least, True,
            "tokens_per_second", "default", VLLM)
        for count, (least, _) in _STREAMS.items()
    ),
    *(
        Bar(f"tokens/s over llama-server's, {count} streams, {ours}", f"streams-{count}", least,
            True, "tokens_per_second", ours, LLAMA)
        for count, (_, least) in _STREAMS.items() for ours in ("default", "int8")
    ),
    Bar("TTFT of 1024 tokens over llama-server's", "first-token", 0.25, False, "ttft_ms",
        "default", LLAMA),
    Bar("TTFT of 1024 tokens over vLLM's", "first-token", 1.2, False, "ttft_ms", "default", VLLM),
    *(
        Bar(f"tokens/s over vLLM's, {count} streams, both in bfloat16", f"same-{count}", least,
            True, "tokens_per_second", "bf16", VLLM)
        for count, least in {8: 1.36, 16: 1.2}.items()
    ),
    *(
        Bar(f"TTFT of 1024 tokens over vLLM's, {ours}", "same-first", most, False, "ttft_ms", ours,
            VLLM)
        for ours, most in {"bf16": 1.1, "int8": 0.65}.items()
    ),
    Bar("longest gap while 4096 tokens arrive, ms", "long-prompt", 60, False,
        value=lambda turn: turn["default"]["gap_ms"]),
    Bar("... over vLLM's", "long-prompt", 1 / 8, False, "gap_ms", "default", ("vllm",)),
    Bar("... over llama-server's", "long-prompt", 1 / 20, False, "gap_ms", "default", ("llama",)),
    Bar("those 4096 tokens' TTFT over alone", "long-prompt", 1.2, False,
        value=_of("default", "meanwhile_ms", "alone_ms")),
    Bar("TTFT of 100 tokens behind two of 6000, over alone", "behind-long", 4, False,
        value=_of("default", "meanwhile_ms", "alone_ms")),
    Bar("8 cold clients, 1024 shared + 64 own: prompt tokens run over sent", "shared-prefix", 0.2,
        False, value=lambda turn: turn["default"]["run_share"]),
    Bar("second turn's TTFT over the first's, 2048 tokens", "second-turn", 0.06, False,
        value=_of("default", "second_ms", "first_ms")),
    Bar("tokens/s over `LLM.generate`'s, 8 streams", "generate", 0.93, True, "tokens_per_second",
        "default", ("generate",)),
    Bar("front's CPU time a streamed token, 8 streams, us", "streams-8", 50, False,
        value=lambda turn: turn["default"]["front_us"]),
    Bar("tokens/s with a JSON schema over without, 8 streams", "schema", 0.93, True,
        value=_of("default", "on", "off")),
    Bar("tokens/s of `certified` over exact, 8 streams at depth 8000", "deep", 1.25, True,
        "tokens_per_second", "certified", ("deep",)),
    Bar("... rows read by requests, less the engine's count", "deep", 0, False,
        value=lambda turn: turn["certified"]["rows_differ"]),
)  # fmt: skip


def bars(cases: dict[str, list[Turn]]) -> str:
    """Return the table of targets."""
    rows = []
    for bar in BARS:
        values, peer = bar.rounds(cases.get(bar.case, []))
        asked = f"{'at least' if bar.least else 'at most'} {bar.limit:.3g}"
        reached = "-" if not values else "yes" if bar.reached(values) else "**no**"
        rows.append([bar.what, asked, spread(values), reached, peer, f"`{bar.case}`"])
    return markdown(["what", "asked", "measured", "reached", "against", "case"], rows)


def figures(cases: dict[str, list[Turn]]) -> str:
    """Return the table of all figures."""
    rows = []
    for case, turns in cases.items():
        for server in dict.fromkeys(name for turn in turns for name in turn):
            own = [turn[server] for turn in turns if server in turn]
            shown = ", ".join(
                f"{name} {spread([each[name] for each in own if name in each])}" for name in own[0]
            )
            rows.append([f"`{case}`", server, shown])
    return markdown(["case", "server", "figures"], rows)


def report(data: dict[str, Any]) -> str:
    """Return the whole page."""
    settings = [
        f"* `{name}`: {kind['label']}"
        + (f", `{' '.join(kind['flags'])}`" if kind["flags"] else "")
        + (f". Not measured: {kind['error']}" if "error" in kind else "")
        for name, kind in data["servers"].items()
    ]
    counts = sorted({len(turns) for turns in data["cases"].values()}) or [0]
    rounds = f"{counts[0]} rounds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} rounds"
    note = (
        f"Median (least to greatest) of {rounds}, in which the servers take turns; "
        f"ratios are of one round. {data['model']}, {data['threads']} threads, the client included,"
        f" {data['machine']['cpu']}, {data['machine']['isa']}. One row alone: `{COMMAND} CASE`."
    )
    quick = ["**A quick run of tiny sizes: no figure means anything.**", ""] * data["quick"]
    parts = ["## The servers", "", *quick, bars(data["cases"]), "", figures(data["cases"]), ""]
    return "\n".join([*parts, note, "", *settings])
