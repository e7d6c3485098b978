"""How caches on a GPU grow: by its own rates."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import suffice.integrations.transformers as st
from gpu.device_rows import DEVICE
from suffice.cache.bmc import BMC
from suffice.cache.cost import GrowthCosts, best_allocations, kernel_rows, spare_rows
from suffice.cache.growth import Step
from suffice.cache.machine import Machine
from suffice.integrations import device_rates
from suffice.integrations.device_requests import DeviceRequests
from suffice.integrations.growing_cache import GrowingLayer

GPU = Machine("a GPU", 1, 1e12, 5e11, 2e12, 2e12)  # C' = .25, c = 4


def test_rates_are_measured_once() -> None:
    found = device_rates.rates(DEVICE)
    assert device_rates.rates(DEVICE) is found and found.measured
    for rate in dataclasses.astuple(found)[2:6]:
        assert 0 < rate < 1e16


def test_r_follows_from_the_device_s_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_rates, "rates", lambda device: GPU)
    own: Any = device_rates.fitted_to_device(BMC(), DEVICE)
    assert own.spare(32768) == kernel_rows(32768, 4.0) == 512  # sqrt(4 * 32768) is 362
    rows = torch.zeros(1, dtype=torch.bfloat16)
    padded: Any = device_rates.fitted_to_padding(BMC(group=4), rows)
    costs = GrowthCosts.of_ratio(0.25, group=4, shrink=2)
    assert padded.spare(32768) == spare_rows(32768, best_allocations(32768, costs)) == 128
    step = Step(64)
    assert device_rates.fitted_to_padding(step, rows) == step


def test_caches_ask_the_device_that_they_are_on(
    monkeypatch: pytest.MonkeyPatch, model_of: Any
) -> None:
    asked = []
    monkeypatch.setattr(device_rates, "rates", lambda device: asked.append(device) or GPU)
    monkeypatch.setattr(st, "requests_on", lambda device: DeviceRequests)
    with st.enable(model_of("llama"), limit=32768) as enabled:
        assert enabled._settings.growth == BMC(copy_cost=4.0, group=1, shrink=1.0)
    assert [each.type for each in asked] == [DEVICE.type]

    class Elsewhere(torch.Tensor):
        device = torch.device("cuda")

    layer = GrowingLayer(BMC(), 32768, padded=True)
    states = torch.zeros(1, 2, 3, 16).as_subclass(Elsewhere)
    layer.lazy_initialization(states, states)
    assert layer.growth == BMC(ratio=0.25, shrink=1.0) and asked[-1].type == "cuda"
