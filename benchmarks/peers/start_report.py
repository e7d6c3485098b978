"""The page of start.py's results: the targets, and all measurements."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.harness.tables import markdown
from benchmarks.peers.report import spread

Section = dict[str, Any]
Line = list[Any]
PEER, RAW = "llama-cpp-python", "raw"
RUNS = {  # what is compared, by the settings of suffice's weights
    "default": "`suffice run Hi -n 1`",
    "int8": "`suffice run Hi -n 1 --quant int8 -ctk int8`",
    RAW: "`suffice run Hi --raw -n 1`",  # the tokens that the peer has
    PEER: f"{PEER}: load, one token of the prompt Hi",
}
IMPORTS = {
    "suffice": '`python -c "from suffice import LLM"`',
    "numpy": '`python -c "import numpy"`',
    "python": '`python -c "pass"`',
}
ENVIRONMENTS = ("suffice", PEER)
MOST_WALL = 1.5  # times llama-cpp-python's
MOST_PEAK = {"int8": 1.0, "default": 1.4}  # times llama-cpp-python's
MOST_IMPORT = 0.2  # seconds
MOST_READS = 3.0  # times the time of reading a file
MOST_OVER = 0.5  # GiB over the packed weights
MOST_AGAIN = 1.2  # seconds to the first token of a second start, 7B in Q4_0
GIB, MIB = 2**30, 2**20


def over_peer(section: Section, name: str, figure: str) -> list[float]:
    """Return a figure of suffice over llama-cpp-python's, in each round."""
    cases = section.get("cases", {})
    pairs = zip(cases.get(name, []), cases.get(PEER, []), strict=False)
    return [ours[figure] / theirs[figure] for ours, theirs in pairs]


def seconds(section: Section, name: str) -> list[float]:
    """Return the wall times of a case."""
    return [run["seconds"] for run in section.get("cases", {}).get(name, [])]


def over_read(measured: Section) -> list[float]:
    """Return the time to the first token over the time of reading the file, in each round."""
    return [turn["run"]["first_seconds"] / turn["read_seconds"] for turn in measured["rounds"]]


def over_packed(measured: Section) -> list[float]:
    """Return the GiB by which the peak memory exceeds the packed weights, in each round."""
    packed = measured["packed_bytes"]
    return [(turn["run"]["peak_bytes"] - packed) / GIB for turn in measured["rounds"]]


def bars(data: dict[str, Any]) -> Iterator[tuple[str, float, list[float]]]:
    """Yield what each target is about, the largest value that reaches it, and its figures."""
    sections = data["sections"]
    size = sections.get("size", {}).get("bytes", {})
    ratio = [size["suffice"] / size[PEER]] if len(size) == len(ENVIRONMENTS) else []
    yield f"size of a fresh environment, pip included, over {PEER}'s", 1.0, ratio
    starts = sections.get("start", {})
    for name in ("default", RAW):
        wall = over_peer(starts, name, "seconds")
        yield f"{RUNS[name]}: wall time over {PEER}'s", MOST_WALL, wall
    for name, most in MOST_PEAK.items():
        peak = over_peer(starts, name, "peak_bytes")
        yield f"{RUNS[name]}: peak memory over {PEER}'s", most, peak
    imports = seconds(sections.get("imports", {}), "suffice")
    yield f"{IMPORTS['suffice']}, seconds", MOST_IMPORT, imports
    for measured in sections.get("file", {}).get("cases", {}).values():
        what = label(measured)
        found = measured.get("rounds") and over_read(measured)
        yield f"{what}: first token over reading the file", MOST_READS, found or []
        found = measured.get("rounds") and over_packed(measured)
        yield f"{what}: peak memory over packed weights, GiB", MOST_OVER, found or []
        if measured["kind"] == "Q4_0" and (found := first_seconds(measured, "again")):
            yield f"{what}: first token of a second start, seconds", MOST_AGAIN, found


def first_seconds(measured: Section, name: str) -> list[float]:
    """Return the times to the first token of a kind of run, in each round that has one."""
    return [each[name]["first_seconds"] for each in measured.get("rounds", ()) if name in each]


def label(measured: Section) -> str:
    """Return the file and the weights of a measurement."""
    return f"{measured['shape']} {measured['kind']}, weights {measured['weights']}"


def target_lines(data: dict[str, Any]) -> list[Line]:
    """Return the lines of the table of targets."""
    lines = []
    for what, most, values in bars(data):
        reached = "yes" if values and statistics.median(values) <= most else "**no**"
        lines.append([what, most, spread(values), reached if values else "not measured"])
    return lines


def run_lines(section: Section, words: dict[str, str]) -> list[Line]:
    """Return a line for each case of fresh processes."""
    return [
        [words[name], spread(seconds(section, name)), spread([r["peak_bytes"] / MIB for r in runs])]
        for name, runs in section.get("cases", {}).items()
    ]


def size_lines(section: Section) -> list[Line]:
    """Return a line for each environment."""
    return [
        [name, size / 1e6, "given, as it was" if name in section["given"] else "fresh"]
        for name, size in section.get("bytes", {}).items()
    ]


def file_lines(section: Section) -> list[Line]:
    """Return a line for each file and kind of weights."""
    lines = []
    for measured in section.get("cases", {}).values():
        if "error" in measured:
            lines.append([label(measured), measured["error"], *["-"] * 7])
            continue
        turns, size = measured["rounds"], measured["file_bytes"]
        lines.append(
            [
                label(measured),
                size / GIB,
                spread([turn["read_seconds"] for turn in turns]),
                spread([size / turn["read_seconds"] / 1e9 for turn in turns]),
                spread([turn["roof"] / 1e9 for turn in turns]),
                spread([turn["run"]["first_seconds"] for turn in turns]),
                spread([turn["run"]["seconds"] for turn in turns]),
                measured["packed_bytes"] / GIB,
                spread([turn["run"]["peak_bytes"] / GIB for turn in turns]),
            ]
        )
    return lines


def again_lines(section: Section) -> list[Line]:
    """Return a line for each file and kind of weights whose second start was measured."""
    return [
        [label(measured), *(spread(first_seconds(measured, name)) for name in AGAIN)]
        for measured in section.get("cases", {}).values()
        if first_seconds(measured, "again")
    ]


def file_tables(section: Section) -> str:
    """Return the table of files, and the one of their second starts if there are any."""
    tables = [markdown(FILE_HEAD, file_lines(section))]
    if lines := again_lines(section):
        tables.append(markdown(["first token, s", *AGAIN.values()], lines))
    return "\n\n".join(tables)


AGAIN = {"run": "packing (`--no-packed`)", "again": "second start", "peer": PEER}
RUN_HEAD = ["process", "wall, s", "peak memory, MiB"]
FILE_HEAD = ["file", "GiB", "read, s", "read, GB/s", "streaming read of memory, GB/s",
             "first token, s", "whole run, s", "packed weights, GiB",
             "peak memory, GiB"]  # fmt: skip
DRAWN: dict[str, Callable[[Section], str]] = {
    "start": lambda section: markdown(RUN_HEAD, run_lines(section, RUNS)),
    "imports": lambda section: markdown(RUN_HEAD, run_lines(section, IMPORTS)),
    "size": lambda section: markdown(["environment", "MB", "made"], size_lines(section)),
    "file": file_tables,
}


def report(data: dict[str, Any]) -> str:
    """Return the whole page."""
    sections = data["sections"]
    quick = ["**A quick run of a tiny model: no figure means anything.**"] * data["quick"]
    note = (
        f"Median (least to greatest) of {data['rounds']} rounds of fresh processes, which take "
        f"turns; a first round does not count. Ratios are of one round. {data['model']}, "
        f"{data['threads']} threads, {data['machine']['cpu']}. Files are in the page cache. "
        "Without `--raw` suffice puts the prompt into the model's chat template; the other runs it "
        "as it is. Both have the model's own context. Memory is what is resident, pages of mapped "
        "files included. A file of a shape holds random codes, and its prompt is one token, "
        "without a template."
    )
    errors = [f"{name}: {part['error']}" for name, part in sections.items() if "error" in part]
    tables = [DRAWN[name](part) for name, part in sections.items() if "error" not in part]
    head = ["what", "at most", "measured", "reached"]
    text = ["## Start, memory and size", *quick, markdown(head, target_lines(data)), *tables]
    return "\n\n".join([*text, *errors, note])
