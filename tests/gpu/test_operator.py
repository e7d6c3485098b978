"""`torch.ops.suffice.decode_attention`: the kernels' results, traced without a graph break."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton

from gpu.device_rows import DEVICE, Case
from suffice.backends.triton import operator
from suffice.errors import InputError

ART = "art:change=1.2,angle=1,patience=2,block=32"
OPERATOR = torch.ops.suffice.decode_attention


def arguments(case: Case, technique: str, page: int = 0) -> tuple[Any, ...]:
    held, tokens = case.held(page), case.tokens
    of_tokens = tokens.owner, tokens.first, tokens.length
    return (
        case.q.to(DEVICE), held.keys, held.values, held.table, *of_tokens, technique, case.scale
    )  # fmt: skip


@pytest.mark.parametrize(("technique", "page"), [("exact", 0), (ART, 16), (ART, 0)])
def test_it_is_what_the_kernels_compute(technique: str, page: int) -> None:
    case = Case.random((150, 63), group=2, window=70)
    found, counts = OPERATOR(*arguments(case, technique, page))
    expected, reads = case.run(technique, page=page)
    assert torch.equal(found.cpu(), expected)
    read = torch.stack((reads.keys, reads.values, reads.fetched))
    assert torch.equal(counts, read) and counts.dtype == torch.int32
    bounded, same = OPERATOR(*arguments(case, technique, page), most=151)
    assert torch.equal(bounded, found) and torch.equal(same[:2], counts[:2])


@pytest.mark.parametrize(
    ("order", "page"), [((0, 1, 2, 3), 16), ((0, 2, 1, 3), 128), ((1, 0, 2, 3), 256)]
)
@pytest.mark.parametrize("technique", ["exact", ART, "skip_softmax:factor=50,block=16"])
def test_the_cache_of_vllm(technique: str, order: tuple[int, ...], page: int) -> None:
    """One tensor [pages, G, rows, 2 D] has keys and values, in whatever order it lies in memory."""
    case = Case.random((300, 63), group=2)
    held = case.held(page)
    halves = [each.transpose(1, 2) for each in (held.keys, held.values)]
    cache = torch.cat(halves, -1).permute(order).contiguous()
    cache = cache.permute([order.index(at) for at in range(4)])
    keys, values = cache.transpose(1, 2).split(case.q.shape[-1], -1)
    given = arguments(case, technique, page)
    found, _ = OPERATOR(given[0], keys, values, *given[3:])
    assert torch.equal(found.cpu(), case.run(technique, page=page)[0])


@pytest.mark.parametrize(("technique", "page"), [("exact", 16), (ART, 0)])
def test_opcheck(technique: str, page: int) -> None:
    """Its schema, fake results, and traces with fixed and free sizes are those of the operator."""
    case = Case.random((40, 33), heads=1, group=2)
    torch.library.opcheck(OPERATOR, arguments(case, technique, page))
    assert not OPERATOR.default._schema.is_mutable


def double(*given: Any) -> torch.Tensor:
    out, counts = OPERATOR(*given)
    return 2 * out + counts.sum()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_without_a_graph_break(backend: str) -> None:
    given = [arguments(Case.random((n, 20), heads=1, group=2), ART) for n in (40, 50)]
    torch.compiler.reset()
    traced = torch.compile(double, fullgraph=True, backend=backend, dynamic=True)
    for each in given:
        assert torch.equal(traced(*each), double(*each))
    torch.compiler.reset()


class Step(torch.nn.Module):
    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        q, keys, values, *tokens = given
        return double(q, keys, values, None, *tokens, ART, 0.125)


def test_exported() -> None:
    case = Case.random((40, 20), heads=1, group=2)
    given = [each for each in arguments(case, ART) if isinstance(each, torch.Tensor)]
    program = torch.export.export(Step(), tuple(given))
    assert [str(node.target) for node in program.graph.nodes if "suffice" in str(node.target)] == [
        "suffice.decode_attention.default"
    ]
    assert torch.equal(program.module()(*given), Step()(*given))


@pytest.mark.parametrize(
    ("technique", "message"),
    [
        (
            "aet",
            "attention 'aet' of decode_attention: must be art, exact, skip_softmax, which keep",
        ),
        (
            "certified:eps=0.1",
            "attention 'certified' of decode_attention: must be art, exact, skip",
        ),
        ("art:calibrated", "attention 'art:calibrated' of decode_attention: give its thresholds"),
        ("art:chnge=1", "has no option 'chnge'. Did you mean 'change'"),
        ("art:values=0.5", "art: values=0.5 on a GPU: must be 0"),
        ("art:block=16,order=sketch", "order must be newest: sketches are kept"),
    ],
)
def test_techniques_that_are_refused(technique: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        operator.decode_attention(*arguments(Case.random((20,), heads=1), technique))


@pytest.mark.parametrize("technique", ["exact", ART, "skip_softmax:factor=50,block=16"])
def test_memory_for_partial_results_is_limited(
    technique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens are computed one part after another, and their bits do not depend on it."""
    given = arguments(Case.random((150, 63, 20, 90, 33), group=2), technique, 16)
    calls, real = [], operator.attend

    def attend(rules: Any, q: torch.Tensor, *own: Any, **named: Any) -> Any:
        calls.append(len(q))
        return real(rules, q, *own, **named)

    monkeypatch.setattr(operator, "attend", attend)
    whole = OPERATOR(*given)
    monkeypatch.setattr(operator, "WORKSPACE", 3_000)
    parts = OPERATOR(*given)
    assert calls[0] == 5 and sum(calls[1:]) == 5 and max(calls[1:]) < 5
    assert torch.equal(whole[0], parts[0]) and torch.equal(whole[1][:2], parts[1][:2])


def test_strides_of_small_tensors_are_free() -> None:
    given = arguments(Case.random((150, 63), group=2), "exact", 16)
    apart = [each.repeat_interleave(2, -1)[..., ::2] for each in given[3:7]]
    found, counts = OPERATOR(*given[:3], *apart, *given[7:])
    assert torch.equal(found, OPERATOR(*given)[0]) and counts[0].tolist() == [[150] * 2, [63] * 2]


@pytest.mark.parametrize("technique", ["exact", ART, "skip_softmax"])
def test_no_tokens_and_no_rows(technique: str) -> None:
    q, keys, values, table, *tokens = arguments(Case.random((20, 30)), technique)[:7]
    none = OPERATOR(q[:0], keys, values, table, *(x[:0] for x in tokens), technique, 1.0)
    assert [each.shape for each in none] == [(0, *q.shape[1:]), (3, 0, 2)]
    zero = [tokens[0], *(0 * x for x in tokens[1:])]
    for rows in (keys[:, :, :0], keys):
        found, counts = OPERATOR(q, rows, rows, table, *zero, technique, 1.0)
        assert not found.any() and not counts.any()


def test_shapes_that_are_refused() -> None:
    q, keys, values, _, *tokens = arguments(Case.random((20,)), "exact")[:7]
    rest = (*tokens, "exact", 1.0)
    table = torch.zeros(1, 2, dtype=torch.int64, device=DEVICE)
    for given, message in (
        ((q[..., :32], keys, values, None), "queries of size 32 for keys of size 64"),
        ((q, keys, values[:, :, :10], None), "shapes and strides must be the same"),
        ((q[0], keys, values, None), r"q \[8, 64\]: must have 3 dimensions"),
        ((q, keys[0], values, None), "keys .*: must have 4 dimensions"),
        ((q, keys, values, table), r"table: torch.int64 \[1, 2\]: must be torch.int32 \[B, P\]"),
        ((q.to("meta"), keys, values, None), "tensors on cpu.*, meta: must be on one device"),
    ):
        with pytest.raises(InputError, match=message):
            operator.decode_attention(*given, *rest)


def test_arguments_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    given = list(arguments(Case.random((20,), heads=1), "exact"))
    for at, name in ((4, "owner"), (5, "first"), (6, "length")):
        wide = [*given[:at], given[at].long(), *given[at + 1 :]]
        with pytest.raises(InputError, match=rf"{name}: torch.int64 \[1\]: must be torch.int32"):
            OPERATOR(*wide)
        two = [*given[:at], given[at].repeat(2), *given[at + 1 :]]
        with pytest.raises(InputError, match=rf"{name}: torch.int32 \[2\]: must be .* \[1\]"):
            OPERATOR(*two)
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    on_the_cpu = [each.cpu() if isinstance(each, torch.Tensor) else each for each in given]
    with pytest.raises(InputError, match="decode_attention on 'cpu': must be a GPU"):
        OPERATOR(*on_the_cpu)
