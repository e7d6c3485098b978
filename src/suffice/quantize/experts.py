"""Quantizing the experts of a layer, each on the rows that reach it.

An expert is calibrated on its own rows of the text, and on rows drawn from all, which count as
`PRIOR` rows together. So an expert that the text reaches seldom has second moments of full rank,
and one that it never reaches has those of all rows. The experts of a stack share the levels of
their codes, learned from those that are reached most; the scales are each one's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from suffice.backends.cpu.linear import unpack
from suffice.backends.cpu.packing import quantize
from suffice.decoder.blocks import ExpertMLP
from suffice.quant import PackedLinear
from suffice.quant.activations import Site
from suffice.quant.gptq import loss
from suffice.quantize.calibrated import Calibrated
from suffice.quantize.layerwise import Layerwise, sampled
from suffice.quantize.torch_layers import rows_of

PRIOR = 64  # rows of all kinds that count as an expert's own
SHARING = 8  # experts from which the levels of a stack are learned
OUT = "expert_down"


@dataclass
class QuantizedExperts:
    """A layer's stacks in codes, the loss of each one's outputs, and the experts without rows."""

    matrices: dict[str, PackedLinear] = field(default_factory=dict)
    losses: dict[str, dict[str, float]] = field(default_factory=dict)
    unreached: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Experts:
    """The experts of a layer, still in float, and the text's rows [T, M] with their weights."""

    layers: Layerwise
    index: int
    block: ExpertMLP
    rows: torch.Tensor
    weights: torch.Tensor

    @property
    def first(self) -> tuple[str, ...]:
        """The names of the matrices that read rows."""
        return ("expert_gate", "expert_up") if self.block.experts.gated else ("expert_up",)

    def own(self, expert: int) -> torch.Tensor:
        """Return the rows that reach an expert."""
        return self.rows[self.weights[:, expert] != 0]

    def part(self, name: str, expert: int) -> PackedLinear:
        """Return an expert's rows of a stack."""
        stack = self.layers.matrix(f"layers.{self.index}.{name}")
        count = stack.rows // self.block.experts.count
        return rows_of(stack, expert * count, count)

    def inner(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        """Return the inputs of an expert's last matrix for rows x."""
        return self.layers.inner_of(self.index, self.block, expert, x)

    def into(self, expert: int) -> np.ndarray:
        """Return H = sum x x^T over the text's rows, of the inputs of the first matrices."""
        return self._moments(self.own(expert), self.prior)

    def out(self, expert: int) -> np.ndarray:
        """Return the same of the inputs of the last matrix."""
        prior = self._prior(self.inner(expert, self.some))
        return self._moments(self.inner(expert, self.own(expert)), prior)

    def weighed(self, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield a stack's matrices that levels are learned from, each with H of its inputs."""
        for expert in self.most_reached():
            moments = self.out(expert) if name == OUT else self.into(expert)
            yield unpack(self.part(name, expert)), moments

    @cached_property
    def some(self) -> torch.Tensor:
        """Rows drawn from all."""
        return sampled(self.rows, len(self.rows))

    @cached_property
    def prior(self) -> torch.Tensor:
        """What the drawn rows add to every expert's own."""
        return self._prior(self.some)

    def _prior(self, some: torch.Tensor) -> torch.Tensor:
        return (PRIOR / len(some)) * (some.T @ some)

    def _moments(self, own: torch.Tensor, prior: torch.Tensor) -> np.ndarray:
        found: np.ndarray = ((own.T @ own + prior) / len(self.rows)).numpy()
        return found

    def samples(self) -> dict[str, np.ndarray]:
        """Return inputs of the matrices, by their names: some rows, and some of all experts."""
        inner = [
            self.inner(expert, sampled(self.own(expert), len(self.rows)))
            for expert in range(self.block.experts.count)
        ]
        out = torch.cat(inner)
        return {
            **dict.fromkeys(self.first, self.some.numpy()),
            OUT: (out if len(out) else self.inner(0, self.some)).numpy(),
        }

    def most_reached(self) -> list[int]:
        """Return the experts from which levels are learned."""
        counts = (self.weights != 0).sum(0)
        return counts.argsort(descending=True, stable=True)[:SHARING].tolist()


@torch.no_grad()
def quantized_experts(layers: Layerwise, index: int, method: Calibrated) -> QuantizedExperts:
    """Quantize the experts of a layer by `method`, after its `inputs`; none if it has none.

    Raises:
        InputError: A weight that cannot be quantized.
    """
    blocks = [b for b in layers.config.blocks(index) if isinstance(b, ExpertMLP)]
    found = QuantizedExperts()
    for block in blocks:
        experts = _Experts(layers, index, block, *layers.routed)
        ways = _ways(experts, method)
        parts: dict[str, list[PackedLinear]] = {name: [] for name in ways}
        lost = {name: np.zeros(2) for name in ways}
        for expert in range(block.experts.count):
            if not len(experts.own(expert)):
                found.unreached.append(expert)
            into = dict.fromkeys(experts.first, experts.into(expert))
            hessians = {**into, OUT: experts.out(expert)}
            for name, way in ways.items():
                dense = experts.part(name, expert)
                packed = way.packed(dense, hessians[name])
                parts[name].append(packed)
                lost[name] += _losses(dense, packed, hessians[name])
        found.matrices |= {name: _joined(own) for name, own in parts.items()}
        found.losses |= {
            name: {"loss": float(part / whole) if whole else 0.0}
            for name, (part, whole) in lost.items()
        }
    return found


@dataclass(frozen=True)
class _Way:
    """How the matrices of a stack are quantized."""

    method: Calibrated
    levels: np.ndarray | None
    site: Site | None

    def packed(self, dense: PackedLinear, hessian: np.ndarray) -> PackedLinear:
        given: dict[str, Any] = {} if self.levels is None else {"levels": self.levels}
        coded = quantize(self.method, unpack(dense), hessian, **given)
        return self.method.packed(coded, dense.bias, self.site)


def _ways(experts: _Experts, method: Calibrated) -> dict[str, _Way]:
    samples = experts.samples()

    def way(name: str) -> _Way:
        own: Any = method.for_matrix(name)
        return _Way(own, own.shared_levels(experts.weighed(name)), own.site(samples[name]))

    return {name: way(name) for name in (*experts.first, OUT)}


def _losses(dense: PackedLinear, packed: PackedLinear, hessian: np.ndarray) -> np.ndarray:
    """Return what is lost of the outputs of a matrix, and the whole of them."""
    weight = unpack(dense)
    lost, whole = loss(weight, unpack(packed), hessian), loss(weight, 0 * weight, hessian)
    return np.array([lost, whole])


def _joined(parts: list[PackedLinear]) -> PackedLinear:
    """Stack matrices, each of whole panels."""

    def all_of(arrays: Iterator[np.ndarray | None]) -> np.ndarray | None:
        found = [each for each in arrays if each is not None]
        return np.concatenate(found) if found else None

    data = all_of(each.data for each in parts)
    assert data is not None
    rows = sum(each.rows for each in parts)
    return replace(parts[0], data=data, rows=rows, bias=all_of(each.bias for each in parts))
