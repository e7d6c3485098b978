"""Goals of a load, and figures of a simulated one, by the definitions of `suffice bench serve`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from suffice.errors import OptionError
from suffice.plan.cluster import Outcome, Run

PERCENTILES = (50, 95, 99)
GOALS = ("ttft", "tpot", "gap", "e2el")
SHOWN = {"ttft": "TTFT", "tpot": "TPOT", "gap": "longest gap", "e2el": "whole time"}
_UNITS = {"ms": 1e-3, "us": 1e-6, "s": 1.0}


def goals(text: str) -> dict[str, float]:
    """Read goals such as `ttft=1s,tpot=50ms`; return seconds by name.

    Raises:
        InputError: Another form.
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        seconds = _seconds(value.strip())
        if name not in GOALS or seconds is None or name in found:
            known = ", ".join(GOALS)
            must = f"must be like ttft=1s,tpot=50ms, each once; names: {known}; units: s, ms, us"
            raise OptionError("slo", text[:60], must)
        found[name] = seconds
    return found


def share(text: str) -> float:
    """Read a share of requests such as `99%` or `0.99`.

    Raises:
        InputError: Another form, or no share.
    """
    number = text.strip()
    try:
        found = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        found = -1.0
    if not 0 < found <= 1:
        raise OptionError("goal", text[:60], "must be a share of the requests, such as 99%")
    return found


def _seconds(text: str) -> float | None:
    unit = next((each for each in _UNITS if text.endswith(each)), None)
    try:
        found = float(text.removesuffix(unit)) * _UNITS[unit] if unit else -1.0
    except ValueError:
        return None
    return found if 0 < found < float("inf") else None


def times(outcome: Outcome) -> dict[str, float]:
    """Return one request's figures in seconds; `gap` is the longest between two of its tokens."""
    first, last = outcome.chunks[0], outcome.chunks[-1]
    return {
        "ttft": first - outcome.sent,
        "tpot": (last - first) / max(1, len(outcome.chunks) - 1),
        "gap": max((after - before for before, after in pairwise(outcome.chunks)), default=0.0),
        "e2el": last - outcome.sent,
        "queue": outcome.queued,
    }


def missed(outcomes: Sequence[Outcome], limits: Mapping[str, float]) -> dict[str, int]:
    """Return how many requests miss each goal, how many failed, and how many miss any ("any").

    A request that was refused or has failed misses all.
    """
    found = dict.fromkeys((*limits, "error", "any"), 0)
    for outcome in outcomes:
        if outcome.error is not None:
            found["error"] += 1
            found["any"] += 1
            continue
        own = times(outcome)
        late = [name for name, limit in limits.items() if own[name] > limit]
        for name in late:
            found[name] += 1
        found["any"] += bool(late)
    return found


def summary(run: Run, limits: Mapping[str, float]) -> dict[str, Any]:
    """Return the figures of a run: times in milliseconds, memory in bytes.

    `held` is the share of the requests that reach all goals, `spread_*` percentiles 0 to 100.
    """
    good = [each for each in run.outcomes if each.error is None]
    late = missed(run.outcomes, limits)
    seconds = max(run.seconds, 1e-9)
    tokens = sum(len(each.chunks) for each in good)
    found: dict[str, Any] = {
        "requests": len(run.outcomes),
        "failed": late["error"],
        "held": 1 - late["any"] / len(run.outcomes),
        "missed": late,
        "duration": run.seconds,
        "request_throughput": len(good) / seconds,
        "output_throughput": tokens / seconds,
        "utilisation": float(np.mean(run.busy)) / seconds,
        "utilisation_most": max(run.busy) / seconds,
        "front_utilisation": run.front_busy / seconds,
        "front_behind_ms": 1e3 * run.most_behind,
        "most_waiting": run.most_waiting,
        "most_bytes": max(run.most_bytes),
    }
    own = [times(each) for each in good]
    for name in ("ttft", "tpot", "gap", "e2el", "queue"):
        values = [1e3 * each[name] for each in own] or [float("nan")]
        cuts = np.percentile(values, PERCENTILES).tolist()
        found |= {f"p{at}_{name}_ms": cut for at, cut in zip(PERCENTILES, cuts, strict=True)}
        found[f"spread_{name}_ms"] = np.percentile(values, range(101)).tolist()
    return found
