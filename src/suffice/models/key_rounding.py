"""How keys in 4-bit codes are rounded, found out from what a model makes of a text.

A key's channels differ in size, those of slow rotations by position most. A Hadamard rotation gives
each of its elements a part of the largest and so an error of that size. Channels are therefore
multiplied by scales first, one over the root of a channel's mean square and FLOOR of their mean,
and those of queries divided by them, which leaves scores as they are.

The error e of a key changes the score of a query q by q.e, so what counts is e' S e, S = E[q q'],
rather than e' e. Queries of a head have few directions, and what is wrong in the others costs
little. With S = (1 + A)' diag(w) (1 + A), A strictly lower triangular,

    e' S e = sum over i of w[i] (e[i] + sum over j < i of A[i, j] e[j])^2

so elements are coded one after the other, and each makes up for the errors of those before it as
well as its levels allow. Before that the direction of the mean key is taken out, which holds most
of a key's length, and is kept as a factor of its own.

A query's weight in S is how much its attention can be changed: with p the weights of the keys that
it sees, the sum of p (1 - p). The first tokens are left out: their keys are unlike all others
(attention sinks, Xiao et al. 2023). Random tokens do instead of a text, not as well.

Positions turn keys, slow channels of keys further on to where they were not before. A text that
begins later has the same keys and queries, turned by where it begins, so one run tells of them too:
all is the mean over such texts in a row, of which the first count most.

Source   Errors that are passed on: Frantar et al. 2022 (GPTQ), and Chee et al. 2023 (QuIP), section
         3, for weights, given their inputs. Scales that move between factors: Xiao et al. 2022
         (SmoothQuant), for inputs and weights. For keys, given their queries, and the mean: this
         project.
Cost     a prompt of 1024 tokens when a model is loaded; about 5 D^2 multiplications when a key of D
         elements is stored, and two when it is read.
Native   csrc/kernels/kv_kmeans4.inl
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from suffice.cache.growth import Upfront
from suffice.cache.kv import MAX_TENTATIVE, KVCache
from suffice.models.config import DecoderConfig, Rope
from suffice.models.layers import rotate
from suffice.models.native_model import NativeModel, StepRows
from suffice.models.rope import rope_table
from suffice.native import core
from suffice.quant import hadamard

__all__ = ["Observed", "factors", "key_rounding", "rounding_of"]

TOKENS = 1024
POSITIONS = 4096  # at most, that texts of so many tokens are spread over
SINKS = 4  # tokens that are left out
DAMPING = 0.02  # of the mean of S's diagonal, which is added to it
FLOOR = 0.3  # of the mean of all channels' mean squares, which is added to each


@dataclass(frozen=True)
class Observed:
    """What is known of a model's keys and queries, by layer and head [L, G].

    `means` [L, G, D] are the mean keys, `squares` the mean squares of what keys have beside that
    direction, and `moments` [L, G, D, D] are S of the queries.
    """

    means: torch.Tensor
    squares: torch.Tensor
    moments: torch.Tensor


def key_rounding(
    model: NativeModel, config: DecoderConfig, positions: int, sample: Sequence[int] = ()
) -> core.KeyRoundings:
    """Return how the keys of each layer and head are rounded.

    Keys are to have up to `positions` positions. At most as many tokens are run, those of `sample`,
    and if they do not suffice random ones.
    """
    return rounding_of(observed(model, config, positions, sample))


def rounding_of(seen: Observed) -> core.KeyRoundings:
    """Return how keys are rounded of which some are known."""
    scales, block = scales_of(seen.squares), rotation_of(seen.means.shape[-1])
    means = hadamard.rotate(seen.means * scales, block)
    scaled = seen.moments / (scales[..., None] * scales[..., None, :])
    moments = hadamard.rotate(hadamard.rotate(scaled, block).mT, block)
    found = [factors(own) for own in moments.flatten(0, 1)]
    passed, weights = (torch.stack(part) for part in zip(*found, strict=True))
    parts = scales, means, passed.view(moments.shape), weights.view(means.shape)
    return core.KeyRoundings(*(part.float().contiguous().numpy() for part in parts))


def rotation_of(size: int) -> int:
    """Return in which blocks keys of `size` elements are rotated."""
    return size & -size


def scales_of(squares: torch.Tensor) -> torch.Tensor:
    """Return the scales of channels [..., D] of which the mean squares are given."""
    mean = squares.mean(-1, keepdim=True)
    known = torch.where(mean > 0, squares / mean, 1.0)
    return (known + FLOOR).rsqrt()


def observed(
    model: NativeModel, config: DecoderConfig, positions: int, sample: Sequence[int] = ()
) -> Observed:
    """Run tokens through a model and return what is known of its keys and queries then."""
    count = min(TOKENS, positions, config.longest_prompt)
    random = torch.Generator().manual_seed(0)
    tokens = [token for token in sample if token < config.vocab][:count]
    tokens += torch.randint(config.vocab, (count - len(tokens),), generator=random).tolist()
    seen = _Seen(config, count)
    for start in range(0, count, MAX_TENTATIVE):
        part = tokens[start : start + MAX_TENTATIVE]
        model.step([StepRows(seen.cache, part, outputs="none")], exact=True, watch=seen.add)
        seen.cache.commit(list(range(len(part))))
    begins = range(0, min(positions, POSITIONS), count)
    shares = _shares(len(begins))
    turns = [[_turn(config, rope, begin) for begin in begins] for rope in config.ropes]
    means, squares, moments = [], [], []
    for index, layer in enumerate(config.layers):
        own = turns[layer.rope] if layer.rope is not None else []
        keys, products = seen.cache.keys(index)[:, seen.first :], seen.moments[index]
        later = [rotate(keys, *by) for by in own] or [keys]
        turned = [rotate(rotate(products, *by).mT, *by) for by in own] or [products]
        means.append(_mixed([each.mean(1) for each in later], shares))
        beside = [_beside(each, means[-1]).double().square().mean(1) for each in later]
        squares.append(_mixed(beside, shares))
        moments.append(_mixed(turned, shares))
    return Observed(torch.stack(means), torch.stack(squares), torch.stack(moments))


def _shares(count: int) -> torch.Tensor:
    """Return how often the positions of each of so many texts in a row are met, all together 1.

    Whoever comes to a position was at all before it: where contexts of every length are as
    frequent, the last text is met half as often as a context ends in it, each before once more.
    """
    times = torch.arange(count, 0, -1) - 0.5
    return times / times.sum()


def _mixed(values: list[torch.Tensor], shares: torch.Tensor) -> torch.Tensor:
    """Return the mean of values [...], each with its share; of one alone itself."""
    if len(values) == 1:
        return values[0]
    mixed: torch.Tensor = torch.tensordot(shares.to(values[0].dtype), torch.stack(values), dims=1)
    return mixed


def _turn(config: DecoderConfig, rope: Rope, by: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cosines and sines [1, D/2] that turn keys to where they are `by` tokens later."""
    cos, sin = rope_table(rope, config.head_size, config.trained_positions, 1, by)
    factor = torch.hypot(cos, sin)
    return cos / factor, sin / factor


def _beside(keys: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
    """Return what keys [G, T, D] have beside the directions [G, D]."""
    unit = torch.nn.functional.normalize(means, dim=-1)[:, None]
    return keys - (keys * unit).sum(-1, keepdim=True) * unit


def factors(second_moments: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A transposed, [D, D], and w [D], float32, of S [D, D], damped and of mean 1."""
    size = len(second_moments)
    mean = second_moments.trace().item() / size
    identity = torch.eye(size, dtype=torch.float64)
    damped = second_moments.double() / mean + DAMPING * identity if mean > 0 else identity
    upper = torch.linalg.cholesky(damped.flip(0, 1)).flip(0, 1)
    roots = upper.diagonal()
    return (upper / roots - identity).float(), roots.square().float()


class _Seen:
    """The keys of a run, and the second moments of its queries."""

    def __init__(self, config: DecoderConfig, count: int) -> None:
        layers, groups, size = len(config.layers), config.kv_heads, config.head_size
        self.config = config
        self.first = min(SINKS, count - 1)
        self.cache = KVCache(
            layers,
            groups,
            size,
            growth=Upfront(),
            limit=count,
            key_dtype="float32",
            value_dtype="float32",
        )
        self.cache.reserve(count)
        self.moments = torch.zeros(layers, groups, size, size, dtype=torch.float64)

    def add(self, layer: int, queries: torch.Tensor) -> None:
        """Take the queries [H, T, D] of the cache's tentative rows."""
        start, count = self.cache.length, queries.shape[1]
        keys = self.cache.keys(layer, start + count)
        queries = queries.reshape(len(keys), -1, *queries.shape[1:])  # [G, H / G, T, D]
        scores = self.config.attention_scale * queries @ keys[:, None].mT
        distance = torch.arange(start, start + count)[:, None] - torch.arange(start + count)
        seen = (distance >= 0) & (distance < (self.config.layers[layer].window or keys.shape[1]))
        p = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        weights = (p * (1 - p)).sum(-1, keepdim=True)
        kept = slice(max(self.first - start, 0), None)
        left, right = (x[:, :, kept].double().flatten(1, 2) for x in (weights * queries, queries))
        self.moments[layer] += left.mT @ right
