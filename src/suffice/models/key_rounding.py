"""How keys in 4-bit codes are rounded, found out from what a model makes of random tokens.

The error e of a key changes the score of a query q by q.e, so what counts is e' S e, S = E[q q'],
rather than e' e. Queries of a head have few directions, and what is wrong in the others costs
little. With S = (1 + A)' diag(w) (1 + A), A strictly lower triangular,

    e' S e = sum over i of w[i] (e[i] + sum over j < i of A[i, j] e[j])^2

so elements are coded one after the other, and each makes up for the errors of those before it as
well as its levels allow. Before that the direction of the mean key is taken out, which holds most
of a key's length, and is kept as a factor of its own.

A query's weight in S is how much its attention can be changed: with p the weights of the keys that
it sees, the sum of p (1 - p). Random tokens do as well as a text here. The first ones are left out:
their keys are unlike all others (attention sinks, Xiao et al. 2023).

Source   Errors that are passed on: Frantar et al. 2022 (GPTQ), and Chee et al. 2023 (QuIP), section
         3, for weights, given their inputs. For keys, given their queries, and the mean: this
         project.
Cost     a prompt of 512 tokens when a model is loaded; about 5 D^2 multiplications when a key of D
         elements is stored, and one when it is read.
Native   csrc/kernels/row_codes.inl
"""

from __future__ import annotations

import torch

from suffice.cache.kv import MAX_TENTATIVE, KVCache
from suffice.cache.upfront import Upfront
from suffice.models.config import DecoderConfig
from suffice.models.native_model import NativeModel, Rows
from suffice.native import core
from suffice.quant import hadamard

__all__ = ["factors", "key_rounding"]

TOKENS = 512
SINKS = 4  # tokens that are left out
DAMPING = 0.02  # of the mean of S's diagonal, which is added to it


def key_rounding(model: NativeModel, config: DecoderConfig, positions: int) -> core.KeyRoundings:
    """Return how the keys of each layer and head are rounded.

    At most `positions` tokens are run, as many as the model has.
    """
    means, moments = observed(model, config, positions)
    found = [factors(own) for own in moments.flatten(0, 1)]
    passed, weights = (torch.stack(part) for part in zip(*found, strict=True))
    parts = means.float(), passed.view(moments.shape), weights.view(means.shape)
    return core.KeyRoundings(*(part.contiguous().numpy() for part in parts))


def observed(
    model: NativeModel, config: DecoderConfig, positions: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean keys [L, G, D] and S of the queries [L, G, D, D], rotated."""
    count = min(TOKENS, positions, config.longest_prompt)
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocab, (count,), generator=random).tolist()
    seen = _Seen(config, count)
    for start in range(0, count, MAX_TENTATIVE):
        part = tokens[start : start + MAX_TENTATIVE]
        model.step([Rows(seen.cache, part, outputs="none")], exact=True, watch=seen.add)
        seen.cache.commit(list(range(len(part))))
    means = [seen.cache.keys(i)[:, seen.first :].mean(1) for i in range(len(config.layers))]
    block = config.head_size & -config.head_size
    half = hadamard.rotate(seen.moments, block)
    return hadamard.rotate(torch.stack(means), block), hadamard.rotate(half.mT, block)


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
