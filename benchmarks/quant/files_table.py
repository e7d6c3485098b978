"""Tables of files.py's results."""

from __future__ import annotations

from typing import Any

from benchmarks.harness.tables import markdown
from benchmarks.peers.report import middle_round, ratio_of, spread

CASES = {
    "decode-0": "decode, depth 0",
    "decode-1024": "depth 1024",
    "decode-3000": "depth 3000",
    "prefill-1024": "prompt of 1024",
}
SETTINGS = {
    "default": "the default: inputs of 16 bits, a bfloat16 cache",
    "fast": "`--quant file:act_bits=8 -ctk int8`",
}


def tables(data: dict[str, Any]) -> str:
    """Return all tables that there are results for."""
    made = (quality(data), tokens(data["files"]), *(speed(data, name) for name in SETTINGS))
    return "\n\n".join(filter(None, made))


def quality(data: dict[str, Any]) -> str:
    """Return the table of perplexities over those of the float weights."""
    rows = []
    for kind, found in data["files"].items():
        settings = found.get("quality", {})
        if settings:
            floats = settings["default"]["against"]["perplexity"]
            ratios = [f"{each['against']['ratio']:.4f}" for each in settings.values()]
            rows.append([kind, f"{floats:.3f}", *ratios])
            names = list(settings)
    if not rows:
        return ""
    about = (
        f"WikiText-2, {data['windows']} windows of {data['window']} tokens, decoded. Each figure "
        "is a perplexity over that of the same file's weights as float32. Inputs of 16 and 8 bits "
        "have a float32 cache, the default a bfloat16 one, fast 8-bit inputs and an int8 one."
    )
    head = ["file", "float32 weights", *names]
    return f"## What running a file as it is costs\n\n{about}\n\n{markdown(head, rows)}"


def tokens(files: dict[str, Any]) -> str:
    """Return the table of greedy answers."""
    rows = []
    for kind, found in files.items():
        if "tokens" in found:
            each = found["tokens"]
            same = each["prompts"] - len(each["gaps"])
            gaps = ", ".join("more" if gap is None else f"{gap:.3f}" for gap in each["gaps"])
            rows.append([kind, f"{same} of {each['prompts']}", gaps or "-"])
    if not rows:
        return ""
    about = (
        "Greedy answers of 64 tokens to prompts of GSM8K that are the same to the last token as "
        "those of the file's weights as bfloat16. Where they differ first: by how much the log "
        "probability of bfloat16's token exceeds that of the other; 'more' if that is not second."
    )
    return f"## Greedy tokens\n\n{about}\n\n{markdown(['file', 'same', 'gaps'], rows)}"


def speed(data: dict[str, Any], name: str) -> str:
    """Return the table of speeds of one setting."""
    rows = []
    for kind, found in data["files"].items():
        cases = found.get("speed", {}).get(name)
        if cases:
            of_cases = [cell(cases[case]) if case in cases else "-" for case in CASES]
            rows.append([kind, *of_cases, roof(cases["decode-0"])])
    if not rows:
        return ""
    about = (
        f"Tokens per second of suffice, {SETTINGS[name]}, over llama.cpp's default on the same "
        f"file, {data['threads']} threads, in turn: the round whose ratio is the median (of "
        "two, the lower), and the least and most of all rounds."
    )
    head = ["file", *CASES.values(), "depth 0 over the streaming read"]
    return f"## Speed: {name}\n\n{about}\n\n{markdown(head, rows)}"


def cell(rounds: list[dict[str, Any]]) -> str:
    """Return both speeds and their ratio in the middle round, and the ratios' least and most."""
    ours, theirs, middle = middle_round(rounds)
    every = [ratio_of(each) for each in rounds]
    return f"{ours:.0f} / {theirs:.0f}: {middle:.3g} ({min(every):.3g} to {max(every):.3g})"


def roof(rounds: list[dict[str, Any]]) -> str:
    """Return the share of the streaming read that a step's bytes reach."""
    return spread([each["ours"]["roof_fraction"] for each in rounds])
