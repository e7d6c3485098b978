"""Ways to select keys and values for a query, in PyTorch: what `tiers` is compared with.

Each takes the queries of the heads that share keys and values, at some tokens of a text, and
returns outputs and the bytes that each token reads. Keys and values are in bfloat16, 2 bytes an
element. A row that any of the heads selects is read once and, unless rows are random, counts for
all of them. With q a query, scaled, k[s] a key of D channels, x[s] = q . k[s] and p the softmax of
x:

    oracle            the rows of largest p that have the share `mass`; to find them costs nothing
    twilight          the same by p' of keys in 4 bits, which are all read; then exact weights
                      Lin et al. 2025, "Twilight", Algorithm 1
    double_sparsity   the rows of largest x' over some channels, in 4 bits; the channels are those
                      with the largest mean |q k| on another text
                      Yang et al. 2024, "Post-Training Sparse Attention with Double Sparsity"
    sparq             the rows of largest p', the softmax of x' over the largest |q| of a query, at
                      the temperature sqrt(D |q'|_1 / |q|_1); the share of p' that is not selected
                      goes to the mean value
                      Ribar et al. 2024, "SparQ Attention", Algorithm 1
    magicpig          rows that collide with q in at least 2 of `tables` hash tables, by the signs
                      of `bits` random projections; each weighs e^x / u, with u its chance to
                      collide
                      Chen et al. 2024, "MagicPIG", section 4
    vattention        the rows of largest p', and a random sample of the others whose size makes the
                      error of the softmax's denominator at most `eps` with probability 1 - `delta`,
                      by the central limit theorem; a sampled row weighs e^x / its chance
                      Desai et al. 2025, "vAttention: Verified Sparse Attention"

Differs  Twilight's first selection, by Quest, is left out: all keys are candidates. Budgets are
         shares of the rows that a token sees, as texts here are short. Heads that share keys share
         the channels and the rows of SparQ; a quarter of its rows are the newest. vAttention finds
         its largest p' by keys in 4 bits, and samples each row independently.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import torch

from suffice.errors import InputError
from suffice.registry import Table

BYTES = 2  # of an element of a key or a value
HALVINGS = 30  # of a threshold's range
FACTORS = 4  # bytes of a row's scale and lowest value, in bfloat16
ID = 4  # bytes of a row's number in a hash table
COLLISIONS = 2  # that select a row
NEVER = -torch.inf

SELECTORS = Table(
    "selector",
    {
        "exact": "benchmarks.attention.selectors:Exact",
        "oracle": "benchmarks.attention.selectors:Oracle",
        "twilight": "benchmarks.attention.selectors:Twilight",
        "double_sparsity": "benchmarks.attention.selectors:DoubleSparsity",
        "sparq": "benchmarks.attention.selectors:SparQ",
        "magicpig": "benchmarks.attention.selectors:MagicPIG",
        "vattention": "benchmarks.attention.selectors:VAttention",
        "looks": "benchmarks.attention.key_looks:Looks",
    },
)


@dataclass(frozen=True)
class Head:
    """A key/value head, and the queries of the R heads that share it at T tokens.

    `q` [R, T, D] are scaled; `k` and `v` [S, D]; a token sees the rows where `sees` [T, S] is true.
    `channels` [D] are those of keys by their mean |q k| on another text, the largest first. `seed`
    is of what is random.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sees: torch.Tensor
    channels: torch.Tensor
    seed: int = 0

    @property
    def size(self) -> int:
        """Channels of a key, D."""
        return self.k.shape[-1]

    @property
    def nothing(self) -> torch.Tensor:
        """Zero bytes for each token [T]."""
        return torch.zeros(len(self.sees), device=self.q.device)

    @property
    def seen(self) -> torch.Tensor:
        """The number of rows that each token sees [T]."""
        return self.sees.sum(-1)

    def drawn(
        self, distribution: Callable[..., torch.Tensor], shape: tuple[int, ...]
    ) -> torch.Tensor:
        """Return random numbers by the seed: drawn on the host, so every device has the same."""
        generator = torch.Generator().manual_seed(self.seed)
        return distribution(shape, generator=generator).to(self.q.device)

    def scores(self, keys: torch.Tensor | None = None) -> torch.Tensor:
        """Return the scores [R, T, S] of keys, by default the exact ones."""
        keys = self.k if keys is None else keys
        return (self.q @ keys.T).masked_fill(~self.sees, NEVER)

    def newest(self, count: torch.Tensor | int) -> torch.Tensor:
        """Return which rows are the last `count` [T] that each token sees, [T, S]."""
        limit = self.seen - count
        return self.sees & (self.sees.cumsum(-1) > limit[:, None])

    def oldest(self, count: int) -> torch.Tensor:
        """Return which rows are the first `count` that each token sees, [T, S]."""
        return self.sees & (self.sees.cumsum(-1) <= count)


@dataclass(frozen=True)
class Selected:
    """Outputs [R, T, D], and the bytes that each token reads [T]."""

    output: torch.Tensor
    bytes: torch.Tensor


class Selector(Protocol):
    """Attends for the heads that share a key/value head."""

    def attend(self, head: Head) -> Selected:
        """Return the outputs and the bytes read."""
        ...


def read(
    head: Head, rows: torch.Tensor, found: torch.Tensor, log_chance: torch.Tensor | None = None
) -> Selected:
    """Attend to the selected `rows` [R, T, S]; `found` [T] are the bytes that it took to find them.

    `log_chance` [R, T, S]: the logarithm of each row's chance to be selected, if that was random.
    """
    scores = head.scores()
    if log_chance is None:
        rows = rows.any(0, keepdim=True)
    else:
        scores = scores - log_chance
    weights = scores.masked_fill(~rows, NEVER).softmax(-1)
    return Selected(weights @ head.v, found + 2 * BYTES * head.size * rows.any(0).sum(-1))


def largest(values: torch.Tensor, wanted: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return which are the fewest largest values [..., S] whose `weights` sum to `wanted` [..., 1].

    Their threshold is found by halving its range, as Twilight does.
    """
    high = values.amax(-1, keepdim=True)
    low = values.masked_fill(values == NEVER, torch.inf).amin(-1, keepdim=True)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        enough = (weights * (values >= middle)).sum(-1, keepdim=True) >= wanted
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    return values >= low


def most(head: Head, values: torch.Tensor, share: float) -> torch.Tensor:
    """Return which values [R, T, S] are the largest, a `share` of the rows that a token sees."""
    count = (share * head.seen).ceil()[None, :, None]
    return largest(values, count.expand(len(values), -1, -1), torch.ones_like(values)) & head.sees


def in_four_bits(rows: torch.Tensor) -> torch.Tensor:
    """Return rows [S, D] after rounding to 16 steps between a row's lowest and highest element."""
    low, high = rows.amin(-1, keepdim=True), rows.amax(-1, keepdim=True)
    step = ((high - low) / 15).clamp(min=torch.finfo(rows.dtype).tiny)
    return ((rows - low) / step).round() * step + low


def sketch_bytes(head: Head, channels: int) -> torch.Tensor:
    """Return the bytes of `channels` of all keys that a token sees, in 4 bits [T]."""
    return head.seen * (channels / 2 + FACTORS)


def share_of(name: str, value: float) -> None:
    """Require a share.

    Raises:
        InputError: It is not in (0, 1].
    """
    if not 0 < value <= 1:
        raise InputError(f"{name}={value}: must be in (0, 1]")


@dataclass(frozen=True)
class Exact:
    """Reads all."""

    def attend(self, head: Head) -> Selected:
        """Return the outputs and the bytes read."""
        rows = head.sees.expand(len(head.q), -1, -1)
        return read(head, rows, head.nothing)


@dataclass(frozen=True)
class ByMass:
    """Selects rows until they have the share `mass` of some weights."""

    mass: float = 0.9

    def __post_init__(self) -> None:
        share_of("mass", self.mass)


@dataclass(frozen=True)
class Oracle(ByMass):
    """The rows of the largest weights that have the share `mass`, found for nothing."""

    def attend(self, head: Head) -> Selected:
        """Return the outputs and the bytes read."""
        return read(head, with_mass(head.scores(), self.mass), head.nothing)


def with_mass(scores: torch.Tensor, mass: float) -> torch.Tensor:
    """Return the fewest rows whose softmax weights sum to `mass`, [R, T, S]."""
    weights = scores.softmax(-1)
    wanted = mass * weights.sum(-1, keepdim=True)
    return largest(scores, wanted, weights) & (scores > NEVER)


@dataclass(frozen=True)
class Twilight(ByMass):
    """The rows with the share `mass` of the weights that 4-bit keys give."""

    def attend(self, head: Head) -> Selected:
        """Return the outputs and the bytes read."""
        rows = with_mass(head.scores(in_four_bits(head.k)), self.mass)
        return read(head, rows, sketch_bytes(head, head.size))


@dataclass(frozen=True)
class DoubleSparsity:
    """The share `rows` of the keys, chosen by the share `channels` of their channels."""

    rows: float = 0.25
    channels: float = 0.25

    def __post_init__(self) -> None:
        share_of("rows", self.rows)
        share_of("channels", self.channels)

    def attend(self, head: Head) -> Selected:
        """Return the outputs and the bytes read."""
        count = math.ceil(self.channels * head.size)
        labels = torch.zeros_like(head.k)
        chosen = head.channels[:count]
        labels[:, chosen] = in_four_bits(head.k[:, chosen])
        return read(head, most(head, head.scores(labels), self.rows), sketch_bytes(head, count))


@dataclass(frozen=True)
class SparQ:
    """The share `rows` of the keys, chosen by the largest elements of a query.

    `channels` is the share of the elements that are used.
    """

    rows: float = 0.25
    channels: float = 0.25

    def __post_init__(self) -> None:
        share_of("rows", self.rows)
        share_of("channels", self.channels)

    def attend(self, head: Head) -> Selected:
        """Return the outputs and the bytes read."""
        count = math.ceil(self.channels * head.size)
        sizes = head.q.abs()
        chosen = sizes.sum(0).topk(count, dim=-1).indices  # [T, count]
        kept = torch.zeros_like(sizes[0]).scatter(-1, chosen, 1.0)
        heat = ((sizes * kept).sum(-1) / sizes.sum(-1)).sqrt()[..., None]
        scores = ((head.q * kept / heat) @ head.k.T).masked_fill(~head.sees, NEVER)
        weights = scores.softmax(-1)  # p'
        shared = weights.sum(0, keepdim=True)
        newest = head.newest((self.rows / 4 * head.seen).ceil())
        first = shared.masked_fill(newest, torch.inf).nan_to_num(posinf=2.0 * len(head.q))
        rows = most(head, first, self.rows).expand_as(weights)
        found = head.seen * count * BYTES + BYTES * head.size  # channels of keys, the mean value
        exact = read(head, rows, found)
        covered = (weights * rows).sum(-1, keepdim=True)
        mean = head.sees.float() @ head.v / head.seen[:, None]
        return Selected(covered * exact.output + (1 - covered) * mean, exact.bytes)


@dataclass(frozen=True)
class MagicPIG:
    """Rows that share a bucket with the query in at least 2 hash tables."""

    bits: int = 10
    tables: int = 150
    oldest: int = 4
    newest: int = 64

    def attend(self, head: Head) -> Selected:
        """Return the outputs and the bytes read."""
        centred = head.k - head.k[head.sees[0]].mean(0)  # a shift that changes no softmax
        planes = head.drawn(torch.randn, (head.size, self.tables * self.bits))
        of_queries, of_keys = self._hashes(head.q @ planes), self._hashes(centred @ planes)
        shape = *head.q.shape[:2], len(head.k)
        count = torch.zeros(shape, dtype=torch.uint8, device=head.q.device)
        for table in range(self.tables):
            count += of_queries[..., table, None] == of_keys[:, table]
        always = (head.oldest(self.oldest) | head.newest(self.newest)).expand(count.shape)
        rows = ((count >= COLLISIONS) & head.sees) | always
        entries = ((count * head.sees).float()).sum((0, 2))
        cosines = (
            torch.nn.functional.normalize(head.q, dim=-1)
            @ torch.nn.functional.normalize(centred, dim=-1).mT
        )
        chance = self._chance(1 - cosines.clamp(-1, 1).acos() / math.pi)
        return read(head, rows, ID * entries, chance.clamp(min=1e-9).log().masked_fill(always, 0.0))

    def _hashes(self, projected: torch.Tensor) -> torch.Tensor:
        """Return the buckets [..., tables] of projections [..., tables * bits]."""
        signs = (projected > 0).view(*projected.shape[:-1], self.tables, self.bits).int()
        buckets = signs << torch.arange(self.bits, dtype=torch.int32, device=signs.device)
        return buckets.sum(-1, dtype=torch.int32)

    def _chance(self, alike: torch.Tensor) -> torch.Tensor:
        """Return the chance of at least 2 collisions, for the chance that a sign is `alike`."""
        each = alike**self.bits
        none = (1 - each) ** self.tables
        once = self.tables * each * (1 - each) ** (self.tables - 1)
        return 1 - none - once


@dataclass(frozen=True)
class VAttention:
    """The rows of the largest weights, and a sample of the others, as large as `eps` asks for.

    `heavy` and `base` are shares of the rows that a token sees: those of the largest weights, and
    the sample from which the size of the whole sample follows.
    """

    eps: float = 0.1
    delta: float = 0.1
    heavy: float = 0.05
    base: float = 0.05
    oldest: int = 4
    newest: int = 64

    def __post_init__(self) -> None:
        for name in ("eps", "delta", "heavy", "base"):
            share_of(name, getattr(self, name))

    def attend(self, head: Head) -> Selected:
        """Return the outputs and the bytes read."""
        rows = most(head, head.scores(in_four_bits(head.k)), self.heavy)
        rows = rows | head.oldest(self.oldest) | head.newest(self.newest)
        others = head.sees & ~rows
        chance = head.drawn(torch.rand, rows.shape)
        scores = head.scores()
        share = self._share(scores, rows, others, chance)
        sampled = others & (chance < share)
        logs = share.clamp(min=1e-9).log().expand_as(scores).masked_fill(rows, 0.0)
        return read(head, rows | sampled, sketch_bytes(head, head.size), logs)

    def _share(
        self,
        scores: torch.Tensor,
        rows: torch.Tensor,
        others: torch.Tensor,
        chance: torch.Tensor,
    ) -> torch.Tensor:
        """Return the share of the `others` to sample [R, T, 1], from their rows below `base`."""
        e = (scores - scores.amax(-1, keepdim=True)).exp()
        base = others & (chance < self.base)
        drawn = base.sum(-1, keepdim=True).clamp(min=2)
        mean = (e * base).sum(-1, keepdim=True) / drawn
        variance = ((e - mean).square() * base).sum(-1, keepdim=True) / (drawn - 1)
        count = others.sum(-1, keepdim=True)
        whole = (e * rows).sum(-1, keepdim=True) + count * mean  # the softmax's denominator
        z = NormalDist().inv_cdf(1 - self.delta / 2)
        wanted = variance * (z * count / (self.eps * whole)).square()
        return (wanted / count.clamp(min=1)).clamp(self.base, 1)
