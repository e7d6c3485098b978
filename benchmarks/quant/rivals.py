"""KLLM's rivals in its Table II, for perplexity alone: weights of 4 bits, inputs of few.

All give a decoder whose weights are dense floats with the values that codes would have, and for
each activation site what rounds its inputs. x[k] is an input, w[n, k] a weight, Q rounds to an even
symmetric grid: weights with a scale for each output n, inputs with one for each token.

    smoothquant   Q(w s) Q(x / s),  s[k] = sqrt(max |x[k]| / max |w[:, k]|), one s for a site
    quarot        Q(w H) Q(H^T x),  H a rotation; Q of w compensates errors (GPTQ)
    atom          channels in order of E[x^2]: the largest in 8 bits, the others in groups of 128
                  that share a scale, of w and of x; Q of w compensates errors
    squeezellm    weights alone: 16 centroids for each output n, K-means weighted by Fisher
                  information; the most sensitive and the largest weights stay exact

Source   Xiao et al. 2023 (SmoothQuant); Ashkboos et al. 2024 (QuaRot); Zhao et al. 2024 (Atom); Kim
         et al. 2024 (SqueezeLLM), each by its paper's settings.
Differs  Where a width is no power of two, QuaRot's rotation is a Hadamard matrix in blocks and a
         Hartley matrix across them. Keys, values and queries are not rounded, as elsewhere here.
         Atom has 128 of 4096 channels in 8 bits; here it is that share. Fisher information is a
         number per token, times x^2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from suffice.backends.cpu.linear import unpack
from suffice.errors import InputError
from suffice.quant import PackedLinear, gptq
from suffice.quant.activations import ActivationRows
from suffice.quant.coded import Grid
from suffice.quant.hadamard import block_of, rotate
from suffice.quant.none import NoQuant
from suffice.quant.sites import SITES
from suffice.quantize.layerwise import Layerwise, SiteInputs
from suffice.quantize.sensitivity import Sensitivity
from suffice.quantize.torch_decoder import TorchDecoder

BITS, WIDE = 4, 8  # of weights; of Atom's largest channels
GROUP, KEPT = 128, 128 / 4096  # Atom: channels that share a scale, share of channels in 8 bits
CLIP = 0.9  # of the largest magnitude of inputs: QuaRot, Atom
SENSITIVE, LARGE = 0.0005, 0.004  # SqueezeLLM: shares of weights that stay exact
ROUNDS = 20  # of K-means
SPARSE_BITS = 16 + 32  # of an exact weight: its value, and its place

Weights = dict[str, np.ndarray]  # [N, K] by matrix
Rounder = Callable[[np.ndarray, int], np.ndarray]  # inputs [T, K] and bits, to rounded inputs


@dataclass(frozen=True)
class Rounded:
    """What rounds the inputs of a site to some bits; see `benchmarks.quant.sites.Rounding`."""

    rounder: Rounder
    bits: int

    def rows(self, values: np.ndarray) -> ActivationRows:
        """Return tokens' inputs [T, K] after rounding."""
        found = self.rounder(values, self.bits).astype(np.float32)
        return ActivationRows(found, np.ones_like(found), found)


class RivalDecoder(TorchDecoder):
    """A decoder with a rival's weights, and its way to round the inputs of each site."""

    rounders: dict[str, Rounder]
    bits: float

    def sites(self, bits: int) -> dict[str, Rounded]:
        """Return what rounds the inputs of each site, such as `layers.0.qkv`, to some bits.

        Raises:
            InputError: The rival has no inputs of few bits.
        """
        if not self.rounders:
            raise InputError("squeezellm: has inputs of 16 bits alone")
        return {site: Rounded(rounder, bits) for site, rounder in self.rounders.items()}


def even(values: np.ndarray, bits: int, clip: float = 1.0) -> np.ndarray:
    """Return rows [..., K] rounded to an even symmetric grid of 2^bits - 1 values each."""
    top = 2 ** (bits - 1) - 1
    scale = clip * np.abs(values).max(-1, keepdims=True) / top
    scale = np.where(scale > 0, scale, 1)
    found: np.ndarray = np.clip(np.rint(values / scale), -top, top) * scale
    return found


def compensated(weight: np.ndarray, hessian: np.ndarray, group: int | None = None) -> np.ndarray:
    """Return a weight [N, K] on an even grid of 4 bits, with GPTQ's compensation of errors."""
    group, top = group or weight.shape[1], 2 ** (BITS - 1) - 1
    levels = np.arange(-top, top + 1, dtype=np.float32)
    starts = np.arange(0, weight.shape[1], group)
    scale = np.maximum.reduceat(np.abs(weight), starts, axis=1) / np.float32(top)
    return gptq.compensate(weight, hessian, Grid(levels, scale, group)).decode()


def smoothquant(weights: Weights, inputs: SiteInputs) -> tuple[Weights, Rounder]:
    """Return the weights of the matrices of a site, and what rounds its inputs."""
    largest = np.max([np.abs(each).max(0) for each in weights.values()], axis=0)
    spread = np.abs(inputs.samples.numpy()).max(0)
    known = (largest > 0) & (spread > 0)
    smooth = np.sqrt(np.divide(spread, largest, out=np.ones_like(spread), where=known))
    found = {name: even(each * smooth, BITS) / smooth for name, each in weights.items()}
    return found, lambda x, bits: even(x / smooth, bits) * smooth


def quarot(weights: Weights, inputs: SiteInputs) -> tuple[Weights, Rounder]:
    """Return the weights of the matrices of a site, and what rounds its inputs."""
    hessian = inputs.hessian.numpy()
    block = block_of(len(hessian))
    turned = rotate(np.ascontiguousarray(rotate(hessian, block).T), block)
    found = {
        name: rotate(compensated(rotate(each, block), turned), block)
        for name, each in weights.items()
    }
    return found, lambda x, bits: rotate(
        even(rotate(x, block), bits, CLIP).astype(np.float32), block
    )


def atom(weights: Weights, inputs: SiteInputs) -> tuple[Weights, Rounder]:
    """Return the weights of the matrices of a site, and what rounds its inputs."""
    hessian = inputs.hessian.numpy()
    order = np.argsort(hessian.diagonal(), kind="stable")
    wide = round(KEPT * len(order))
    narrow, back = len(order) - wide, np.argsort(order)
    part = np.ascontiguousarray(hessian[order][:, order][:narrow, :narrow])

    def coded(weight: np.ndarray) -> np.ndarray:
        low = np.ascontiguousarray(weight[:, order[:narrow]])
        parts = compensated(low, part, GROUP), even(weight[:, order[narrow:]], WIDE)
        return np.concatenate(parts, 1)[:, back]

    def rounder(x: np.ndarray, bits: int) -> np.ndarray:
        sorted_ = x[:, order]
        parts = [
            even(sorted_[:, at : min(at + GROUP, narrow)], bits, CLIP)
            for at in range(0, narrow, GROUP)
        ]
        found: np.ndarray = np.concatenate([*parts, even(sorted_[:, narrow:], WIDE)], 1)[:, back]
        return found

    return {name: coded(each) for name, each in weights.items()}, rounder


def squeezellm(weights: Weights, inputs: SiteInputs) -> tuple[Weights, None]:
    """Return the weights of the matrices of a site."""
    return {
        name: _squeezed(each, inputs.of(name).numpy().diagonal()) for name, each in weights.items()
    }, None


def _squeezed(weight: np.ndarray, importance: np.ndarray) -> np.ndarray:
    """Return a weight [N, K] with 16 values a row, but for what stays exact."""
    cost = np.broadcast_to(importance, weight.shape)
    exact = np.zeros(weight.shape, bool)
    for share, size in ((SENSITIVE, cost * np.square(weight)), (LARGE, np.abs(weight))):
        exact |= size >= np.quantile(size, 1 - share)
    centroids = kmeans(weight, np.where(exact, 0, cost))
    codes = (weight[..., None] >= _borders(centroids)[:, None]).sum(-1)
    return np.where(exact, weight, np.take_along_axis(centroids, codes, 1))


def kmeans(rows: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """Return 2^BITS centroids [N, C] of the values of each row [N, K], ascending.

    `cost` [N, K] weighs them.
    """
    count = 2**BITS
    order = np.argsort(rows, axis=1)
    values, weights = (np.take_along_axis(each, order, 1).astype(float) for each in (rows, cost))
    places = np.linspace(0, rows.shape[1] - 1, 2 * count + 1).round().astype(int)[1::2]
    centroids = values[:, places]
    at = np.arange(len(rows))[:, None]
    sums = [np.pad(np.cumsum(each, 1), ((0, 0), (1, 0))) for each in (weights, weights * values)]
    for _ in range(ROUNDS):
        inner = (values[..., None] < _borders(centroids)[:, None]).sum(1)
        ends = np.pad(inner, ((0, 0), (1, 1)), constant_values=(0, 0))
        ends[:, -1] = rows.shape[1]
        total, moment = (each[at, ends[:, 1:]] - each[at, ends[:, :-1]] for each in sums)
        centroids = np.divide(moment, total, out=centroids.copy(), where=total > 0)
        centroids.sort(axis=1)
    return centroids.astype(np.float32)


def _borders(centroids: np.ndarray) -> np.ndarray:
    found: np.ndarray = (centroids[:, 1:] + centroids[:, :-1]) / 2
    return found


RIVALS: dict[str, Callable[[Weights, SiteInputs], tuple[Weights, Rounder | None]]] = {
    "smoothquant": smoothquant,
    "quarot": quarot,
    "atom": atom,
    "squeezellm": squeezellm,
}


def is_rivals(weights: str) -> bool:
    """Return whether this name stands for weights of a rival."""
    return weights in RIVALS


def bits_of(name: str, shapes: Sequence[tuple[int, int]]) -> float:
    """Return the bits for each weight of matrices [N, K], scales and centroids included."""
    total = 0.0
    for rows, columns in shapes:
        own = float(BITS)
        if name == "atom":
            own += KEPT * (WIDE - BITS) + 16 / GROUP
        elif name == "squeezellm":
            own += 16 * 2**BITS / columns + (SENSITIVE + LARGE) * SPARSE_BITS
        else:
            own += 16 / columns
        total += rows * columns * own
    return total / sum(rows * columns for rows, columns in shapes)


def quantized(
    decoder: TorchDecoder, windows: Sequence[list[int]], name: str
) -> Iterator[int | RivalDecoder]:
    """Yield the number of finished layers, and at the end the decoder with a rival's weights."""
    tokens: list[dict[str, torch.Tensor]] = []
    if name == "squeezellm":
        sensitivity = Sensitivity(decoder, windows)
        tokens = [sensitivity.of(window) for window in range(len(windows))]
    floats, layers = NoQuant("float32"), Layerwise(decoder, windows, tokens)
    rounders: dict[str, Rounder] = {}
    shapes: list[tuple[int, int]] = []
    for index in range(len(decoder.config.layers)):
        inputs, dense = layers.inputs(index), layers.matrices(index)
        replaced: dict[str, PackedLinear] = {}
        for site, names in SITES.items():
            own = {each: unpack(dense[each]) for each in names if each in dense}
            found, rounder = RIVALS[name](own, inputs[site])
            if rounder:
                rounders[f"layers.{index}.{site}"] = rounder
            for each, weight in found.items():
                shapes.append(weight.shape)
                packed = np.ascontiguousarray(weight, np.float32)
                replaced[each] = floats.pack(packed, dense[each].bias)
        layers.replace(index, replaced)
        layers.advance(index)
        yield index + 1
    rival = RivalDecoder(decoder.config, decoder.weights, device=decoder.device)
    rival.rounders, rival.bits = rounders, bits_of(name, shapes)
    yield rival
