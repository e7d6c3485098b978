"""Attention of decode steps on a GPU, by the rule of a technique."""

from __future__ import annotations

import dataclasses

import torch

from suffice.backends.triton import stopping
from suffice.backends.triton.aet_sets import AetSets
from suffice.backends.triton.bases import Bases
from suffice.backends.triton.call import (
    LOG2_E,
    UNIT,
    Blocks,
    Call,
    Filtered,
    Held,
    Reads,
    Sums,
    Tokens,
)
from suffice.backends.triton.coded import Tables, ValueSums, attend_coded
from suffice.backends.triton.rules import HeadRules
from suffice.backends.triton.sketches import (
    Search,
    Sketches,
    between,
    by_sketch,
    estimated,
    newest,
)
from suffice.backends.triton.skipping import attend_skipping
from suffice.backends.triton.stopping import AET, ART, FIELDS, read_until_stop
from suffice.backends.triton.tiers import attend_in_tiers
from suffice.backends.triton.whole import sum_units
from suffice.cache import BLOCK
from suffice.errors import InputError

SIZES = range(16, 257, 16)  # of heads
TYPES = (torch.float16, torch.bfloat16, torch.float32)


def attend(
    rules: HeadRules,
    q: torch.Tensor,
    held: Held,
    tokens: Tokens,
    *,
    scale: float,
    blocks: Blocks | None = None,
    sets: AetSets | None = None,
    sketches: Sketches | None = None,
    bases: Bases | None = None,
    tables: Tables | None = None,
    value_sums: ValueSums | None = None,
    splits: int | None = None,
) -> tuple[torch.Tensor, Reads]:
    """Return the output of N tokens' queries q [N, H, D], and what was read for it.

    `rules`: the technique's. `blocks`: those to read, in order; None: all that
    are seen, newest first. `sets`: the requests' states of `aet`, which learn: one token of each.
    `sketches`, `bases`: of all rows that tokens see, for `certified`, `art` in their order, and
    `tiers`. `tables`: of
    a coded softmax, for attention to all rows; `value_sums` save it most values, and go on.
    `splits`: programs for each token and key/value head where a rule may stop; None: as many as
    fill the device. The output does not depend on it.

    Raises:
        InputError: A head size or a type that the kernels do not have.
    """
    _check(q, held)
    call = Call(q, held, tokens, scale * LOG2_E)
    if not call.pairs or not tokens.most:
        sums = call.none()
        return call.out, Reads(sums.known, sums.known, sums.known, sums)
    if tables is not None:
        assert rules.kind == "read_all"
        return attend_coded(call, tables, value_sums, blocks)
    if rules.kind == "aet":
        assert sets is not None and blocks is None
        return _aet(call, rules, sets, splits)
    if rules.kind == "certified":
        assert sketches is not None and blocks is None
        return _certified(call, rules, sketches)
    if rules.kind == "tiers":
        assert bases is not None and blocks is None
        return attend_in_tiers(call, rules, bases)
    if rules.kind == "skip_softmax":
        assert blocks is None
        return attend_skipping(call, rules)
    if rules.kind == "read_all":
        return _whole(call, blocks)
    if rules.sketched:
        assert sketches is not None and blocks is None
        out, reads = _stopping(call, rules, by_sketch(call, sketches), splits)
        sketched = sketches.bytes_read(call).expand_as(reads.keys)
        return out, dataclasses.replace(reads, sketched=sketched)
    return _stopping(call, rules, blocks, splits)


def _check(q: torch.Tensor, held: Held) -> None:
    check_size(q.shape[-1])
    if q.shape[-1] != held.keys.shape[-1]:
        raise InputError(
            f"queries of size {q.shape[-1]} for keys of size {held.keys.shape[-1]}: must be equal"
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
    keys, values = held.keys, held.values
    if (keys.shape, keys.stride()) != (values.shape, values.stride()):
        raise InputError(
            f"keys {list(keys.shape)} and values {list(values.shape)}: shapes and strides must be "
            "the same"
        )


def check_size(size: int) -> None:
    """Refuse a head's size that the kernels do not have.

    Raises:
        InputError: It is one.
    """
    if size not in SIZES:
        raise InputError(
            f"heads of size {size} on a GPU: must be a multiple of {SIZES.step} from "
            f"{SIZES.start} to {SIZES[-1]}"
        )


def _whole(call: Call, listed: Blocks | None) -> tuple[torch.Tensor, Reads]:
    sums, shape = call.none(), (call.count, call.heads)
    _add_all(call, sums, listed, UNIT)
    seen = (call.tokens.length - call.tokens.first)[:, None].expand(shape)
    read = seen if listed is None else call.rows_of(listed)
    return call.out, Reads(read, read, 2 * read, sums)


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
    call.join(of_units, sums, listed, unit)
    return of_units[:2]


def _stopping(
    call: Call, rules: HeadRules, listed: Blocks | None, splits: int | None
) -> tuple[torch.Tensor, Reads]:
    given, sums = rules.parameters, call.none()
    rule = {"RULE": ART, "PROBE": int(given["probe"])}
    limits = rules.limits["scale"], given["direction"], int(given["patience"])
    unit = int(given["check_blocks"]) * BLOCK
    found = _until_stop(call, sums, rules, rule, limits, unit, splits, listed)
    return call.out, found


def _until_stop(
    call: Call,
    sums: Sums,
    rules: HeadRules,
    rule: dict[str, int],
    limits: tuple[torch.Tensor, float, int],
    unit: int,
    splits: int | None,
    listed: Blocks | None = None,
    marks: torch.Tensor | None = None,
) -> Reads:
    """Read units until the rule stops; store the output, and add to the sums."""
    top, before = sums.peaks.clone(), sums.totals.clone()
    units, (own, second, patience) = call.units(unit, listed), limits
    splits = max(min(splits or splits_that_fill(call), units), 1)
    shared = call.zeros(FIELDS + -(-units // splits))
    peaks, totals, wide = call.of_units(units)
    kept = call.empty(units, call.group) if rules.filters else totals
    counts = call.empty(units, dtype=torch.int32), call.empty(units, dtype=torch.int32)
    probe = torch.zeros_like(sums.sums) if rule["RULE"] == ART else sums.sums
    read_until_stop[(splits, call.pairs)](
        *call.inputs(listed, marks), peaks, totals, kept, wide, *counts, shared,
        sums.peaks, sums.totals, sums.sums, probe, call.zeros(call.group), top,
        sums.known, call.out, own, rules.floors,
        call.scale, second, patience, call.heads, units, splits,
        *call.strides(listed, marks), *call.out.stride()[:2], shared.shape[-1],
        **call.shapes(unit, listed), **rule, FILTERS=rules.filters, MARKED=marks is not None,
    )  # fmt: skip
    found = shared[:, :FIELDS].view(call.count, call.heads, FIELDS)
    fields = stopping.KEYS, stopping.VALUES, stopping.FETCHED, stopping.UNITS
    keys, values, fetched, used = (found[..., field] for field in fields)
    filtered = Filtered(top, before, kept, peaks, used) if rules.filters else None
    known = sums.known
    return Reads(known + keys, known + values, 2 * known + fetched, sums, filtered=filtered)


def _aet(
    call: Call, rules: HeadRules, sets: AetSets, splits: int | None
) -> tuple[torch.Tensor, Reads]:
    always, marks = sets.always(call)
    sums = dataclasses.replace(call.none(), known=call.rows_of(always))
    peaks, totals = _add_all(call, sums, always, BLOCK)
    rule, limits = {"RULE": AET, "PROBE": 16}, (rules.limits["key_share"], 0.0, 0)
    found = _until_stop(call, sums, rules, rule, limits, BLOCK, splits, marks=marks)
    sets.learn(call, always, peaks, totals, sums)
    return call.out, found


def _certified(call: Call, rules: HeadRules, sketches: Sketches) -> tuple[torch.Tensor, Reads]:
    """Read the rows without a sketch, then the heaviest blocks until the rest is within `missing`.

    They are chosen by estimates; if what was read weighs less than that, more are read.
    """
    first, sums = newest(call), call.none()
    _add_all(call, sums, first, UNIT)
    found = estimated(call, sketches, bool(rules.parameters["bounded"]))
    search = Search.of(found, sums, rules.limits["missing"].repeat(call.count))
    begin = torch.zeros(call.pairs, dtype=torch.int64, device=call.q.device)
    known, read = search.known(sums), call.rows_of(first)
    for grows in (True, False):
        end = search.chosen(known, begin, grows)
        more = between(call, search.order, begin, end)
        _add_all(call, sums, more, UNIT)
        known, read, begin = search.known(sums), read + call.rows_of(more), end
    missing = search.missing(known, end).view(call.count, call.heads)
    sketched = sketches.bytes_read(call).expand_as(read)
    return call.out, Reads(read, read, 2 * read, sums, sketched, missing)


def splits_that_fill(call: Call) -> int:
    """Return how many programs for each token and key/value head fill the device."""
    if call.q.device.type != "cuda":
        return 2
    places = 2 * torch.cuda.get_device_properties(call.q.device).multi_processor_count
    return max(places // call.pairs, 1)
