"""Activations of few bits at selected sites: KLLM, section III-A, as a decoder in PyTorch.

Sites are the inputs of a layer's matrices (`qkv`, `o`, `gate_up`, `down`, together `linear`), the
outputs of gate and up (`gate`, `up`, together `mlp`), and the operands of attention: `queries`,
`keys` and `values`, all heads of a token in one row, and `scores`, the paper's name for the outputs
of the softmax (with these `attention`). Together they are `all`.

Scores are integers of 8 bits, 0 to 255, with the greatest of a row as scale. If values are in
codes, their scales are multiplied into the scores first, because the sum runs over tokens. All
other sites have the requested bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from suffice.decoder.config import DecoderConfig
from suffice.errors import InputError
from suffice.quant import PackedLinear
from suffice.quant.activations import Site, check_input_group
from suffice.quant.kmeans import CODED_INPUTS, EXACT, fisher
from suffice.quant.packed_codes import PackedCodes
from suffice.quant.sites import GROUPS as INPUTS
from suffice.quant.sites import LINEAR, SITE_OF, SITES, chosen
from suffice.quantize.layerwise import GRADIENT, Layerwise, sampled
from suffice.quantize.sensitivity import Sensitivity
from suffice.quantize.torch_decoder import TorchDecoder
from suffice.quantize.torch_layers import visible
from suffice.quantize.torch_sites import Coder, TensorRows, rounded_rows, turned

MLP = ("gate", "up")
PARTS = ("queries", "keys", "values")
SCORES = "scores"
GROUPS = INPUTS | {"mlp": MLP, "attention": (*PARTS, SCORES)}
GROUPS |= {"all": tuple(site for sites in GROUPS.values() for site in sites)}
INTEGERS = Site(np.arange(256, dtype=np.float32) / 255, 0.0)  # of scores, which are never negative


@dataclass(frozen=True)
class Inputs:
    """Rounding of activations: `a` bits, `outliers` of a token's values exact, at `sites`.

    The share of outliers counts both ends together, as in the paper. Levels are K-means centroids,
    or if `even` evenly spaced and symmetric, as those of 8 bits always are. `offline`: thresholds
    from the calibration select outliers. `group` values share a scale; none: all of a token.
    `fisher`: K-means weighs each activation by its Fisher information (inputs of matrices only).
    """

    a: int = EXACT
    outliers: float = 0.0
    even: bool = False
    offline: bool = False
    group: int | None = None
    sites: str = LINEAR
    fisher: bool = False

    def __post_init__(self) -> None:
        if self.a not in (*CODED_INPUTS, 8, EXACT):
            raise InputError(f"inputs: a={self.a} bits; allowed: 3, 4, 8, 16")
        if not 0 <= self.outliers <= 1:
            raise InputError(f"inputs: outliers={self.outliers}; allowed: 0..1")
        elsewhere = chosen(self.sites, GROUPS) != INPUTS[LINEAR]
        if self.a == EXACT and (self.outliers or self.even or self.offline or elsewhere):
            raise InputError("inputs: a=16 is exact; it goes with no other option")
        if self.offline and (self.even or self.a == 8 or not self.outliers):
            raise InputError("inputs: offline=true goes with outliers and K-means levels")
        if self.chosen == (SCORES,) and (self.a != 8 or self.outliers):
            raise InputError("inputs: sites=scores goes with a=8 alone: they have 8 bits")
        if self.fisher and not (self.learned and set(self.chosen) <= set(INPUTS[LINEAR])):
            raise InputError("inputs: fisher=true goes with K-means levels of inputs of matrices")
        check_input_group("inputs: group", self.group)
        if self.group and not self.learned:
            raise InputError("inputs: group goes with K-means levels")

    @property
    def learned(self) -> bool:
        """Whether levels or thresholds come from a calibration."""
        return self.a in CODED_INPUTS and not self.even

    @property
    def chosen(self) -> tuple[str, ...]:
        """The selected sites of a layer."""
        return () if self.a == EXACT else chosen(self.sites, GROUPS)

    def site(self, name: str, samples: np.ndarray, gradients: np.ndarray | None = None) -> Site:
        """Return the codebook of a site, from some of its values [T, K] and their gradients."""
        share = self.outliers / 2
        if name == SCORES:
            return INTEGERS
        if self.learned:
            importance = fisher(gradients) if self.fisher and gradients is not None else None
            return Site.learn(
                samples, self.a, share, importance, offline=self.offline, group=self.group
            )
        top = 2 ** (self.a - 1) - 1
        return Site(np.arange(-top, top + 1, dtype=np.float32) / top, share)


def check_sites(inputs: Inputs, config: DecoderConfig) -> None:
    """Refuse sites that a model does not have.

    Raises:
        InputError: The model lacks one of them.
    """
    if inputs.chosen == ("gate",) and not config.gated:
        raise InputError("inputs: sites=gate: the model has no gates")


class Passing(Layerwise):
    """Windows that run through a decoder; each site passes its activations to `_at`."""

    _shared: tuple[torch.Tensor, torch.Tensor] | None = None

    def _at(self, site: str, x: torch.Tensor) -> torch.Tensor:
        """Return the activations [T, K] after rounding at a site such as `layers.0.qkv`."""
        raise NotImplementedError

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        layer, _, matrix = name.rpartition(".")
        if matrix in SITE_OF:
            if self._shared is None or self._shared[0] is not x:  # q, k and v share theirs
                self._shared = x, self._rotated(name, f"{layer}.{SITE_OF[matrix]}", x)
            x = self._shared[1]
        y = super()._linear(name, x)
        return self._at(name, y) if matrix in MLP else y

    def _rotated(self, matrix: str, site: str, x: torch.Tensor) -> torch.Tensor:
        """Pass the inputs of a matrix to its site, rotated if the matrix takes rotated ones."""
        rotation = rotation_of(self.matrix(matrix))
        if not rotation:
            return self._at(site, x)
        return turned(self._at(site, turned(x, rotation)), rotation)

    def _projected(
        self, index: int, table: tuple[torch.Tensor, torch.Tensor] | None, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        parts = super()._projected(index, table, x)
        q, k, v = (
            heads(self._at(f"layers.{index}.{site}", rows(part)), part.shape[-1])
            for site, part in zip(PARTS, parts, strict=True)
        )
        return q, k, v


def rows(part: torch.Tensor) -> torch.Tensor:
    """Return heads [H, T, D] as rows, [T, H D]."""
    return part.transpose(0, 1).flatten(1)


def heads(x: torch.Tensor, size: int) -> torch.Tensor:
    """Return the heads [H, T, D] of rows [T, H D]."""
    return x.view(len(x), -1, size).transpose(0, 1)


class Samples(Passing):
    """Samples some activations of each site, without changing them."""

    def __init__(self, decoder: TorchDecoder, windows: Sequence[Sequence[int]]) -> None:
        super().__init__(decoder, windows)
        self._found: dict[str, torch.Tensor] = {}

    def layer(self, index: int) -> dict[str, torch.Tensor]:
        """Pass all windows through a layer, and return some activations [T, K] of each site."""
        self._found = {}
        self.advance(index)
        return self._found

    def _rotated(self, matrix: str, site: str, x: torch.Tensor) -> torch.Tensor:
        super()._rotated(matrix, site, x)
        return x

    def _at(self, site: str, x: torch.Tensor) -> torch.Tensor:
        name, own = site.rpartition(".")[2], sampled(x, self._tokens)
        self._found[name] = torch.cat((self._found[name], own)) if name in self._found else own
        return x


class Rounding(Passing):
    """Rounds the activations at `sites`, such as `layers.0.qkv`."""

    def __init__(
        self,
        decoder: TorchDecoder,
        windows: Sequence[Sequence[int]],
        sites: Mapping[str, Coder],
    ) -> None:
        super().__init__(decoder, windows)
        self.sites = sites
        self._values: TensorRows | None = None  # of the current layer and window, if in codes

    @property
    def states(self) -> list[torch.Tensor]:
        """The hidden states [T, M] of each window."""
        return self._states

    def logits(self, state: torch.Tensor) -> torch.Tensor:
        """Return the logits [T, V] of hidden states [T, M] after the last layer."""
        return self._logits(state)

    def _rotated(self, matrix: str, site: str, x: torch.Tensor) -> torch.Tensor:
        return super()._rotated(matrix, site, x) if site in self.sites else x

    def _at(self, site: str, x: torch.Tensor) -> torch.Tensor:
        if site not in self.sites:
            return x
        found = rounded_rows(self.sites[site], x)
        if site.endswith(".values"):
            self._values = found
        return found.rounded

    def _mixed(self, index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        values, self._values = self._values, None
        site = self.sites.get(f"layers.{index}.{SCORES}")
        if site is None:
            return super()._mixed(index, q, k, v)
        values = values or TensorRows.exact(rows(v))
        k = k.repeat_interleave(len(q) // len(k), 0)
        logits = self.config.attention_scale * q @ k.mT
        seen = visible(q.shape[1], k.shape[1], self.config.layers[index].window, q.device)
        scores = logits.masked_fill(~seen, -math.inf).softmax(-1)
        return times_values(site, scores, values, q.shape[-1])


def times_values(site: Coder, scores: torch.Tensor, values: TensorRows, size: int) -> torch.Tensor:
    """Multiply scores [H, T, S], in integers, by values [S, G D] in codes: [H, T, D].

    The error of the values' codes and scales, at outliers, is added in floating point.
    """
    share = len(scores) * size // values.centroids.shape[1]  # heads of queries that share values
    centroids, scale, rounded = (
        heads(part, size).repeat_interleave(share, 0)
        for part in (values.centroids, values.scale, values.rounded)
    )
    step = math.gcd(values.group or size, size)  # channels of one scale
    parts = []
    for at in range(0, size, step):
        scaled = scores * scale[:, None, :, at]
        integers = rounded_rows(site, scaled.flatten(0, 1)).rounded
        parts.append(integers.view_as(scores) @ centroids[..., at : at + step])
    return torch.cat(parts, -1) + scores @ (rounded - scale * centroids)


def rotation_of(matrix: PackedLinear) -> int:
    """Return the size of the blocks in which a matrix's inputs are rotated; 0: not rotated."""
    return matrix.rotation if isinstance(matrix, PackedCodes) else 0


def run(
    decoder: TorchDecoder, windows: Sequence[list[int]], sites: Mapping[str, Coder]
) -> Iterator[Any]:
    """Yield after each layer the number done, and at the end the run, with all its states."""
    rounding = Rounding(decoder, windows, sites)
    for index in range(len(decoder.config.layers)):
        rounding.advance(index)
        yield index + 1
    yield rounding


def gradients_of(decoder: TorchDecoder, windows: Sequence[list[int]]) -> dict[str, np.ndarray]:
    """Return the gradients [T, K] of what `Samples` samples of the inputs of matrices, by site."""
    sensitivity, found = Sensitivity(decoder, windows, sites=True), dict[str, list[np.ndarray]]()
    for window in range(len(windows)):
        sensitivity.of(window)
        for name, gradient in sensitivity.gradients.items():
            layer, _, site = name.removesuffix(GRADIENT).rpartition(".")
            rotation = rotation_of(decoder.matrix(f"{layer}.{SITES[site][-1]}"))
            own = turned(gradient, rotation) if rotation else gradient
            found.setdefault(f"{layer}.{site}", []).append(own.numpy())
    return {name: np.concatenate(parts) for name, parts in found.items()}


def learned(
    decoder: TorchDecoder, windows: Sequence[list[int]], inputs: Sequence[Inputs]
) -> Iterator[Any]:
    """Yield after each layer the number done, and at the end the sites for each of the inputs."""
    gradients = gradients_of(decoder, windows) if any(each.fisher for each in inputs) else {}
    layers = Samples(decoder, windows)
    found: dict[Inputs, dict[str, Site]] = {each: {} for each in inputs}
    for index in range(len(decoder.config.layers)):
        known = layers.layer(index)
        known[SCORES] = torch.empty(0, 0)  # needs no samples
        for each in inputs:
            for name in set(each.chosen) & set(known):
                site = f"layers.{index}.{name}"
                found[each][site] = each.site(name, known[name].cpu().numpy(), gradients.get(site))
        yield index + 1
    yield found


def even(inputs: Inputs, layers: int) -> dict[str, Site]:
    """Return the sites of inputs without learned codebooks; exact inputs have none."""
    sites = {name: inputs.site(name, np.empty((0, 0))) for name in inputs.chosen}
    return {
        f"layers.{index}.{name}": site for index in range(layers) for name, site in sites.items()
    }
