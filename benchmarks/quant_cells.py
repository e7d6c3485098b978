"""Cells of quant_quality.py: weights stored in some way, inputs of their products in another.

A model runs in PyTorch with the weights that its codes stand for, layer by layer, all windows
through a layer before the next. Rounded inputs are those of every matrix of a layer; the head's are
not. Products are float32: the native step's inputs of 16 bits are the nearest thing to them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quant_peers import PeerWeights, is_peers, peer_path
from suffice.errors import InputError
from suffice.eval.perplexity import Result, Scores, Tally
from suffice.models.checkpoint import Checkpoint
from suffice.models.decoder import Decoder
from suffice.models.layerwise import SITE_OF, SITES, Layerwise
from suffice.models.quantise import Quantising
from suffice.models.quantised import open_quantised
from suffice.models.tokenizer import Tokenizer
from suffice.quant import QUANTS, PackedLinear
from suffice.quant.activations import Site, check_input_group
from suffice.quant.hadamard import rotate
from suffice.quant.none import NoQuant
from suffice.quant.packed_codes import PackedCodes
from suffice.registry import Table

UNCALIBRATED = " uncalibrated"
FLOAT = "none"
EXACT = 16  # bits of inputs that are left as they are
LEARNED = (3, 4)  # bits of inputs for which K-means finds levels
ROWS = 128  # of logits that exist at a time


@dataclass(frozen=True)
class Inputs:
    """How the inputs of products are rounded: `a` bits, `outliers` of a token's values kept.

    The share of outliers is of both ends together, as in the paper. Levels are K-means centroids,
    or if `even` evenly spaced and symmetric, as those of 8 bits always are. `offline`: thresholds
    found beforehand say what is an outlier.
    """

    a: int = EXACT
    outliers: float = 0.0
    even: bool = False
    offline: bool = False
    group: int | None = None

    def __post_init__(self) -> None:
        if self.a not in (*LEARNED, 8, EXACT):
            raise InputError(f"inputs: a={self.a} bits; allowed: 3, 4, 8, 16")
        if not 0 <= self.outliers <= 1:
            raise InputError(f"inputs: outliers={self.outliers}; allowed: 0..1")
        if self.a == EXACT and (self.outliers or self.even or self.offline):
            raise InputError("inputs: a=16 is exact; it goes with no other option")
        if self.offline and (self.even or self.a == 8 or not self.outliers):
            raise InputError("inputs: offline=true goes with outliers and K-means levels")
        check_input_group("inputs: group", self.group)
        if self.group and not self.learned:
            raise InputError("inputs: group goes with K-means levels")

    @property
    def learned(self) -> bool:
        """Whether levels or thresholds come from a calibration."""
        return self.a in LEARNED and not self.even

    def site(self, samples: torch.Tensor) -> Site:
        """Return the levels for a site of which some inputs [T, K] are known."""
        share = self.outliers / 2
        if self.learned:
            return Site.learn(samples, self.a, share, offline=self.offline, group=self.group)
        top = 2 ** (self.a - 1) - 1
        return Site(torch.arange(-top, top + 1) / top, share)


INPUTS = Table("inputs", {"inputs": "quant_cells:Inputs"})


def parsed(setting: str) -> tuple[str, Inputs]:
    """Return the weights and inputs of a setting such as `kmeans + a=8,outliers=0.01`.

    Raises:
        InputError: An unknown method or option.
    """
    weights, _, inputs = setting.partition(" + ")
    if not is_peers(weights):
        _method(weights)
    found: Inputs = INPUTS.build(f"inputs:{inputs}")
    return weights, found


def _method(weights: str) -> Any:
    return QUANTS.build(weights.removesuffix(UNCALIBRATED))


class Rounding(Layerwise):
    """Windows that run through a decoder whose products take rounded inputs."""

    def __init__(self, decoder: Decoder, windows: Sequence[Sequence[int]]) -> None:
        super().__init__(decoder, windows)
        self.sites: dict[str, Site] = {}  # by site of a layer, such as `layers.0.q`
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def states(self) -> list[torch.Tensor]:
        """The hidden states [T, M] of each window."""
        return self._states

    def logits(self, state: torch.Tensor) -> torch.Tensor:
        """Return the logits [T, V] of hidden states [T, M] after the last layer."""
        return self._logits(state)

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        layer, _, matrix = name.rpartition(".")
        site = self.sites.get(f"{layer}.{SITE_OF.get(matrix)}")
        if site is None:
            return super()._linear(name, x)
        if self._last is None or self._last[0] is not x:  # q, k and v share theirs
            rotation = rotation_of(self._matrix(name))
            turned = rotate(x, rotation) if rotation else x
            rounded = site.rounded(turned)
            self._last = x, rotate(rounded, rotation) if rotation else rounded
        return super()._linear(name, self._last[1])


def rotation_of(matrix: PackedLinear) -> int:
    """Return in which blocks the inputs of a matrix are rotated; 0: they are not."""
    return matrix.rotation if isinstance(matrix, PackedCodes) else 0


def run(decoder: Decoder, windows: Sequence[list[int]], sites: dict[str, Site]) -> Iterator[Any]:
    """Yield after each layer how many are done, and at the end the run, with all its states."""
    rounding = Rounding(decoder, windows)
    rounding.sites = sites
    for index in range(len(decoder.config.layers)):
        rounding.advance(index)
        yield index + 1
    yield rounding


def learned(
    decoder: Decoder, windows: Sequence[list[int]], inputs: Sequence[Inputs]
) -> Iterator[Any]:
    """Yield after each layer how many are done, and at the end the sites for each of the inputs."""
    layers = Layerwise(decoder, windows)
    found: dict[Inputs, dict[str, Site]] = {each: {} for each in inputs}
    for index in range(len(decoder.config.layers)):
        known, matrices = layers.inputs(index), layers.matrices(index)
        for site, names in SITES.items():
            rotation = rotation_of(next(matrices[name] for name in names if name in matrices))
            samples = known[site].samples
            turned = rotate(samples, rotation) if rotation else samples
            for each in inputs:
                found[each][f"layers.{index}.{site}"] = each.site(turned)
        layers.advance(index)
        yield index + 1
    yield found


def even(inputs: Inputs, layers: int) -> dict[str, Site]:
    """Return the sites of inputs whose levels are not learned; those of exact inputs are none."""
    if inputs.a == EXACT:
        return {}
    same = inputs.site(torch.empty(0, 0))
    return {f"layers.{index}.{site}": same for index in range(layers) for site in SITES}


def scored(ours: Rounding, reference: Rounding, windows: Sequence[list[int]]) -> Iterator[Tally]:
    """Yield, window by window, the tally of what a run predicts beside the reference."""
    tally = Tally(len(windows))
    with torch.no_grad():
        for number, window in enumerate(windows):
            for at in range(0, len(window) - 1, ROWS):
                end = min(at + ROWS, len(window) - 1)
                pair = (
                    Scores(
                        [number] * (end - at),
                        window[at + 1 : end + 1],
                        each.logits(each.states[number][at:end]),
                    )
                    for each in (ours, reference)
                )
                tally.add(*pair)
            yield tally


def cell_of(result: Result, bits: float) -> dict[str, Any]:
    """Return what is kept of a result."""
    assert result.against is not None
    own = {"bits": bits, "perplexity": result.perplexity, "error": result.error}
    return dataclasses.asdict(result.against) | own | {"reference": result.against.perplexity}


def kept_path(folder: Path, model: str, weights: str) -> Path:
    """Return where a model's weights are kept once they are quantised."""
    name = "".join(c if c.isalnum() or c in "=,." else "-" for c in weights)
    return folder / f"{model}-{name}.safetensors"


def bits_of(decoder: Decoder) -> float:
    """Return the bits for each weight of the layers' matrices, scales and levels included."""
    matrices = [
        each
        for name, each in decoder.weights.items()
        if isinstance(each, PackedLinear) and name.startswith("layers.")
    ]
    parts = [part for each in matrices for part in (each.data, each.scale)]
    parts += [each.levels for each in matrices if isinstance(each, PackedCodes)]
    entries = sum(each.rows * each.columns for each in matrices)
    return 8 * sum(part.nbytes for part in parts if part is not None) / entries


@dataclass(frozen=True)
class Source:
    """A model to quantise, its calibration, and where what was quantised is kept."""

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    calibration: Sequence[list[int]]
    facts: dict[str, Any]  # of the model and the text
    folder: Path

    def floats(self) -> Decoder:
        """Return the model in float32."""
        return Decoder.from_checkpoint(self.checkpoint, NoQuant("float32"))

    def weights(self, weights: str) -> Iterator[Any]:
        """Yield how many layers are quantised, if they must be, and at the end the decoder.

        Raises:
            InputError: A method that the weights cannot be stored by.
        """
        if weights == FLOAT:
            yield self.floats()
            return
        if is_peers(weights):
            yield self._peers(weights).decoder(self.checkpoint)
            return
        method = _method(weights)
        if weights.endswith(UNCALIBRATED) or not hasattr(method, "site"):
            yield Decoder.from_checkpoint(self.checkpoint, method)
            return
        path = kept_path(self.folder, self.facts["model"]["name"], weights)
        facts = self.facts | {"method": weights}
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            quantising = Quantising(self.floats(), method, self.calibration, path, facts)
            yield from quantising.run()
            quantising.write(self.tokenizer)
        opened = open_quantised(path)
        found = {key: opened.facts[key] for key in facts}
        if found != facts:
            raise InputError(f"{path} is of {found}, not of {facts}: remove it")
        yield Decoder(opened.config, opened.weights)

    def bits(self, weights: str, decoder: Decoder) -> float:
        """Return the bits for each weight of the layers' matrices."""
        return self._peers(weights).bits() if is_peers(weights) else bits_of(decoder)

    def _peers(self, weights: str) -> PeerWeights:
        model = self.facts["model"]["name"]
        return PeerWeights(weights, peer_path(self.folder, model, weights))
