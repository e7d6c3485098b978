"""The bounds of ART's theorems for a traversal, and whether their assumptions hold for it.

A head attends to blocks t = 1..T, newest first, with masses l_t and outputs u_t. A_t is the mass of
the first t blocks:

    o_t - o_(t-1) = l_t / A_t (u_t - o_(t-1))

It stops at t* after p stable checks, the first at b = t* - p + 1. With mu = b l_b / A_b:

    |o_T - o_t*| <= (tau b + Delta mu) / nu ln(T / t*)                       (Theorem 1, Eq. 4)
    |o_T - o_t*| <= 2 mu C_v ln(T / t*)                                      (Theorem 2)

Delta is the largest excess of |P(u_j - o_(j-1))|, j >= b, over its value at b (Definition 1), where
P is the probe. nu is the least |P z| / |z| over the span of all steps of the output (Assumption 2),
and C_v is the largest norm of a value.

Both theorems assume that masses decay: l_j <= l' and A_j >= h j for all j >= b, with l' / h = mu
(Assumption 1). At j = b both hold with equality, so l_b must be the largest of these masses and
A_b / b the least mean. The proofs use only the conclusion of Lemma 1, j l_j / A_j <= mu for all
j >= b, which `decays` tests. They need nu only for the steps after t*. If the span has more
dimensions than the probe, nu is 0 and Theorem 1 gives no bound; `theorem1_steps` is the bound with
the nu of those steps.

Source   Qiu et al., "ART: Attention Run-time Termination for Efficient LLM Decoding", appendix A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from suffice.attention.art import ART


@dataclass(frozen=True)
class Bounds:
    """One head's traversal: where it stopped, its error, and the bounds of the theorems."""

    blocks: int  # T
    stopped: int  # t*; T if it never did
    error: float  # |o_T - o_t*|
    theorem1: float  # infinite if nu is 0
    theorem1_steps: float
    theorem2: float
    regulated: bool  # Assumption 1 as printed
    decays: bool  # the part of it that the proofs use


@dataclass(frozen=True)
class Trajectory:
    """The running outputs of R heads after each of T blocks, newest first."""

    masses: torch.Tensor  # l [R, T], in units of e^(largest score)
    parts: torch.Tensor  # u [R, T, D]
    outputs: torch.Tensor  # o [R, T, D]

    @property
    def known(self) -> torch.Tensor:
        """Mass of the blocks so far, A [R, T]."""
        return self.masses.cumsum(-1)


def trajectory(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, block: int
) -> Trajectory:
    """Return the trajectory of R heads q [R, D] of one token over k, v [S, D], block by block."""
    rows = len(k)
    scores = scale * q @ k.T
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    spare = -rows % block  # blocks start at multiples of their size, so the newest may be partial
    weights = pad(weights, (0, spare)).reshape(len(q), -1, block).flip(1)
    values = pad(v, (0, 0, 0, spare)).reshape(-1, block, v.shape[-1]).flip(0)
    masses = weights.sum(-1)
    sums = torch.einsum("rtb,tbd->rtd", weights, values)
    outputs = sums.cumsum(1) / masses.cumsum(1)[..., None]
    return Trajectory(masses, sums / masses[..., None], outputs)


def changes(art: ART, outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return d_scale and d_direction (Eq. 2) at each check of outputs [R, T, D], each [R, T]."""
    x = art.probed(outputs.flatten(0, 1)).reshape(*outputs.shape[:2], -1)
    before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
    norms = x.norm(dim=-1) * before.norm(dim=-1)
    # A zero vector has no direction.
    cosine = torch.where(norms > 0, (x * before).sum(-1) / norms, -1.0)
    return (x - before).norm(dim=-1), 1 - cosine


def stops(stable: torch.Tensor, patience: int) -> torch.Tensor:
    """Return after how many checks each of R heads may stop (Eq. 3), T + 1 for never.

    `stable` is bool [R, T]; the result int64 [R].
    """
    looks = torch.arange(1, stable.shape[-1] + 1)
    broken = torch.where(stable, 0, looks).cummax(-1).values
    enough = looks - broken >= patience
    return torch.where(enough, looks, len(looks) + 1).amin(-1)


def bounds(
    art: ART, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float
) -> list[Bounds]:
    """Return the bounds of each head q [R, D] of one token; each head stops on its own.

    k and v are [S, D]; computed in float64. The theorems do not cover value filters.
    """
    path = trajectory(q.double(), k.double(), v.double(), scale=scale, block=art.block)
    scales, directions = changes(art, path.outputs)
    stopped = stops((scales < art.change) & (directions < art.angle), art.patience)
    largest = float(v.double().norm(dim=-1).max())
    return [_bounds(art, path, head, int(at), largest) for head, at in enumerate(stopped)]


def _bounds(art: ART, path: Trajectory, head: int, stopped: int, largest: float) -> Bounds:
    """Return one head's bounds; indices of tensors are one less than those of the paper."""
    outputs, masses, known = path.outputs[head], path.masses[head], path.known[head]
    blocks = len(masses)
    if stopped >= blocks:
        return Bounds(blocks, blocks, 0.0, 0.0, 0.0, 0.0, True, True)
    first = stopped - art.patience + 1
    counts = torch.arange(1, blocks + 1)
    mu = float(first * masses[first - 1] / known[first - 1])
    after = slice(first - 1, None)
    before = torch.cat([torch.zeros_like(outputs[:1]), outputs[:-1]])
    steps = outputs - before
    pulls = art.probed(path.parts[head] - before)[after].norm(dim=-1)
    excess = float((pulls - pulls[0]).max())
    ratio = math.log(blocks / stopped)
    promised = (art.change * first + excess * mu) * ratio
    return Bounds(
        blocks=blocks,
        stopped=stopped,
        error=float((outputs[-1] - outputs[stopped - 1]).norm()),
        theorem1=_over(promised, _least_share(art, steps)),
        theorem1_steps=_over(promised, _share_of_steps(art, steps[stopped:])),
        theorem2=2 * mu * largest * ratio,
        regulated=bool(masses[after].max() <= mu * (known / counts)[after].min() * (1 + 1e-9)),
        decays=bool((counts * masses / known)[after].max() <= mu * (1 + 1e-9)),
    )


def _least_share(art: ART, steps: torch.Tensor) -> float:
    """Return nu: the least |P z| / |z| over the span of steps [T, D]."""
    _, sizes, directions = torch.linalg.svd(steps, full_matrices=False)
    basis = directions[sizes > 1e-12 * sizes[0]]
    probed = art.probed(basis)
    if len(basis) > probed.shape[-1]:
        return 0.0  # more dimensions than the probe has
    return float(torch.linalg.svdvals(probed)[-1])


def _share_of_steps(art: ART, steps: torch.Tensor) -> float:
    """Return the least |P z| / |z| over the steps themselves."""
    moved = steps[steps.norm(dim=-1) > 0]
    shares = art.probed(moved).norm(dim=-1) / moved.norm(dim=-1)
    return float(shares.min()) if len(shares) else 1.0


def _over(promised: float, share: float) -> float:
    return promised / share if share > 0 else math.inf
