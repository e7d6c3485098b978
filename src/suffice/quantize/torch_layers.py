"""The parts of a decoder in PyTorch, as functions of float32 activations [T, M]."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch.nn import functional

from suffice.backends.cpu.linear import unpack, unpack_rows
from suffice.decoder.routing import Experts
from suffice.quant.packed_codes import PackedCodes
from suffice.quant.panels import ROWS, PackedLinear
from suffice.quantize.torch_sites import coded_inputs

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "squared_relu": lambda x: functional.relu(x).square(),
}
_CLAMP, _ALPHA = 7.0, 1.702


def gated(activation: str, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return act(gate) * up, or what takes its place."""
    if activation != "clamped_swish":
        return ACTIVATIONS[activation](gate) * up
    gate, up = gate.clamp(max=_CLAMP), up.clamp(-_CLAMP, _CLAMP)
    return (up + 1) * (gate * torch.sigmoid(_ALPHA * gate))


def xielu(x: torch.Tensor, a: float, b: float, beta: float, eps: float) -> torch.Tensor:
    """Return a x^2 + beta x above 0, and b (e^min(x, eps) - 1 - x) + beta x below."""
    below = b * (torch.expm1(x.clamp(max=eps)) - x)
    return torch.where(x > 0, a * x * x, below) + beta * x


def capped(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Return cap * tanh(x / cap), or x if `cap` is 0."""
    return cap * torch.tanh(x / cap) if cap else x


_SCRATCH_ELEMENTS = 1 << 24  # of a weight, unpacked at a time


def linear(
    x: torch.Tensor, weight: PackedLinear, dtype: torch.dtype, elements: int | None = None
) -> torch.Tensor:
    """Multiply [T, K] by a packed weight and add its bias: [T, N].

    The matmul runs in `dtype` where x is, over a block of output rows at a time, see
    `dense_blocks`.
    """
    if isinstance(weight, PackedCodes) and weight.site is not None:
        x = coded_inputs(weight, x.detach())
    blocks = dense_blocks(weight, x.device, elements)
    outputs = [(x.to(dtype) @ part.to(dtype).T).float() for part in blocks]
    y = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
    return y if weight.bias is None else y.add_(torch.from_numpy(weight.bias).to(x.device))


def dense(weight: PackedLinear) -> torch.Tensor:
    """Return the dense float32 weight [N, K] of a packed one."""
    return torch.from_numpy(unpack(weight))


_MOVED: WeakKeyDictionary[PackedLinear, torch.Tensor] = WeakKeyDictionary()


def dense_blocks(
    weight: PackedLinear, device: torch.device, elements: int | None = None
) -> Iterator[torch.Tensor]:
    """Yield a packed weight [N, K] as dense float32 blocks of rows.

    On the host they have about `elements` at most, so the dense weight of a large vocabulary never
    exists as a whole. Another device has one block, which stays there as long as the packed weight.
    """
    if device.type == "cpu":
        yield from map(dense, row_blocks(weight, elements))
        return
    found = _MOVED.get(weight)
    if found is None or found.device != device:
        found = _MOVED[weight] = dense(weight).to(device)
    yield found


def row_blocks(weight: PackedLinear, elements: int | None = None) -> Iterator[PackedLinear]:
    """Yield a packed weight [N, K] in blocks of rows, each of about `elements` at most."""
    step = max(1, (elements or _SCRATCH_ELEMENTS) // (weight.columns * ROWS))
    panels = weight.data.shape[0]
    if panels <= step:
        yield weight
        return
    for panel in range(0, panels, step):
        first = panel * ROWS
        block = rows_of(weight, first, min(step * ROWS, weight.rows - first))
        yield replace(block, bias=None)


def rows_of(weight: PackedLinear, first: int, count: int) -> PackedLinear:
    """Return rows of a packed weight, which begin and end with a panel or end with the weight."""
    rows = slice(first, first + count)
    return replace(
        weight,
        data=weight.data[first // ROWS : -(-rows.stop // ROWS)],
        rows=count,
        scale=None if weight.scale is None else weight.scale[rows],
        bias=None if weight.bias is None else weight.bias[rows],
    )


def gather_rows(weight: PackedLinear, rows: torch.Tensor) -> torch.Tensor:
    """Return some rows [T] of a packed weight as float32 [T, K]."""
    return torch.from_numpy(unpack_rows(weight, rows.tolist()))


def route(logits: torch.Tensor, experts: Experts, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return the weights [T, E] of the experts of each row; 0 where one is not chosen.

    A `bias` [E] is added to scores for the choice alone.
    """
    scores, left = logits, torch.ones_like(logits, dtype=torch.bool)
    for step in experts.steps:
        ranks = scores if bias is None else scores + bias
        if step == "in_turn":
            scores = _in_turn(scores, experts)
            left = scores > 0
        elif step == "top":
            left = _greatest(ranks.masked_fill(~left, -torch.inf), experts.chosen)
        elif step in ("best_groups", "best_pairs"):
            of_group = ranks.reshape(len(ranks), experts.groups, -1)
            best = of_group.topk(2 if step == "best_pairs" else 1, dim=-1).values.sum(dim=-1)
            kept = _greatest(best, experts.kept_groups)
            left = kept.repeat_interleave(of_group.shape[-1], dim=1)
        elif step == "sigmoid":
            scores = scores.sigmoid()
        elif step == "softmax":
            scores = scores.masked_fill(~left, -torch.inf).softmax(dim=-1)
        else:
            scores = scores / scores.where(left, 0.0).sum(dim=-1, keepdim=True)
    return experts.scale * scores.where(left, 0.0)


def _in_turn(scores: torch.Tensor, experts: Experts) -> torch.Tensor:
    """Return the weights of the greatest scores, each among those after it that are close."""
    rest, weights = scores, torch.zeros_like(scores)
    for _ in range(experts.chosen):
        best, at = rest.max(dim=-1, keepdim=True)
        far = (best - scores) / torch.maximum(scores.abs(), best) > experts.margin
        shares = rest.masked_fill(far, -torch.inf).softmax(dim=-1)
        weights = weights.scatter(1, at, shares.gather(1, at))
        rest = rest.scatter(1, at, -torch.inf)
    return weights


def _greatest(ranks: torch.Tensor, count: int) -> torch.Tensor:
    """Return which [T, E] are the `count` greatest of each row; of equal ones, the first."""
    best = ranks.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    ones = torch.ones_like(best, dtype=torch.bool)
    return torch.zeros_like(ranks, dtype=torch.bool).scatter(1, best, ones)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Divide [..., M] by its root mean square and multiply by `weight`."""
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """Normalize [..., M] to mean 0 and variance 1, multiply by `weight` and add a `bias`."""
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (d, d + P) of the first 2 P entries of heads [H, T, D] by tables [T, P]."""
    pairs = cos.shape[-1]
    low, high, rest = torch.split(x, [pairs, pairs, x.shape[-1] - 2 * pairs], dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin, rest), dim=-1)


def rotate_neighbours(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (2 d, 2 d + 1) of heads [H, T, 2 P] by tables [T, P]."""
    low, high = x[..., ::2], x[..., 1::2]
    return torch.stack((low * cos - high * sin, high * cos + low * sin), dim=-1).flatten(-2)


def visible(
    new: int, rows: int, window: int | None, device: torch.device | None = None
) -> torch.Tensor:
    """Return the mask [T, S] of the rows that each of the last T of S rows sees."""
    every = torch.arange(rows, device=device)
    distance = every[rows - new :, None] - every
    return (distance >= 0) & (distance < (window or rows))


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    window: int | None,
    cap: float = 0.0,
    spare: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of the last T of S rows: q [H, T, D], k and v [G, S, D] to [H, T, D].

    Each query sees the rows up to its own, the last `window` of them if given. Scores have a `cap`,
    unless it is 0; `spare` [H] are logits of heads that take part without a value.
    """
    new, rows = q.shape[1], k.shape[1]
    if window is not None and rows > new + window - 1:
        # no query of this chunk sees keys before this one
        k, v = k[:, -(new + window - 1) :], v[:, -(new + window - 1) :]
        rows = k.shape[1]
    if cap or spare is not None:
        return _attend_in_full(q, k, v, scale, visible(new, rows, window, q.device), cap, spare)
    mask = None
    if new > 1 and (rows > new or (window is not None and window < new)):
        mask = visible(new, rows, window, q.device)
    return functional.scaled_dot_product_attention(
        q[None],
        k[None],
        v[None],
        attn_mask=mask,
        is_causal=mask is None and new > 1,
        scale=scale,
        enable_gqa=True,
    )[0]


def _attend_in_full(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    mask: torch.Tensor,
    cap: float,
    spare: torch.Tensor | None,
) -> torch.Tensor:
    """As `attend`, with all scores in memory; `mask` [T, S] are the rows that queries see."""
    group = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    return soften(masked_scores(q, k, scale, mask, cap), spare) @ v


def masked_scores(
    q: torch.Tensor, k: torch.Tensor, scale: float, mask: torch.Tensor, cap: float
) -> torch.Tensor:
    """Return scores [..., T, S] of q [..., T, D] and k [..., S, D]; -infinity outside the mask."""
    return capped(q @ k.mT * scale, cap).masked_fill(~mask, -torch.inf)


def soften(scores: torch.Tensor, spare: torch.Tensor | None) -> torch.Tensor:
    """Return the softmax of scores [H, ..., S], without the weight of a `spare` logit [H]."""
    if spare is None:
        return scores.softmax(dim=-1)
    column = spare.view(-1, *[1] * (scores.dim() - 1)).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), dim=-1).softmax(dim=-1)[..., :-1]
