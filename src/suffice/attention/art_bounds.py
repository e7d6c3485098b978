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

import numpy as np
from numpy.linalg import norm, svd

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

    masses: np.ndarray  # l [R, T], in units of e^(largest score)
    parts: np.ndarray  # u [R, T, D]
    outputs: np.ndarray  # o [R, T, D]

    @property
    def known(self) -> np.ndarray:
        """Mass of the blocks so far, A [R, T]."""
        sums: np.ndarray = self.masses.cumsum(-1)
        return sums


def trajectory(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, block: int
) -> Trajectory:
    """Return the trajectory of R heads q [R, D] of one token over k, v [S, D], block by block."""
    rows = len(k)
    scores = scale * q @ k.T
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    spare = -rows % block  # blocks start at multiples of their size, so the newest may be partial
    weights = np.pad(weights, ((0, 0), (0, spare))).reshape(len(q), -1, block)[:, ::-1]
    values = np.pad(v, ((0, spare), (0, 0))).reshape(-1, block, v.shape[-1])[::-1]
    masses = weights.sum(-1)
    sums = (weights.swapaxes(0, 1) @ values).swapaxes(0, 1)
    outputs = sums.cumsum(1) / masses.cumsum(1)[..., None]
    return Trajectory(masses, sums / masses[..., None], outputs)


def changes(art: ART, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return d_scale and d_direction (Eq. 2) at each check of outputs [R, T, D], each [R, T]."""
    x = art.probed(outputs.reshape(-1, outputs.shape[-1])).reshape(*outputs.shape[:2], -1)
    before = np.concatenate((np.zeros_like(x[:, :1]), x[:, :-1]), axis=1)
    norms = norm(x, axis=-1) * norm(before, axis=-1)
    # A zero vector has no direction.
    cosine = np.divide((x * before).sum(-1), norms, out=-np.ones_like(norms), where=norms > 0)
    return norm(x - before, axis=-1), 1 - cosine


def stops(stable: np.ndarray, patience: int) -> np.ndarray:
    """Return after how many checks each of R heads may stop (Eq. 3), T + 1 for never.

    `stable` is bool [R, T]; the result int64 [R].
    """
    looks = np.arange(1, stable.shape[-1] + 1)
    broken = np.maximum.accumulate(np.where(stable, 0, looks), axis=-1)
    enough = looks - broken >= patience
    found: np.ndarray = np.where(enough, looks, len(looks) + 1).min(-1)
    return found


def bounds(art: ART, q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float) -> list[Bounds]:
    """Return the bounds of each head q [R, D] of one token; each head stops on its own.

    k and v are [S, D]; computed in float64. The theorems do not cover value filters.
    """
    q, k, v = (each.astype(np.float64) for each in (q, k, v))
    path = trajectory(q, k, v, scale=scale, block=art.block)
    scales, directions = changes(art, path.outputs)
    stopped = stops((scales < art.change) & (directions < art.angle), art.patience)
    largest = float(norm(v, axis=-1).max())
    return [_bounds(art, path, head, int(at), largest) for head, at in enumerate(stopped)]


def _bounds(art: ART, path: Trajectory, head: int, stopped: int, largest: float) -> Bounds:
    """Return one head's bounds; indices of arrays are one less than those of the paper."""
    outputs, masses, known = path.outputs[head], path.masses[head], path.known[head]
    blocks = len(masses)
    if stopped >= blocks:
        return Bounds(blocks, blocks, 0.0, 0.0, 0.0, 0.0, True, True)
    first = stopped - art.patience + 1
    counts = np.arange(1, blocks + 1)
    mu = float(first * masses[first - 1] / known[first - 1])
    after = slice(first - 1, None)
    before = np.concatenate((np.zeros_like(outputs[:1]), outputs[:-1]))
    steps = outputs - before
    pulls = norm(art.probed(path.parts[head] - before)[after], axis=-1)
    excess = float((pulls - pulls[0]).max())
    ratio = math.log(blocks / stopped)
    promised = (art.change * first + excess * mu) * ratio
    return Bounds(
        blocks=blocks,
        stopped=stopped,
        error=float(norm(outputs[-1] - outputs[stopped - 1])),
        theorem1=_over(promised, _least_share(art, steps)),
        theorem1_steps=_over(promised, _share_of_steps(art, steps[stopped:])),
        theorem2=2 * mu * largest * ratio,
        regulated=bool(masses[after].max() <= mu * (known / counts)[after].min() * (1 + 1e-9)),
        decays=bool((counts * masses / known)[after].max() <= mu * (1 + 1e-9)),
    )


def _least_share(art: ART, steps: np.ndarray) -> float:
    """Return nu: the least |P z| / |z| over the span of steps [T, D]."""
    _, sizes, directions = svd(steps, full_matrices=False)
    basis = directions[sizes > 1e-12 * sizes[0]]
    probed = art.probed(basis)
    if len(basis) > probed.shape[-1]:
        return 0.0  # more dimensions than the probe has
    return float(svd(probed, compute_uv=False)[-1])


def _share_of_steps(art: ART, steps: np.ndarray) -> float:
    """Return the least |P z| / |z| over the steps themselves."""
    moved = steps[norm(steps, axis=-1) > 0]
    shares = norm(art.probed(moved), axis=-1) / norm(moved, axis=-1)
    return float(shares.min()) if len(shares) else 1.0


def _over(promised: float, share: float) -> float:
    return promised / share if share > 0 else math.inf
