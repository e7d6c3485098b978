"""Kernels for GPUs equal the references of their techniques, and read the same rows."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch

from gpu.device_rows import DEVICE, Case, listed, rules_of
from oracle import assert_matches, max_error
from pairs import pairwise
from suffice.attention import ATTENTIONS
from suffice.attention.aet import Known
from suffice.attention.rule import AttentionRule
from suffice.backends.triton.aet_sets import AetSets
from suffice.backends.triton.attend import attend
from suffice.backends.triton.call import Call, tile_of
from suffice.backends.triton.rules import HeadRules
from suffice.errors import InputError

ART = "art:change=1.2,angle=1,patience=2,block=32"
AET = "aet:keys=0.7,values=0.05,globals=32,locals=20"
SKIP = "skip_softmax:factor=50,block=16"
TECHNIQUES = ("exact", ART, AET, SKIP)
ERRORS = {torch.bfloat16: 2e-2, torch.float16: 3e-3}  # of outputs of standard deviation 1


def equals(case: Case, technique: str, **options: Any) -> None:
    """Require the reference's output, and the rows that it reads."""
    found, reads = case.run(technique, **options)
    for at, exact in enumerate(case.reference(technique)):
        expected = exact.output[:, 0]
        if case.q.dtype == torch.float32:
            plain = case.reference(technique, np.float32)[at].output[:, 0]
            assert_matches(found[at], expected, plain)
        else:
            assert max_error(found[at].float().numpy(), expected) < ERRORS[case.q.dtype]
        assert reads.keys[at].tolist() == exact.keys[0].sum(-1).tolist()
        assert reads.values[at].tolist() == exact.values[0].sum(-1).tolist()


@pytest.mark.parametrize(
    ("technique", "group", "size", "page", "window"),
    pairwise(TECHNIQUES, (1, 3, 4, 8), (64, 80, 128, 256), (0, 16, 48), (None, 70)),
)
def test_kernels_equal_the_references(
    technique: str, group: int, size: int, page: int, window: int | None
) -> None:
    case = Case.random((150, 63), heads=2, group=group, size=size, window=window)
    equals(case, technique, page=page)


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_every_length(technique: str) -> None:
    equals(Case.random((1, 15, 16, 17, 33), heads=1, group=2), technique)


def test_units_are_whole_tiles_of_a_power_of_two() -> None:
    for size, unit in itertools.product((16, 64, 80, 128, 256), (16, 32, 48, 64, 256)):
        tile = tile_of(size, unit)
        assert unit % tile == 0 and tile & (tile - 1) == 0 and tile >= 16
    equals(Case.random((150,)), ART.replace("block=32", "block=48"))


@pytest.mark.parametrize(
    ("probe", "changes"), [(16, (0.1, 0.14, 0.18, 0.4)), (48, (0.3, 0.6, 0.8, 1.0))]
)
def test_stable_checks_must_come_in_a_row(probe: int, changes: tuple[float, ...]) -> None:
    """Thresholds at which some checks are stable, and others are not."""
    case, stops = Case.random((500,), heads=1, group=2, size=80), set()
    case.v[..., 48:64] *= 4  # the last run that 48 elements have, of 5
    for change in changes:
        technique = f"art:change={change},angle=1,patience=3,block=16,probe={probe}"
        equals(case, technique)
        stops.add(int(case.run(technique)[1].keys[0, 0]))
    assert len(stops) == 4


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_a_long_text(technique: str) -> None:
    equals(Case.random((1000,), heads=1, group=2), technique)


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("technique", ["exact", ART, SKIP])
def test_half_types(technique: str, dtype: torch.dtype) -> None:
    equals(Case.random((90,), dtype=dtype), technique)


@pytest.mark.parametrize("technique", [ART, AET])
def test_no_bit_depends_on_the_number_of_programs_or_on_the_batch(technique: str) -> None:
    case = Case.random((130, 40), heads=1)
    found, reads = case.run(technique, splits=1)
    for splits in (3, 64):
        same, other = case.run(technique, splits=splits)
        assert torch.equal(found, same)
        assert torch.equal(reads.keys, other.keys) and torch.equal(reads.values, other.values)
        assert (other.fetched >= other.keys + other.values).all()
    for at in range(2):
        own = slice(at, at + 1)
        alone = Case(case.q[own], case.k[own], case.v[own], case.lengths[own], case.firsts[own])
        assert torch.equal(found[own], alone.run(technique)[0])


def test_what_is_read_beyond_a_stop_is_counted() -> None:
    case = Case.random((300,), heads=1)
    one, many = (case.run("art:change=9,angle=2,patience=1", splits=n)[1] for n in (1, 5))
    # 300 is 44 rows into a block, and the first check has nothing to compare with.
    assert one.keys == many.keys == 44 + 64 and one.fetched == 2 * (44 + 64)
    assert many.fetched > one.fetched


def test_lists_of_blocks_are_read_in_their_order() -> None:
    case = Case.random((160,), heads=2, group=2)
    orders = [[9, 0, 4, 2, 7, 5, 8, 1, 6, 3], [3, 9, 8, 0, 1, 2]]
    found, reads = case.run(ART, blocks=listed([orders]))
    q, k, v = (each.double().numpy() for each in (case.q, case.k, case.v))
    for head, order in enumerate(orders):
        rows = [row for block in order for row in range(block * 16, block * 16 + 16)][::-1]
        # Newest first, backwards: so the reference reads the list's rows, two blocks at a time.
        own = slice(2 * head, 2 * head + 2)
        exact = ATTENTIONS.build(ART).reference(
            q[0, own, None], k[0, head, None][:, rows], v[0, head, None][:, rows], scale=case.scale
        )
        np.testing.assert_allclose(found[0, own].numpy(), exact.output[:, 0], atol=2e-6)
        assert reads.keys[0, head] == exact.keys.sum()


def test_a_list_of_all_blocks_is_everything() -> None:
    case = Case.random((70, 40))
    blocks = listed([[list(range(5))] * 2, [[2, 1, 0]] * 2])
    found, reads = case.run("exact", blocks=blocks)
    np.testing.assert_allclose(found, case.run("exact")[0], atol=1e-6)
    assert reads.keys.tolist() == [[70, 70], [40, 40]]


@pytest.mark.parametrize("options", ["globals=32,locals=20", "globals=64,locals=8,sinks=40"])
def test_the_sets_of_aet_are_the_reference_s_for_many_tokens(options: str) -> None:
    technique: Any = ATTENTIONS.build(f"aet:{options}")
    heads, lengths = 2, [3, 4, 20, 21, 70, 71, 72, 73, 100, 117, 118, 140, 141, 300, 301, 320, 321]
    reference, rng = [Known() for _ in range(heads)], np.random.default_rng(0)
    ours = AetSets(technique.rule().parameters, 1, heads, DEVICE)
    whole = Case.random((max(lengths),), heads=heads, group=1)
    for length in lengths:
        case = dataclasses.replace(whole, lengths=[length])
        call = Call(case.q.to(DEVICE), case.held(), case.tokens, 1.0)
        always, marks = ours.always(call)
        count = int(always.counts[0, 0])
        expected = [technique.always(each, length) for each in reference]
        found = always.blocks[0, :, :count].tolist()
        # Of the global blocks the order differs: a new one takes the place of the lightest.
        assert [sorted(each) for each in found] == [sorted(each) for each in expected]
        assert [each.nonzero().flatten().tolist() for each in marks[0]] == list(map(sorted, found))
        masses = rng.integers(3, size=(heads, len(expected[0]))).astype(np.float32)  # many ties
        given = torch.zeros(heads, always.blocks.shape[-1], 1)
        for head, (state, blocks) in enumerate(zip(reference, expected, strict=True)):
            own = dict(zip(blocks, masses[head].tolist(), strict=True))
            technique.learn(state, own)
            given[head, :count, 0] = torch.tensor([own[block] for block in found[head]])
        sums = dataclasses.replace(call.none(), peaks=call.zeros(1, dtype=torch.float32))
        sums.totals.fill_(1)
        ours.learn(call, always, torch.zeros_like(given).to(DEVICE), given.to(DEVICE), sums)


def test_aet_learns_from_token_to_token() -> None:
    technique = ATTENTIONS.build(AET)
    sets = AetSets(rules_of(AET, 2).parameters, 2, 2, DEVICE)
    states = [[technique.new_state() for _ in range(2)] for _ in range(2)]  # type: ignore[attr-defined]
    whole = Case.random((190, 120))
    for step in range(3):
        lengths = [100 + 17 * step, 60 + 20 * step]
        q = Case.random(lengths, seed=step).q
        case = Case(q, whole.k, whole.v, lengths, [0, 0])
        found, reads = case.run(AET, sets=sets)
        for at, exact in enumerate(case.reference(AET, states=states)):
            np.testing.assert_allclose(found[at], exact.output[:, 0], atol=2e-6)
            assert reads.keys[at].tolist() == exact.keys[0].sum(-1).tolist()


@pytest.mark.parametrize(
    ("change", "technique"),
    [
        ({"lengths": (150, 64)}, "exact"),
        ({"firsts": (0, 1)}, "exact"),
        ({"page": 16}, "exact"),
        ({"technique": ART.replace("patience=2", "patience=1")}, ART),
        ({"technique": ART.replace("block=32", "block=16")}, ART),
        ({"technique": AET.replace("keys=0.7", "keys=0.8")}, AET),
        ({"technique": AET.replace("values=0.05", "values=0.1")}, AET),
        ({"technique": AET.replace("globals=32", "globals=16")}, AET),
        ({"technique": SKIP.replace("factor=50", "factor=20")}, SKIP),
    ],
)
def test_the_comparison_bites(
    change: dict[str, Any], technique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel gets another length, another window, another page or another threshold."""
    case = Case.random((150, 63))
    broken = Case.random((150, 64))
    broken.q, broken.k, broken.v = case.q, broken.k, broken.v
    broken.k[1, :, :63], broken.v[1, :, :63] = case.k[1, :, :63], case.v[1, :, :63]
    broken.k[0], broken.v[0] = case.k[0, :, :150], case.v[0, :, :150]
    broken.lengths = change.get("lengths", case.lengths)
    broken.firsts = change.get("firsts", case.firsts)
    held = broken.held(change.get("page", 0))
    if held.table is not None:
        held.table[0, 3] = held.table[0, 4]
    monkeypatch.setattr(broken, "held", lambda page: held)
    monkeypatch.setattr(broken, "reference", lambda *given, **named: case.reference(technique))
    with pytest.raises(AssertionError):
        equals(broken, change.get("technique", technique))


@pytest.mark.parametrize(
    ("technique", "change", "message"),
    [
        ("tiers:sample=8", {}, "tiers: sample=8 on a GPU: must be 0"),
        ("art:values=0.1", {}, "art: values=0.1 on a GPU: must be 0"),
        ("certified:values=0.1", {}, "certified: values=0.1 on a GPU: must be 0"),
        ("aet:order=sketch", {}, "aet: order=sketch on a GPU: must be newest"),
        (
            "exact",
            {"size": 72},
            "heads of size 72 on a GPU: must be a multiple of 16 from 16 to 256",
        ),
        ("exact", {"dtype": torch.float64}, "queries are torch.float64: must be"),
    ],
)
def test_what_kernels_refuse(technique: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Case.random((20,), **change).run(technique)


def test_heads_and_types_must_fit() -> None:
    case = Case.random((20,), heads=2, group=2)
    for q, message in (
        (case.q[:, :3], "3 query heads for 2 key/value heads"),
        (case.q.half(), "keys are torch.float32"),
    ):
        with pytest.raises(InputError, match=message):
            attend(rules_of("exact", 2), q, case.held(), case.tokens, scale=1.0)


def test_rules_must_be_known() -> None:
    known = "aet, art, certified, read_all, skip_softmax, tiers"
    with pytest.raises(InputError, match=f"rule 'newest' on a GPU: must be {known}"):
        HeadRules.of([AttentionRule("newest")], DEVICE)
