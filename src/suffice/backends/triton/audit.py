"""How far attention was from exact attention."""

from __future__ import annotations

import torch

from suffice.backends.triton.call import Reads


def audited(found: Reads, exact: Reads, *, coded: bool = False) -> torch.Tensor:
    """Return what `suffice.trace.Audit.add` takes of N tokens, float32 [5, N, H].

    `found` and `exact` are the reads of a technique and of attention to all rows, by the same
    queries. If weights are `coded`, what is missing is not defined.
    """
    own, all_ = found.sums, exact.sums
    kept = own.totals if found.filtered is None else found.filtered.total(own)
    missing = (1 - kept * (own.peaks - all_.peaks).exp2() / all_.totals).clamp(min=0)
    output, wanted = (each.sums / each.totals[..., None] for each in (own, all_))
    length = wanted.norm(dim=-1)
    error = torch.where(length > 0, (output - wanted).norm(dim=-1) / length, 0)
    unknown = torch.full_like(missing, torch.nan)
    missing, bound = (unknown if coded else missing), unknown
    if found.missing is not None:
        bound = found.missing.reshape(-1, 1).expand_as(missing)
    figures = torch.stack((missing, error, bound, unknown, unknown))
    if found.figures is not None:
        figures[[0, 2, 3, 4]] = torch.stack(found.figures())
    return figures.reshape(5, found.keys.shape[0], -1)
