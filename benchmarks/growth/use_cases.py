"""Time the use cases of the BMC paper's Table II: suffice, vLLM and transformers in turn.

    python -m benchmarks.growth.use_cases               the cases that fit (half an hour)
    python -m benchmarks.growth.use_cases --cases chat-8    a case; the other results stay
    python -m benchmarks.growth.use_cases --quick       tiny sizes, to see that it runs

A case is a batch of prompts of one length, and the new tokens of each; a time includes the prompts.
The paper's batches are 1, 32 and 128 on 96 cores, with 8B models; two cores take 1, 8 and 32, with
the model of all comparisons here. transformers runs a bare loop with its default cache, which grows
by a row per token, and is left out where that takes minutes a case.
"""

from __future__ import annotations

import math
import statistics
import sys
from typing import Any

from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from benchmarks.peers.batches import VLLM, Case, Comparison, Engines, hf_dtype, measure
from benchmarks.peers.report import spread

NAME = "use_cases"
QUICK = record.BUILD / "use-cases-quick"
HF = "transformers"
OURS = ("bf16", "the file")
CASES = {
    "chat-1": Case(128, 1, 128),
    "chat-8": Case(128, 8, 128),
    "chat-32": Case(128, 32, 128),
    "answers-1": Case(128, 1, 1920),
    "answers-8": Case(128, 8, 1920),
    "summaries-1": Case(1920, 1, 128),
    "summaries-8": Case(1920, 8, 128),
    "long-1": Case(1920, 1, 1920),
}
WITHOUT_HF = ("answers-8", "long-1")
# The paper's BMC over vLLM, and Hugging Face over vLLM, for Llama-3-8B: batch 1, and 32.
PAPER = {
    "chat-1": (1.59, 0.99),
    "chat-32": (1.34, 0.82),
    "answers-1": (1.41, 0.41),
    "summaries-1": (1.63, 0.45),
    "long-1": (1.11, 0.29),
}
# (suffice's setting, peer): the least geometric mean of the ratios
BARS = {("bf16", VLLM): 1.36, ("the file", VLLM): 2.5, ("bf16", HF): 3.2}


def engines_of(case: str) -> list[str]:
    """Return the engines that run a case."""
    return [*OURS, VLLM, *([] if case in WITHOUT_HF else [HF])]


def _case(engines: Engines, case: str, rounds: int) -> dict[str, list[float]]:
    """Return the speeds of a case; the round that does not count has few new tokens."""
    warm = Case(CASES[case].prompt, CASES[case].batch, 2)
    return measure(engines, case, engines_of(case), [warm, *[CASES[case]] * rounds])


def ratios(data: dict[str, Any], case: str, ours: str, peer: str) -> list[float]:
    """Return suffice's speed over the peer's in each round."""
    speeds = data["cases"][case]
    pairs = zip(speeds.get(ours, []), speeds.get(peer, []), strict=False)
    return [one / other for one, other in pairs]


def mean_ratio(data: dict[str, Any], ours: str, peer: str) -> float | None:
    """Return the geometric mean, over the cases, of the median ratios."""
    found = [ratios(data, case, ours, peer) for case in data["cases"]]
    medians = [statistics.median(each) for each in found if each]
    return math.exp(statistics.mean(map(math.log, medians))) if medians else None


def report(data: dict[str, Any]) -> str:
    """Return the tables: the bars, and the cases next to the paper's figures."""
    bars = []
    for (ours, peer), least in BARS.items():
        mean = mean_ratio(data, ours, peer)
        reached = "-" if mean is None else "yes" if mean >= least else "**no**"
        bars.append([ours, peer, least, "-" if mean is None else f"{mean:.2f}", reached])
    lines = []
    for case in data["cases"]:
        size, paper = CASES[case], PAPER.get(case)
        over = [spread(ratios(data, case, ours, peer)) for peer in (VLLM, HF) for ours in OURS]
        theirs = ["-", "-"] if paper is None else [f"{paper[0]:.2f}", f"{paper[0] / paper[1]:.2f}"]
        lines.append([size.prompt, size.count, size.batch, *over, *theirs])
    ours_over = [f"suffice, {name}, over {peer}" for peer in ("vLLM", HF) for name in OURS]
    head = ["in", "out", "batch", *ours_over, "paper: BMC over vLLM", "paper: BMC over HF"]
    note = (
        "New tokens per second, over a peer's: median (least to greatest) of "
        f"{data['rounds']} rounds, in which the engines take turns. {data['threads']} threads; "
        f"vLLM in bfloat16, transformers in {hf_dtype(data)}; 'the file' is the Q4_1 file. The "
        "paper's figures are of Llama-3-8B on 96 cores."
    )
    asked = ["suffice", "over", "at least, geometric mean", "measured", "reached"]
    return "\n\n".join(
        ["## Use cases (Table II)", markdown(asked, bars), markdown(head, lines), note]
    )


COMPARISON = Comparison(NAME, __doc__, CASES, _case, report, record.results(__file__), QUICK)

if __name__ == "__main__":
    sys.exit(COMPARISON.main())
