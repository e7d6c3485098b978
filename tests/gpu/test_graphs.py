"""Recorded decode steps: they ask for nothing from the host, and give the same tokens.

Without a GPU nothing can be recorded. A step is then run again, with the host's side out of reach.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import suffice.integrations.transformers as st
from batches import generate
from gpu.device_rows import DEVICE
from hf_reference import as_cache
from suffice.errors import InputError
from suffice.integrations import graphs
from suffice.integrations.device_requests import DeviceRequests

TECHNIQUES = [
    {"attention": "exact"},
    {"attention": "art:change=0.5,angle=0.5,patience=1,block=16"},
    {"attention": "aet:keys=0.5,globals=16,locals=8"},
    {"attention": "certified:eps=0.3"},
    {"attention": "art:change=0.5,angle=0.5,patience=1,block=16,order=sketch"},
    {"attention": "tiers:eps=0.4,skip=0.02,bounded=true"},
    {"policy": "streaming:budget=30"},
    {"policy": "quest:budget=48,dense_layers=1"},
]
pytestmark = pytest.mark.usefixtures("one_thread", "on_a_gpu")


class OutOfReach:
    """The columns of a batch, which a replay must not ask."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a replay asks for {name}")


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(st, "requests_on", lambda device: DeviceRequests)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record steps by running them again, where there is no GPU; return how many were replayed."""
    count = [0]
    real = graphs.recorded

    def recorded(run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        again, output = real(run) if torch.cuda.is_available() else run_again(run)

        def replay() -> None:
            count[0] += 1
            again()

        return replay, output

    monkeypatch.setattr(graphs, "recorded", recorded)
    return count


def run_again(run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    output = run()

    def replay() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DeviceRequests, "commit", lambda own: None)
            patch.setattr(DeviceRequests, "begin", lambda own, key, mask: own._tokens.clear())
            patch.setattr(torch.Tensor, "item", lambda own: pytest.fail("a replay asks the device"))
            patch.setattr(torch.Tensor, "tolist", lambda own: pytest.fail("a replay asks"))
            output.logits.copy_(run().logits)

    return replay, output


@pytest.fixture
def model(model_of: Callable[..., Any]) -> Any:
    return model_of("mistral", 1)


@pytest.mark.parametrize("options", TECHNIQUES)
def test_replayed_steps_give_the_same_tokens(
    options: dict[str, str], model: Any, replays: list[int]
) -> None:
    given = {"batch": 2, "length": 40, "max_new_tokens": 5}
    found = []
    for recorded in (False, True):
        with st.enable(model, graphs=recorded, growth="step:64", **options) as enabled:
            found.append((generate(model, **given), enabled.trace))
    (tokens, plain), (same, trace) = found
    assert torch.equal(tokens, same)
    assert (trace.rows == plain.rows).all() and trace.steps == plain.steps
    assert replays[0] == 2
    assert vars(model).get("forward") is None


def test_a_graph_serves_until_the_caches_grow(model: Any, replays: list[int]) -> None:
    with st.enable(model, graphs=True, growth="step:8") as enabled, torch.no_grad():
        cache = enabled.new_cache()
        ids = torch.arange(30, device=DEVICE)[None] + 3
        model(ids, **as_cache(cache))
        seen = []
        for token in range(14):
            model(ids[:, token : token + 1], **as_cache(cache))
            seen.append(replays[0])
        # 32 rows: two steps, one as usual, one recorded. Then one that grows, one as usual, one
        # that is recorded, and five replays.
        assert seen == [0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 5, 5, 5, 6]


def test_what_a_step_gave_stays(model: Any, replays: list[int]) -> None:
    ids = torch.arange(30, device=DEVICE)[None] + 3
    found = []
    for recorded in (False, True):
        with st.enable(model, graphs=recorded, growth="step:64") as enabled, torch.no_grad():
            cache = enabled.new_cache()
            model(ids, **as_cache(cache))
            outputs = [model(ids[:, at : at + 1], **as_cache(cache)).logits for at in range(4)]
            cache.crop(-2)
            outputs += [model(ids[:, at : at + 1], **as_cache(cache)).logits for at in (2, 3)]
        found.append(torch.cat(outputs))
    assert replays[0] == 4 and torch.equal(*found)


def test_a_mask_may_hide_the_known_padding_alone(model: Any, replays: list[int]) -> None:
    ids = torch.arange(60, device=DEVICE).view(2, 30) + 3
    mask = torch.ones(2, 34, dtype=torch.long, device=DEVICE)
    mask[1, :7] = 0
    with st.enable(model, graphs=True, growth="step:64") as enabled, torch.no_grad():
        cache = enabled.new_cache()
        model(ids, attention_mask=mask[:, :30], **as_cache(cache))
        for columns in (31, 32, 33):
            model(ids[:, :1], attention_mask=mask[:, :columns], **as_cache(cache))
        assert replays[0] == 1
        mask[0, 30] = 0
        with pytest.raises(InputError, match="attention_mask hides other tokens than padding"):
            model(ids[:, :1], attention_mask=mask, **as_cache(cache))
        assert replays[0] == 1


def test_a_compiled_model_breaks_at_attention_alone(model: Any) -> None:
    ids = torch.arange(30, device=DEVICE)[None] + 3
    found = []
    torch.compiler.reset()
    for compiled in (False, True):
        with st.enable(model, growth="step:64") as enabled, torch.no_grad():
            step = torch.compile(model, backend="eager") if compiled else model
            cache = enabled.new_cache()
            model(ids, **as_cache(cache))
            found.append([step(ids[:, at : at + 1], **as_cache(cache)).logits for at in range(2)])
    torch.compiler.reset()
    assert torch.equal(*map(torch.cat, found))


def test_audited_steps_and_gradients_run_as_usual(model: Any, replays: list[int]) -> None:
    ids = torch.arange(30, device=DEVICE)[None] + 3
    options = {"attention": TECHNIQUES[1]["attention"], "growth": "step:64"}
    with st.enable(model, graphs=True, audit=1, **options) as enabled, torch.no_grad():
        cache = enabled.new_cache()
        for part in (ids, ids[:, :1], ids[:, :1], ids[:, :1]):
            model(part, **as_cache(cache))
        assert replays[0] == 0 and enabled.trace.audit.tokens == 3  # type: ignore[union-attr]
    with st.enable(model, graphs=True, growth="step:64") as enabled:
        cache = enabled.new_cache()
        for part in (ids, ids[:, :1], ids[:, :1], ids[:, :1]):
            model(part, **as_cache(cache))
        assert replays[0] == 0


def test_graphs_need_a_gpu(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from suffice.integrations.requests import Requests

    monkeypatch.setattr(st, "requests_on", lambda device: Requests)
    with pytest.raises(InputError, match="graphs=True for a model on the CPU: needs a GPU"):
        st.enable(model, graphs=True)
