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
from suffice.backends.triton.call import UNIT, Held, Tokens
from suffice.backends.triton.rules import HeadRules
from suffice.cache import BLOCK
from suffice.errors import InputError

# A copy of this package under another name, as hubs of kernels load it, has operators of its own.
NAMESPACE = __name__.partition(".")[0]
STATELESS = ("art", "exact", "skip_softmax")
WORKSPACE = 1 << 28  # bytes of partial results; more tokens are computed one part after another


@functools.cache
def rule_named(technique: str) -> AttentionRule:
    """Return the rule of a technique that a call needs nothing of earlier ones for.

    Raises:
        InputError: Another technique, or thresholds of a calibration, which differ by head.
    """
    name, _, _ = ATTENTIONS.split(technique)
    if name not in STATELESS:
        raise InputError(
            f"attention '{name}' of decode_attention: must be {', '.join(STATELESS)}, which keep "
            "nothing from token to token"
        )
    made = ATTENTIONS.build(technique)
    if made.calibrated:
        raise InputError(f"attention '{technique}' of decode_attention: give its thresholds")
    rule: AttentionRule = made.rule() or READ_ALL
    if rule.parameters.get("by_sketch"):
        raise InputError(
            f"attention '{technique}' of decode_attention: order must be newest: sketches are kept "
            "from token to token"
        )
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
            for. Memory for partial results grows with it, up to 256 MiB or what one token needs.

    Returns:
        The output [N, H, D], and int32 [3, N, G]: rows of keys and of values that it is made of,
        and how many of both came from memory.

    Raises:
        InputError: A technique, a shape or a type that the kernels do not have, tensors on several
            devices, or on a CPU without Triton's interpreter.
    """
    _check(q, keys, values, table, owner, first, length)
    if q.device.type == "cpu" and not triton.knobs.runtime.interpret:
        raise InputError("decode_attention on 'cpu': must be a GPU, or set TRITON_INTERPRET=1")
    held = Held(keys, values, None if table is None else table.contiguous())
    room = keys.shape[2] if table is None else table.shape[1] * held.page
    rules = _rules(technique, held.heads, q.device)
    most = room if most is None else most
    found = []
    count = _tokens_at_once(rules, q, most)
    for begin in range(0, max(q.shape[0], 1), count):
        own = slice(begin, begin + count)
        mine, begins, ends = (each[own].contiguous() for each in (owner, first, length))
        tokens = Tokens(mine, begins, ends, most)
        out, reads = attend(rules, q[own], held, tokens, scale=scale)
        found.append((out, torch.stack((reads.keys, reads.values, reads.fetched))))
    if len(found) == 1:  # as nearly always: nothing is copied
        return found[0]
    outputs, counts = zip(*found, strict=True)
    return torch.cat(outputs), torch.cat(counts, 1)


def _tokens_at_once(rules: HeadRules, q: torch.Tensor, most: int) -> int:
    """Return for how many tokens there is room for partial results of `most` rows."""
    unit = UNIT if rules.kind != "art" else BLOCK * int(rules.parameters["check_blocks"])
    floats = (q.shape[-1] + 2) * -(-most // unit) + most * (rules.kind == "skip_softmax")
    return max(WORKSPACE // (4 * q.shape[1] * max(floats, 1)), 1)


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
    _check(q, keys, values, table, owner, first, length)
    heads = Held(keys, values, table).heads
    return torch.empty_like(q), owner.new_empty(3, q.shape[0], heads)


def _check(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor | None,
    *of_tokens: torch.Tensor,
) -> None:
    for name, each, dims in (("q", q, 3), ("keys", keys, 4), ("values", values, 4)):
        if each.dim() != dims:
            raise InputError(f"{name} {list(each.shape)}: must have {dims} dimensions")
    for name, each in zip(("owner", "first", "length"), of_tokens, strict=True):
        if each.dtype != torch.int32 or each.dim() != 1 or each.shape[0] != q.shape[0]:
            raise InputError(
                f"{name}: {each.dtype} {list(each.shape)}: must be torch.int32 [{q.shape[0]}]"
            )
    if table is not None and (table.dtype != torch.int32 or table.dim() != 2):
        raise InputError(f"table: {table.dtype} {list(table.shape)}: must be torch.int32 [B, P]")
    every = [each for each in (q, keys, values, table, *of_tokens) if each is not None]
    places = sorted({str(each.device) for each in every})
    if len(places) > 1:
        raise InputError(f"tensors on {', '.join(places)}: must be on one device")
