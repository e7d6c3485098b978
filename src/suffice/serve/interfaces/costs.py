"""What an answer says of its cost: tokens, times, and what was read of keys and values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from suffice.attention.rule import weakest
from suffice.engine.work import Final
from suffice.serve.http.front import Job


def usage(job: Job) -> dict[str, Any]:
    """Return the tokens of a request so far."""
    prompt = sum(len(ticket.work.prompt) for ticket in job.tickets)
    generated = job.copies * sum(ticket.generated for ticket in job.tickets)
    finals = [ticket.final for ticket in job.tickets if ticket.final is not None]
    details = {"cached_tokens": sum(each.cached_tokens for each in finals)}
    if disk := sum(each.cached_from_disk for each in finals):  # of those
        details["cached_tokens_from_disk"] = disk
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": details,
    }


def _most(values: Iterable[float | None]) -> float | None:
    """Return the largest value; None if one is not known."""
    found = list(values)
    known = [each for each in found if each is not None and math.isfinite(each)]
    return max(known) if len(known) == len(found) else None


def _mean(finals: Sequence[Final], field: str) -> float | None:
    """Return the mean of a field over the softmaxes of all; None if one is not known."""
    values: list[float] = [getattr(each, field) for each in finals]
    if None in values:
        return None
    weights = [each.softmaxes or 1 for each in finals]
    both = zip(values, weights, strict=True)
    return sum(value * weight for value, weight in both) / sum(weights)


def costs(job: Job) -> dict[str, Any]:
    """Return times by llama.cpp's names, and what was read of the keys and values."""
    finals = [ticket.final for ticket in job.tickets if ticket.final is not None]
    if not finals:
        return {}
    prompt, decode = (
        1e3 * sum(getattr(each, name) for each in finals)
        for name in ("prefill_seconds", "decode_seconds")
    )
    cached = sum(each.cached_tokens for each in finals)
    tokens = sum(ticket.generated for ticket in job.tickets)
    audited = sum(each.audited for each in finals)
    moved = sum(each.state_bytes_moved for each in finals)
    disk = sum(each.cached_from_disk for each in finals)
    return {
        "timings": {
            "cache_n": cached,
            "prompt_n": sum(each.prompt_tokens for each in finals) - cached,
            "prompt_ms": prompt,
            "predicted_n": tokens,
            "predicted_ms": decode,
            "predicted_per_second": 1e3 * tokens / decode if decode else 0.0,
            "draft_n": sum(each.drafts for each in finals),
            "draft_n_accepted": sum(each.accepted for each in finals),
        },
        "suffice": {
            "kv_rows_read": sum(each.key_rows_read for each in finals),
            "kv_rows_held": sum(each.rows_held for each in finals),
            "value_rows_read": sum(each.value_rows_read for each in finals),
            "kv_bytes_read": sum(each.bytes_read for each in finals),
            "kv_bytes_held": sum(each.bytes_held for each in finals),
            **({"state_bytes_moved": moved} if moved else {}),
            **({"cached_tokens_from_disk": disk} if disk else {}),
            "attention": finals[0].attention,
            "guarantee": weakest({each.guarantee for each in finals}),
            "missing": _most(each.missing for each in finals),
            "missing_mean": _mean(finals, "missing_mean"),
            "shift": _most(each.shift for each in finals),
            "shift_mean": _mean(finals, "shift_mean"),
            "prompt_rows_read": sum(each.prompt_rows_read for each in finals),
            "prompt_rows_held": sum(each.prompt_rows_held for each in finals),
            "audit": {
                "tokens": audited,
                "missing": _most(each.audited_missing for each in finals),
                "error": _most(each.audited_error for each in finals),
            }
            if audited
            else None,
            "failovers": sum(ticket.deaths for ticket in job.tickets),
        },
    }
