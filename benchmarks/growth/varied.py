"""Time a batch of 32 prompts of different lengths: suffice, vLLM and transformers (Table III).

    python -m benchmarks.growth.varied                  (a quarter of an hour)
    python -m benchmarks.growth.varied --without vllm
    python -m benchmarks.growth.varied --quick          tiny sizes, to see that it runs

The lengths are those of the first 32 questions and answers of GSM8K's test set, in SmolLM2's
tokens; the tokens are random. suffice and vLLM end each request at its own length. transformers
pads the prompts to one length and runs all rows until the longest answer ends, as its `generate`
does; only the tokens that were asked for count.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from benchmarks.growth.use_cases import HF, OURS, ratios
from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from benchmarks.peers.batches import GREEDY, VLLM, Case, Comparison, Engines, hf_dtype, measure
from benchmarks.peers.report import spread
from benchmarks.peers.speed import tokens

NAME = "varied"
QUICK = record.BUILD / "varied-quick"
GSM8K = (
    *((66, 63), (26, 47), (57, 213), (35, 47), (110, 110), (56, 179), (44, 113), (71, 196)),
    *((105, 196), (59, 164), (60, 193), (66, 151), (67, 147), (62, 135), (54, 163), (94, 159)),
    *((53, 156), (58, 200), (29, 109), (66, 184), (64, 139), (46, 67), (60, 78), (38, 48)),
    *((41, 72), (67, 153), (69, 65), (60, 89), (51, 70), (69, 89), (39, 124), (64, 144)),
)
PAPER = {"OPT-1.3B": 3.02, "OPT-2.7B": 3.46, "OPT-6.7B": 3.57}  # BMC over Hugging Face


@dataclass(frozen=True)
class Varied(Case):
    """Requests of (prompt, new) tokens each; those of `Case` are the longest."""

    lengths: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, lengths: tuple[tuple[int, int], ...]) -> Varied:
        """Return the case of some lengths."""
        prompts, counts = zip(*lengths, strict=True)
        return cls(max(prompts), len(lengths), max(counts), lengths=lengths)

    def asked(self, seed: int, vocabulary: int, quick: bool) -> dict[str, Any]:
        """Return the request to an engine; prompts depend on `seed`."""
        cut = 16 if quick else 1
        return {
            "prompts": [
                tokens(max(2, prompt // cut), vocabulary, seed * 100 + i)
                for i, (prompt, _) in enumerate(self.lengths)
            ],
            "count": [max(2, count // cut) for _, count in self.lengths],
            "sampling": GREEDY,
        }

    def per_second(self, seconds: float) -> float:
        """Return the new tokens per second that were asked for."""
        return sum(count for _, count in self.lengths) / seconds


CASES = {"gsm8k-8": Varied.of(GSM8K[:8]), "gsm8k-32": Varied.of(GSM8K)}


def _case(engines: Engines, case: str, rounds: int) -> dict[str, list[float]]:
    warm = Varied.of(tuple((prompt, 2) for prompt, _ in CASES[case].lengths))
    return measure(engines, case, [*OURS, VLLM, HF], [warm, *[CASES[case]] * rounds])


def report(data: dict[str, Any]) -> str:
    """Return the table: suffice over the peers, and the figures of the paper."""
    lines = []
    for case, speeds in data["cases"].items():
        for ours in OURS:
            found = [
                spread(speeds[ours]),
                *(spread(ratios(data, case, ours, peer)) for peer in (VLLM, HF)),
            ]
            lines.append([CASES[case].batch, f"suffice, {ours}", *found])
    lines += [
        [32, f"paper: BMC, {model}", "-", "-", f"{over:.2f}"] for model, over in PAPER.items()
    ]
    head = ["batch", "engine", "new tokens/s", "over vLLM", "over transformers"]
    note = (
        f"Lengths of GSM8K. Median (least to greatest) of {data['rounds']} rounds, in which the "
        f"engines take turns. {data['threads']} threads; vLLM in bfloat16, transformers in "
        f"{hf_dtype(data)}; 'the file' is the Q4_1 file. The paper's figures are of 96 cores."
    )
    return "\n\n".join(["## Varied lengths (Table III)", markdown(head, lines), note])


COMPARISON = Comparison(NAME, __doc__, CASES, _case, report, record.results(__file__), QUICK)

if __name__ == "__main__":
    sys.exit(COMPARISON.main())
