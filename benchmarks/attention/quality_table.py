"""The table of quality.py: the quality and reads of settings, with the papers' figures."""

from __future__ import annotations

from typing import Any

from benchmarks.harness.tables import markdown
from suffice.errors import InputError

SCROOGE = "K 0.81, V 0.23, in all 0.52 of the bytes within 0.5 % (mean of six models from 1.3B)"
AGGRESSIVE = "K 0.54, V 0.14, in all 0.34 of the bytes within 5 %"
PUBLISHED = {
    "aet:keys=0.95": SCROOGE,
    "aet:keys=0.9": SCROOGE,
    "aet:keys=0.8": AGGRESSIVE,
    "aet:keys=0.9,block=1": SCROOGE,
    "aet:keys=0.6,values=0.005,block=1": AGGRESSIVE,
    "exaq:bits=2": "mean of 7 tasks 68.2 to 66.7 (LLaMA-1-13B)",
    "exaq:bits=3": "68.2 to 67.8 (LLaMA-1-13B)",
    "exaq:bits=3,clip=minmax": "68.2 to 66.3 (LLaMA-1-13B)",
    "exaq:bits=2,clip=minmax": "68.2 to 48.5 (LLaMA-1-13B)",
    "art": "LongBench 46.29 to 45.74, 1.16x per token (Mistral-7B)",
    "snapkv:ratio=0.2": "LongBench 46.29 to 31.17, with ART 30.80 (Mistral-7B)",
    "streaming:ratio=0.2": "LongBench 46.29 to 31.11, with ART 31.09 (Mistral-7B)",
    "pyramidkv:ratio=0.2": "LongBench 46.29 to 30.07, with ART 29.97 (Mistral-7B)",
}
HEAD = [
    "setting",
    "K read",
    "V read",
    "V per head",
    "metadata",
    "bytes read",
    "perplexity",
    "KL mean",
    "KL 99.9 %",
    "same token",
    "missing, bound",
    "missing, mean",
    "missing, 99.9 %",
    "missing > 1/2",
    "output error",
    "published",
]
# Scrooge, Fig. 6: savings (times fewer bytes) of K, of V and in total, by loss of perplexity in %.
TRAFFIC = {0.5: (1.23, 4.34, 1.92), 5.0: (1.85, 7.14, 2.94)}


def change(found: dict[str, Any]) -> float:
    """Return the increase of the perplexity over exact attention's, in per cent."""
    return _rise(found["result"]["against"])


def _rise(against: dict[str, Any]) -> float:
    return 100.0 * (float(against["ratio"]) - 1)


def share(found: dict[str, Any]) -> float:
    """Return the bytes of keys, values and metadata read over those of exact attention."""
    return float(found["reads"]["kv_bytes_read"] / held(found))


def held(found: dict[str, Any]) -> float:
    """Return the bytes that exact attention reads of a cache in the model's own type."""
    return float(found["reads"]["kv_bytes_held"] * found.get("plain_over_stored", 1))


def change_with_error(against: dict[str, Any]) -> str:
    """Return the change of perplexity, with its standard error unless there is one window."""
    error = against["ratio_error"]
    shown = "" if error is None else f" ± {100 * error:.2f}"
    return f"{_rise(against):+.2f}{shown} %"


def row(setting: str, found: dict[str, Any]) -> list[Any]:
    """Return a setting's row of the table; reads are fractions of held rows."""
    reads, against = found["reads"], found["result"]["against"]
    keys, values, rows = (
        sum(map(sum, reads[name])) for name in ("key_rows_read", "value_rows_read", "rows_held")
    )
    return [
        f"`{setting}`",
        keys / rows,
        values / rows,
        alone(reads),
        reads["sketch_bytes_read"] / held(found),
        share(found),
        change_with_error(against),
        against["divergence"],
        against["divergence_999"],
        against["agreement"],
        reads["missing"] or "",
        *audited(reads.get("audit", {})),
        PUBLISHED.get(setting, ""),
    ]


def alone(reads: dict[str, Any]) -> Any:
    """Return the mean share of the values that a query head alone would read."""
    if "value_rows_alone" not in reads:
        return ""
    rows, held = (sum(map(sum, reads[name])) for name in ("value_rows_alone", "rows_held"))
    return rows / (held * reads["heads_per_group"])


def audited(audit: dict[str, Any]) -> list[Any]:
    """Return the audited share of the softmax that was missing, and the output error."""
    missing, error = (audit.get(name, {}) for name in ("missing", "error"))
    shares = [missing.get(name, "") for name in ("mean", "p99.9", "above_half")]
    return [*shares, error.get("mean", "")]


def table(records: dict[str, dict[str, Any]], refused: dict[str, str]) -> str:
    """Return the results as text and a table, with a comparison to the published savings."""
    kv = next(iter(records.values()))["config"]["kv_cache_dtype"]
    others = " or the type after `@`" if any(" @ " in setting for setting in records) else ""
    about = (
        f"{conditions(records)}, keys and values in {kv}{others}; bytes are over those that exact "
        f"attention reads in {kv}. 'Missing' is a share of a head's softmax: "
        "the most that the technique bounds or estimates, and, found by exact attention in some "
        "of the steps, what truly was. 'Output error' is relative, root of the mean square. Both "
        "are of what the cache holds. 'V per head' is what a query head alone would read. `A + B`: "
        "both."
    )
    rows = [row(setting, found) for setting, found in records.items()]
    text = ["## Attention techniques", about, markdown(HEAD, rows)]
    text += [f"Refused: `{setting}` ({why})." for setting, why in refused.items()]
    return "\n\n".join([*text, *reached(records)])


def conditions(records: dict[str, dict[str, Any]]) -> str:
    """Return the facts common to all results: the model, and the windows of the text."""
    one = next(iter(records.values()))
    prompt = one["asked"].get("prompt")
    part = f", predicted after a prompt of {prompt}" if prompt else ""
    windows = f"{one['result']['windows']} windows of {one['asked']['window']} tokens"
    return f"{one['config']['model']}, WikiText-2, {windows}{part}"


def reached(records: dict[str, dict[str, Any]]) -> list[str]:
    """Compare Scrooge's published savings with its technique's here and with the best here."""
    exact = records.get("exact")
    own = {name: each for name, each in records.items() if name.startswith("aet")}
    if exact is None or not own:
        return []
    lines = []
    for loss, traffic in TRAFFIC.items():
        mine, best = (least(each, loss) for each in (own, records))
        saved = mine is not None and _times(records[mine], exact)[2] >= traffic[2]
        lines.append(
            [
                f"{loss:g} %",
                _saving(traffic),
                "yes" if saved else "no",
                *(
                    f"{_saving(_times(records[name], exact))}: `{name}`" if name else "none"
                    for name in (mine, best)
                ),
            ]
        )
    head = ["perplexity, at most", "Scrooge, Fig. 6", "reached", "its technique here", "best here"]
    note = (
        "Times fewer bytes than exact attention reads. The published savings are means of six "
        "models of 1.3 to 13 billion parameters; 1.97x and 2.13x at 1 and 2 % (Fig. 9, four of "
        "them) are times of their accelerator."
    )
    return [note, markdown(head, lines)]


def least(records: dict[str, dict[str, Any]], loss: float) -> str | None:
    """Return the setting with the fewest bytes within a loss of perplexity in per cent."""
    within = {name: share(each) for name, each in records.items() if change(each) <= loss}
    return min(within, key=within.__getitem__, default=None)


def _times(found: dict[str, Any], exact: dict[str, Any]) -> tuple[float, float, float]:
    """Return the savings in rows of K, rows of V and bytes, as exact attention's over a setting's.

    Metadata counts in the bytes only.
    """
    mine, whole = (
        [sum(map(sum, each["reads"][name])) for name in ("key_rows_read", "value_rows_read")]
        for each in (found, exact)
    )
    return whole[0] / mine[0], whole[1] / mine[1], share(exact) / share(found)


def _saving(times: tuple[float, float, float]) -> str:
    return f"{times[2]:.2f}x (K {times[0]:.2f}x, V {times[1]:.2f}x)"


def points(records: dict[str, dict[str, Any]]) -> dict[str, tuple[float, float, float]]:
    """Return, by setting, the bytes read over exact attention's, the change and its error.

    Raises:
        InputError: There is no exact attention to compare with.
    """
    if "exact" not in records:
        raise InputError("records: 'exact' is missing: measure it too")
    whole = share(records["exact"])
    return {
        setting: (
            share(found) / whole,
            change(found),
            100 * (found["result"]["against"]["ratio_error"] or 0),
        )
        for setting, found in records.items()
    }
