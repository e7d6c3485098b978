"""Decode attention as an operator of PyTorch: `torch.ops.suffice.decode_attention`.

Importing this module registers it. torch.compile and torch.export trace it as one call: they know
its results' shapes, and that it changes none of its arguments.
"""

from __future__ import annotations

import functools

import torch
import triton

from suffice.attention import ATTENTIONS
from suffice.attention.rule import READ_ALL, AttentionRule
from suffice.backends.triton.attend import attend
from suffice.backends.triton.call import Held, Tokens
from suffice.backends.triton.rules import HeadRules
from suffice.errors import InputError

# A copy of this package under another name, as hubs of kernels load it, has operators of its own.
NAMESPACE = __name__.partition(".")[0]
STATELESS = ("art", "exact", "skip_softmax")


@functools.cache
def rule_named(technique: str) -> AttentionRule:
    """Return the rule of a technique that a call needs nothing of earlier ones for.

    Raises:
        InputError: Another technique, or thresholds of a calibration, which differ by head.
    """
    name, _, _ = ATTENTIONS.split(technique)
    if name not in STATELESS:
        raise InputError(
            f"attention '{name}' of decode_attention: must be {', '.join(STATELESS)}: others "
            "keep a state or sketches from token to token"
        )
    made = ATTENTIONS.build(technique)
    if made.calibrated:
        raise InputError(f"attention '{technique}' of decode_attention: give its thresholds")
    rule: AttentionRule = made.rule() or READ_ALL
    return rule


@functools.cache
def _rules(technique: str, heads: int, device: torch.device) -> HeadRules:
    return HeadRules.of([rule_named(technique)] * heads, device)


@torch.library.custom_op(f"{NAMESPACE}::decode_attention", mutates_args=())
def decode_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor | None,
    owner: torch.Tensor,
    first: torch.Tensor,
    length: torch.Tensor,
    technique: str,
    scale: float,
    most: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention of N tokens' queries q [N, H, D], and what was read for it.

    Args:
        q: As float16, bfloat16 or float32, which keys and values must be too.
        keys: Contiguous, [B, G, C, D] for B requests and G key/value heads; or in pages, [pages,
            rows, G, D]. The elements of a head lie together; all other strides are free.
        values: As keys, with the same strides.
        table: int32 [B, P], the pages of each request in order; None: rows are contiguous.
        owner: int32 [N], the request whose rows a token sees.
        first: int32 [N], the first row that it sees.
        length: int32 [N], the row after the last one.
        technique: "exact", or "art" or "skip_softmax" with options such as "art:change=0.01".
        scale: What scores are multiplied by.
        most: At least the largest `length`, without asking the device; None: what there is room
            for. Memory for partial results grows with it.

    Returns:
        The output [N, H, D], and int32 [3, N, G]: rows of keys and of values that it is made of,
        and how many of both came from memory.

    Raises:
        InputError: A technique, a shape or a type that the kernels do not have, or tensors on a
            CPU without Triton's interpreter.
    """
    _check(q, owner, first, length)
    if q.device.type == "cpu" and not triton.knobs.runtime.interpret:
        raise InputError("decode_attention on 'cpu': must be a GPU, or set TRITON_INTERPRET=1")
    held = Held(keys, values, table)
    room = held.keys.shape[2] if table is None else table.shape[1] * held.page
    tokens = Tokens(owner, first, length, most or room)
    rules = _rules(technique, held.heads, q.device)
    out, reads = attend(rules, q, held, tokens, scale=scale)
    return out, torch.stack((reads.keys, reads.values, reads.fetched))


@decode_attention.register_fake
def _(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor | None,
    owner: torch.Tensor,
    first: torch.Tensor,
    length: torch.Tensor,
    technique: str,
    scale: float,
    most: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    rule_named(technique)
    _check(q, owner, first, length)
    heads = Held(keys, values, table).heads
    return torch.empty_like(q), owner.new_empty(3, q.shape[0], heads)


def _check(q: torch.Tensor, *of_tokens: torch.Tensor) -> None:
    for name, each in zip(("owner", "first", "length"), of_tokens, strict=True):
        if each.dtype != torch.int32 or each.dim() != 1 or each.shape[0] != q.shape[0]:
            raise InputError(
                f"{name}: {each.dtype} {list(each.shape)}: must be torch.int32 [{q.shape[0]}]"
            )
