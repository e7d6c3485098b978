"""Cells of quality.py: weights stored in one way, inputs of their matmuls in another.

A model runs in PyTorch with the decoded weights, layer by layer: all windows pass through a layer
before the next. By default the inputs of all matrices of a layer are rounded, or those of other
sites (see `sites`); the head's are not. Matmuls are in float32, which is closest to the native step
with 16-bit inputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import torch_device
from benchmarks.quant.peer_weights import PeerWeights, is_peers, peer_path
from benchmarks.quant.rivals import RivalDecoder, is_rivals, quantized
from benchmarks.quant.sites import Inputs, Rounding
from suffice.checkpoints.checkpoint import Checkpoint
from suffice.checkpoints.formats.quantized_file import open_quantized
from suffice.errors import InputError
from suffice.eval.perplexity import PerplexityResult, PerplexityTally
from suffice.quant import QUANTS, PackedLinear
from suffice.quant.none import NoQuant
from suffice.quant.packed_codes import PackedCodes
from suffice.quantize.job import Quantizing
from suffice.quantize.torch_decoder import HOST, TorchDecoder
from suffice.registry import Table
from suffice.text.tokenizer import Tokenizer

UNCALIBRATED = " uncalibrated"
FLOAT = "none"
ROWS = 128  # of logits that exist at a time

INPUTS = Table("inputs", {"inputs": "benchmarks.quant.sites:Inputs"})


def parsed(setting: str) -> tuple[str, Inputs]:
    """Return the weights and inputs of a setting such as `kmeans + a=8,outliers=0.01`.

    Raises:
        InputError: An unknown method or option.
    """
    weights, _, inputs = setting.partition(" + ")
    if not (is_peers(weights) or is_rivals(weights)):
        _method(weights)
    found: Inputs = INPUTS.build(f"inputs:{inputs}" if inputs else "inputs")
    return weights, found


def _method(weights: str) -> Any:
    return QUANTS.build(weights.removesuffix(UNCALIBRATED))


def scored(
    ours: Rounding, reference: Rounding, windows: Sequence[list[int]]
) -> Iterator[PerplexityTally]:
    """Yield, window by window, the tally of a run's predictions compared with the reference."""
    tally = PerplexityTally(len(windows))
    with torch.no_grad():
        for number, window in enumerate(windows):
            for at in range(0, len(window) - 1, ROWS):
                end = min(at + ROWS, len(window) - 1)
                logits, exact = (
                    each.logits(each.states[number][at:end]) for each in (ours, reference)
                )
                torch_device.compare(tally, number, window[at + 1 : end + 1], logits, exact)
            yield tally


def cell_of(result: PerplexityResult, bits: float) -> dict[str, Any]:
    """Return the stored part of a result."""
    assert result.against is not None
    own = {"bits": bits, "perplexity": result.perplexity, "error": result.error}
    return dataclasses.asdict(result.against) | own | {"reference": result.against.perplexity}


def kept_path(folder: Path, model: str, weights: str) -> Path:
    """Return the file of a model's quantized weights."""
    name = "".join(c if c.isalnum() or c in "=,." else "-" for c in weights)
    return folder / f"{model}-{name}.safetensors"


def bits_of(decoder: TorchDecoder) -> float:
    """Return the bits for each weight of the layers' matrices, scales and codebooks included."""
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
    """A model to quantize, its calibration, and the folder of quantized weights."""

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    calibration: Sequence[list[int]]
    facts: dict[str, Any]  # of the model and the text
    folder: Path
    device: torch.device = HOST  # where decoders run

    def floats(self) -> TorchDecoder:
        """Return the model in float32."""
        return self._stored(NoQuant("float32"))

    def _stored(self, method: Any) -> TorchDecoder:
        """Return the model with weights by a method that needs no text."""
        return self._placed(TorchDecoder.from_checkpoint(self.checkpoint, method))

    def _placed(self, decoder: TorchDecoder) -> TorchDecoder:
        decoder.device = self.device
        return decoder

    def weights(self, weights: str) -> Iterator[Any]:
        """Yield the number of quantized layers, if any must be, and at the end the decoder.

        Raises:
            InputError: A method that cannot store the weights.
        """
        if weights == FLOAT:
            yield self.floats()
            return
        if is_peers(weights):
            yield self._placed(self._peers(weights).decoder(self.checkpoint))
            return
        if is_rivals(weights):
            yield from quantized(self.floats(), self.calibration, weights)
            return
        method = _method(weights)
        if weights.endswith(UNCALIBRATED) or not hasattr(method, "site"):
            yield self._stored(method)
            return
        path = kept_path(self.folder, self.facts["model"]["name"], weights)
        facts = self.facts | {"method": weights}
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            quantizing = Quantizing(self.floats(), method, self.calibration, path, facts)
            yield from quantizing.run()
            quantizing.write(self.tokenizer)
        opened = open_quantized(path)
        found = {key: opened.facts[key] for key in facts}
        if found != facts:
            raise InputError(f"{path} is of {found}, not of {facts}: remove it")
        yield TorchDecoder(opened.config, opened.weights, device=self.device)

    def bits(self, weights: str, decoder: TorchDecoder) -> float:
        """Return the bits for each weight of the layers' matrices."""
        if isinstance(decoder, RivalDecoder):
            return decoder.bits
        return self._peers(weights).bits() if is_peers(weights) else bits_of(decoder)

    def _peers(self, weights: str) -> PeerWeights:
        model = self.facts["model"]["name"]
        return PeerWeights(weights, peer_path(self.folder, model, weights))
