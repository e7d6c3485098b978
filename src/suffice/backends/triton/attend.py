"""Attention of decode steps on a GPU, by the rule of a technique."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from suffice.attention.rule import READ_ALL, AttentionRule
from suffice.backends.triton import stopping
from suffice.backends.triton.aet_sets import AetSet
from suffice.backends.triton.call import LOG2_E, Blocks, Call, Held, Reads, Sums, Tokens
from suffice.backends.triton.heavy_tiles import score_tiles, sum_heavy_tiles
from suffice.backends.triton.sketches import Search, Sketches, estimated, newest, windows_of
from suffice.backends.triton.stopping import AET, ART, FIELDS, read_until_stop
from suffice.backends.triton.whole import join_units, sum_units
from suffice.cache import BLOCK
from suffice.errors import InputError

UNIT = 256  # rows that one program sums up where nothing stops
SIZES = range(16, 257, 16)  # of heads
TYPES = (torch.float16, torch.bfloat16, torch.float32)
KINDS = ("aet", "art", "certified", "read_all", "skip_softmax")
ALL = 1 << 30  # rows: more than there are


def attend(
    rule: AttentionRule | None,
    q: torch.Tensor,
    held: Held,
    tokens: Tokens,
    *,
    scale: float,
    blocks: Blocks | None = None,
    sets: Sequence[AetSet] | None = None,
    sketches: Sketches | None = None,
    splits: int | None = None,
) -> tuple[torch.Tensor, Reads]:
    """Return the output of N tokens' queries q [N, H, D], and what was read for it.

    `rule`: the technique's; None reads all rows. `blocks`: those to read, in order; None: all that
    are seen, newest first. `sets`: the states of `aet`, one for each token, which learn from it.
    `sketches`: of all rows that tokens see, for `certified`.
    `splits`: programs for each token and key/value head where a rule may stop; None: as many as
    fill the device. The output does not depend on it.

    Raises:
        InputError: A rule, a head size or a type that the kernels do not have.
    """
    rule = rule or READ_ALL
    _check(rule, q, held)
    call = Call(q, held, tokens, scale * LOG2_E)
    if rule.kind == "aet":
        assert sets is not None and blocks is None
        return _aet(call, rule, sets, splits)
    if rule.kind == "certified" and not rule.exact:
        assert sketches is not None and blocks is None
        return _certified(call, rule, sketches)
    if rule.kind == "read_all" or rule.exact:
        return _whole(call, blocks)
    if rule.kind == "skip_softmax":
        assert blocks is None
        return _skipping(call, rule)
    return _stopping(call, rule, blocks, splits)


def check_rule(rule: AttentionRule) -> None:
    """Refuse a rule that the kernels do not have.

    Raises:
        InputError: It is another kind, or has parameters that only native code knows.
    """
    if rule.kind not in KINDS:
        raise InputError(f"attention rule '{rule.kind}' on a GPU: must be {', '.join(KINDS)}")
    if rule.softmax_tables or (rule.value_share and rule.kind == "art"):
        raise InputError("a coded softmax or a value filter on a GPU: must be left out")
    if rule.parameters.get("by_rows") or rule.parameters.get("by_sketch"):
        raise InputError("rows one by one or by sketches on a GPU: must be blocks, newest first")
    if rule.kind == "certified" and rule.value_share:
        raise InputError("certified: values above 0 on a GPU: must be 0")


def _check(rule: AttentionRule, q: torch.Tensor, held: Held) -> None:
    check_rule(rule)
    if q.shape[-1] not in SIZES:
        raise InputError(
            f"heads of size {q.shape[-1]}: must be a multiple of {SIZES.step} from {SIZES.start} "
            f"to {SIZES[-1]}"
        )
    if q.shape[1] % held.heads:
        raise InputError(
            f"{q.shape[1]} query heads for {held.heads} key/value heads: must be a multiple"
        )
    for name, each in (("queries", q), ("keys", held.keys), ("values", held.values)):
        if each.dtype not in TYPES or each.dtype != q.dtype:
            raise InputError(
                f"{name} are {each.dtype}: must be {' or '.join(map(str, TYPES))}, all the same"
            )
        if each.stride(-1) != 1:
            raise InputError(f"{name}: the elements of a head must lie together")
    if held.keys.stride() != held.values.stride():
        raise InputError("keys and values lie differently: their strides must be the same")


def _whole(call: Call, listed: Blocks | None) -> tuple[torch.Tensor, Reads]:
    _add_all(call, call.none(), listed, UNIT)
    shape = call.count, call.heads
    seen = (call.tokens.length - call.tokens.first)[:, None].expand(shape)
    read = seen if listed is None else call.rows_of(listed)
    return call.out, Reads(read, read, 2 * read)


def _add_all(
    call: Call, sums: Sums, listed: Blocks | None, unit: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add all rows, or a list's, to sums; store the output; return peaks and totals of units."""
    units = call.units(unit, listed)
    of_units = call.of_units(units)
    sum_units[(units, call.pairs)](
        *call.inputs(listed), *of_units, call.scale, call.heads, units,
        *call.strides(listed), **call.shapes(unit, listed),
    )  # fmt: skip
    _join(call, sums, listed, unit, of_units)
    return of_units[:2]


def _join(
    call: Call, sums: Sums, listed: Blocks | None, unit: int, of_units: tuple[torch.Tensor, ...]
) -> None:
    """Add the sums of units to sums; store the output."""
    join_units[(call.pairs,)](
        *of_units, call.counts(listed), call.tokens.first, call.tokens.length, call.out,
        sums.peaks, sums.totals, sums.sums, of_units[0].shape[1], *call.out.stride()[:2],
        call.heads, **call.part, UNIT=unit, LISTED=listed is not None,
    )  # fmt: skip


def _skipping(call: Call, rule: AttentionRule) -> tuple[torch.Tensor, Reads]:
    """Score all keys; then read the values of the tiles that are not left out."""
    given = rule.parameters
    tile, split = int(given["check_blocks"]) * BLOCK, int(given["split"]) or ALL
    units = call.units(UNIT, None)
    _, k, v, table, _, _, *of_tokens = call.inputs(None)
    scores, largest = (call.empty(call.group, units * each) for each in (UNIT, UNIT // tile))
    shapes = {**call.part, "UNIT": UNIT, "TILE": tile, "PAGE": call.held.page}
    strides = call.strides(None)[:-1]
    score_tiles[(units, call.pairs)](
        call.q, k, table, *of_tokens, scores, largest, call.scale, call.heads, units, *strides,
        **shapes,
    )  # fmt: skip
    of_units, values = call.of_units(units), call.zeros(units)
    sum_heavy_tiles[(units, call.pairs)](
        v, table, *of_tokens, scores, largest, *of_units, values, float(given["factor"]), split,
        call.heads, units, *strides[2:], **shapes, TILES=256,
    )  # fmt: skip
    _join(call, call.none(), None, UNIT, of_units)
    seen = (call.tokens.length - call.tokens.first)[:, None].expand(call.count, call.heads)
    read = values.sum(-1, dtype=torch.int32).view(seen.shape)
    return call.out, Reads(seen, read, seen + read)


def _stopping(
    call: Call, rule: AttentionRule, listed: Blocks | None, splits: int | None
) -> tuple[torch.Tensor, Reads]:
    given = rule.parameters
    thresholds = given["scale"], given["direction"], int(given["patience"])
    kind = {"RULE": ART, "PROBE": int(given["probe"]), "FILTERS": False}
    unit = int(given["check_blocks"]) * BLOCK
    sums = call.none()
    return call.out, _until_stop(
        call, sums, sums.peaks, unit, splits, thresholds, 0.0, kind, listed
    )


def _until_stop(
    call: Call,
    sums: Sums,
    top: torch.Tensor,
    unit: int,
    splits: int | None,
    thresholds: tuple[float, float, int],
    floor: float,
    kind: dict[str, Any],
    listed: Blocks | None = None,
    marks: torch.Tensor | None = None,
) -> Reads:
    """Read units until the rule stops; store the output and the sums."""
    units = call.units(unit, listed)
    splits = min(splits or splits_that_fill(call), units)
    shared = call.zeros(FIELDS + -(-units // splits))
    of_units = call.of_units(units)
    counts = call.empty(units, dtype=torch.int32), call.empty(units, dtype=torch.int32)
    probe = torch.zeros_like(sums.sums) if kind["RULE"] == ART else sums.sums
    read_until_stop[(splits, call.pairs)](
        *call.inputs(listed, marks), *of_units, *counts, shared,
        sums.peaks, sums.totals, sums.sums, probe, call.zeros(call.rows), top, sums.known, call.out,
        call.scale, floor, *thresholds, call.heads, units, splits,
        *call.strides(listed, marks), *call.out.stride()[:2], shared.shape[-1],
        **call.shapes(unit, listed), **kind, MARKED=marks is not None,
    )  # fmt: skip
    found = shared[:, :FIELDS].view(call.count, call.heads, FIELDS)
    fields = stopping.KEYS, stopping.VALUES, stopping.FETCHED
    return Reads(*(found[..., field] for field in fields))


def _aet(
    call: Call, rule: AttentionRule, sets: Sequence[AetSet], splits: int | None
) -> tuple[torch.Tensor, Reads]:
    own = [each.always(length) for each, length in zip(sets, call.tokens.lengths, strict=True)]
    always = _padded(own)
    sums = dataclasses.replace(call.none(), known=call.rows_of(always))
    peaks, totals = _add_all(call, sums, always, BLOCK)
    marks = call.zeros(call.units(BLOCK, None), dtype=torch.int8).view(call.count, call.heads, -1)
    there = torch.arange(always.blocks.shape[-1], device=call.q.device) < always.counts[..., None]
    marks.scatter_reduce_(2, always.blocks.long(), there.to(torch.int8), "amax")
    floor = math.log2(rule.value_share) if rule.value_share else 0.0
    kind = {"RULE": AET, "PROBE": 16, "FILTERS": rule.value_share > 0}
    thresholds = rule.parameters["key_share"], 0.0, 0
    top = sums.peaks.clone()
    more = _until_stop(call, sums, top, BLOCK, splits, thresholds, floor, kind, marks=marks)
    shares = totals * (peaks - sums.peaks[:, None]).exp2() / sums.totals[:, None]
    masses = shares[..., : call.group].sum(-1).view(call.count, call.heads, -1)
    for at, (each, blocks) in enumerate(zip(sets, own, strict=True)):
        each.learn(masses[at, :, : blocks.shape[1]])
    known = sums.known
    return call.out, Reads(known + more.keys, known + more.values, 2 * known + more.fetched)


def _certified(call: Call, rule: AttentionRule, sketches: Sketches) -> tuple[torch.Tensor, Reads]:
    """Read the rows without a sketch, then the heaviest blocks until the rest is within `missing`.

    They are chosen by estimates; if what was read weighs less than that, more are read.
    """
    firsts, lengths, given = call.tokens.firsts, call.tokens.lengths, rule.parameters
    windows = windows_of(firsts, lengths)
    first = newest(call, firsts, lengths, windows)
    sums = call.none()
    _add_all(call, sums, first, UNIT)
    found = estimated(call, sketches, windows, bool(given["bounded"]))
    search = Search.of(found, sums, call.group, given["missing"])
    begin = torch.zeros(call.pairs, dtype=torch.int64, device=call.q.device)
    known, read = search.known(sums), call.rows_of(first)
    for grows in (True, False):
        end = search.chosen(known, begin, grows)
        more = search.between(call, begin, end)
        _add_all(call, sums, more, UNIT)
        known, read, begin = search.known(sums), read + call.rows_of(more), end
    missing = search.missing(known, end).view(call.count, call.heads)
    return call.out, Reads(read, read, 2 * read, missing)


def _padded(own: Sequence[torch.Tensor]) -> Blocks:
    """Return lists [G, M] of several tokens as one."""
    most = max(each.shape[1] for each in own)
    blocks = torch.stack([functional.pad(each, (0, most - each.shape[1])) for each in own])
    counts = torch.tensor([each.shape[1] for each in own], dtype=torch.int32, device=blocks.device)
    return Blocks(blocks, counts[:, None].expand(blocks.shape[:2]).contiguous())


def splits_that_fill(call: Call) -> int:
    """Return how many programs for each token and key/value head fill the device."""
    if call.q.device.type != "cuda":
        return 4
    places = 2 * torch.cuda.get_device_properties(call.q.device).multi_processor_count
    return max(-(-places // call.pairs), 1)
