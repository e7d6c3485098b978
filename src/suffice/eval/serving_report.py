"""Figures of a load, as vLLM's serving benchmark defines them (see `latency.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from suffice.errors import InputError
from suffice.eval.serving_client import Exchange

PERCENTILES = (50, 90, 99)
GOALS = ("ttft", "tpot", "e2el")


def goals(texts: Sequence[str]) -> dict[str, float]:
    """Read goals such as `ttft:500`, in milliseconds.

    Raises:
        InputError: Another form.
    """
    found = {}
    for text in texts:
        name, _, value = text.partition(":")
        try:
            limit = float(value)
        except ValueError:
            limit = -1.0
        if name not in GOALS or not limit > 0:
            known = ", ".join(GOALS)
            raise InputError(f"--goodput {text}: must be like ttft:500, in ms; names: {known}")
        found[name] = limit
    return found


def times(exchange: Exchange) -> dict[str, float]:
    """Return one request's TTFT, TPOT and whole time, in milliseconds."""
    first, last = exchange.chunks[0], exchange.chunks[-1]
    return {
        "ttft": 1e3 * (first - exchange.sent),
        "tpot": 1e3 * (last - first) / max(1, exchange.tokens - 1),
        "e2el": 1e3 * (last - exchange.sent),
    }


def summary(exchanges: Sequence[Exchange], limits: Mapping[str, float]) -> dict[str, Any]:
    """Return the figures of a load: throughput per second, times in milliseconds.

    `longest_gap` is the longest time between two parts of one stream. Requests with an error
    count as errors and nowhere else.
    """
    good = [each for each in exchanges if each.error is None]
    failed = [each.error for each in exchanges if each.error is not None]
    found: dict[str, Any] = {"completed": len(good), "errors": len(failed)}
    if failed:
        found["first_error"] = failed[0]
    if not good:
        return found
    duration = max(each.ended for each in exchanges) - min(each.sent for each in exchanges)
    output = sum(each.tokens for each in good)
    prompts = sum(each.prompt_tokens for each in good)
    found |= {
        "duration": duration,
        "total_input_tokens": prompts,
        "total_output_tokens": output,
        "request_throughput": len(good) / duration,
        "output_throughput": output / duration,
        "total_token_throughput": (prompts + output) / duration,
    }
    own = [times(each) for each in good]
    gaps = np.concatenate([np.diff(each.chunks) for each in good]) * 1e3
    for name in GOALS:
        found |= _spread(name, [each[name] for each in own])
    found |= _spread("itl", gaps)
    found["longest_gap_ms"] = float(gaps.max()) if len(gaps) else 0.0
    if limits:
        met = sum(all(each[name] <= limits[name] for name in limits) for each in own)
        found["request_goodput"] = met / duration
    return found


def _spread(name: str, values: Any) -> dict[str, float]:
    if not len(values):
        return {}
    found = {f"mean_{name}_ms": float(np.mean(values))}
    for percent in PERCENTILES:
        found[f"p{percent}_{name}_ms"] = float(np.percentile(values, percent))
    return found
