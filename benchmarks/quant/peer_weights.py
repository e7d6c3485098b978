"""Weights quantized by peers: files of `quantize_peers`, and decoders with such weights.

`llama.cpp:Q4_0` is a .gguf file with one of llama.cpp's types; `hqq:group=64` has the decoded HQQ
codes of the layers' matrices, other weights unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
from safetensors.numpy import load_file

from suffice.checkpoints.checkpoint import Checkpoint
from suffice.checkpoints.open import open_checkpoint
from suffice.errors import InputError
from suffice.quant.none import NoQuant
from suffice.quantize.torch_decoder import TorchDecoder

LLAMA, HQQ = "llama.cpp:", "hqq:group="
HQQ_BITS, HQQ_GROUP_BITS = 4, 2 * 16  # of a weight, and the scale and zero of a group


def is_peers(weights: str) -> bool:
    """Return whether this name stands for weights of a peer."""
    return weights.startswith((LLAMA, HQQ))


def peer_path(folder: Path, model: str, weights: str) -> Path:
    """Return the file of a model quantized by a peer."""
    if weights.startswith(LLAMA):
        return folder / f"{model}-{weights.removeprefix(LLAMA)}.gguf"
    return folder / f"{model}-{weights.replace(':', '-')}.safetensors"


@dataclass(frozen=True)
class PeerWeights:
    """Weights of a given name, in a file.

    Raises:
        InputError: The file does not exist.
    """

    weights: str
    path: Path

    def __post_init__(self) -> None:
        if not self.path.is_file():
            raise InputError(f"{self.path} is missing: benchmarks.quant.quantize_peers makes it")

    def decoder(self, checkpoint: Checkpoint) -> TorchDecoder:
        """Return a checkpoint's model with these weights, in float32."""
        if self.weights.startswith(LLAMA):
            return TorchDecoder.from_checkpoint(open_checkpoint(self.path), NoQuant("float32"))
        floats = NoQuant("float32")
        decoder = TorchDecoder.from_checkpoint(checkpoint, floats)
        for name, matrix in load_file(self.path).items():
            if name not in decoder.weights:
                raise InputError(f"{self.path} has {name}, which the model does not have")
            decoder.weights[name] = floats.pack(matrix, decoder.matrix(name).bias)
        return decoder

    def bits(self) -> float:
        """Return the bits for each weight of the layers' matrices."""
        if self.weights.startswith(HQQ):
            return HQQ_BITS + HQQ_GROUP_BITS / int(self.weights.removeprefix(HQQ))
        tensors = [t for t in gguf.GGUFReader(self.path).tensors if t.name.startswith("blk.")]
        matrices = [each for each in tensors if len(each.shape) == 2]
        return 8 * sum(each.n_bytes for each in matrices) / sum(int(m.n_elements) for m in matrices)
