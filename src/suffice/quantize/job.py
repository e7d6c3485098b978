"""Quantizing a model layer by layer, each on the outputs of the quantized layers before it.

Each finished layer is stored in a file of its own, so an interrupted run continues where it
stopped; so are token weights, if the method needs them. In memory are the model, the hidden states
of the text, and H = E[x x^T] for the activation sites of one layer.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from suffice.backends.cpu.linear import unpack
from suffice.backends.cpu.packing import pack, quantize
from suffice.checkpoints.formats.quantized_config import described_config
from suffice.checkpoints.formats.quantized_file import read_part, write_part
from suffice.decoder.weights import DecoderWeights
from suffice.errors import InputError
from suffice.paths import unfinished
from suffice.quant import PackedLinear
from suffice.quant.activations import Site
from suffice.quant.gptq import loss
from suffice.quant.packed_codes import PackedCodes
from suffice.quant.sites import CALIBRATED, VOCABULARY
from suffice.quantize.calibrated import Calibrated
from suffice.quantize.experts import quantized_experts
from suffice.quantize.layerwise import GRADIENT, Layerwise
from suffice.quantize.sensitivity import Sensitivity
from suffice.text.tokenizer import Tokenizer

LOCK = "lock"  # held by the run whose folder it is


@contextmanager
def alone(folder: Path, output: Path) -> Iterator[None]:
    """Make the folder of a run that makes `output`, and lock it against other runs.

    Raises:
        InputError: It cannot be made, or another run is at work.
    """
    try:
        folder.mkdir(exist_ok=True)
        held = (folder / LOCK).open("w")
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error.strerror}") from None
    with held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                f"another run is making {output}: wait for it, or give another -o"
            ) from None
        yield


class Quantizing:
    """Quantizes `decoder`, in float32, by `method` on windows of tokens, into the file `output`.

    The decoder is consumed: its float weights are freed layer by layer.

    `facts` are stored in the file: model, method and text. An unfinished run is continued only by a
    run with the same facts.

    Raises:
        InputError: Too few tokens to calibrate on, or a decoder that was consumed before.
    """

    def __init__(
        self,
        decoder: DecoderWeights,
        method: Calibrated,
        windows: Sequence[list[int]],
        output: Path,
        facts: dict[str, Any],
    ) -> None:
        tokens = sum(map(len, windows))
        if tokens < decoder.config.width:
            raise InputError(
                f"the text has {tokens} tokens to calibrate on; at least {decoder.config.width}, "
                "the width of the model, are needed"
            )
        if any(isinstance(each, PackedCodes) for each in decoder.weights.values()):
            raise InputError("the decoder is quantized already: give one in float32")
        self._decoder = decoder
        self._method = method
        self._windows = windows
        self._output = output
        self._facts = facts
        job = json.dumps(facts | {"tokens": list(windows)}, sort_keys=True).encode()
        self._job = hashlib.sha256(job).hexdigest()[:16]
        self._folder = output.with_name(output.name + ".layers")
        self.unreached: dict[int, list[int]] = {}  # experts by layer, once the file is written

    def weigh(self) -> Iterator[int]:
        """Compute the weights of the tokens, window after window; yield the number of each.

        A method without `fisher` and `weighs_inputs` has none. Stored windows are not computed
        again.

        Raises:
            InputError: A stored file belongs to another job, or cannot be written.
        """
        if not (self._method.fisher or self._method.weighs_inputs):
            return
        sensitivity: Sensitivity | None = None
        with alone(self._folder, self._output):
            for index in range(len(self._windows)):
                path = self._tokens_path(index)
                if not path.is_file():
                    sensitivity = sensitivity or Sensitivity(
                        self._decoder, self._windows, sites=self._method.weighs_inputs
                    )
                    found = sensitivity.of(index) | sensitivity.gradients
                    stored = {name: each.numpy() for name, each in found.items()}
                    write_part(path, stored, {"job": self._job})
                yield index

    def run(self) -> Iterator[int]:
        """Quantize layer after layer, but for those stored; yield the number done.

        Raises:
            InputError: A weight that cannot be quantized, or a file that cannot be written.
        """
        weights = [self._tokens(window) for window in self.weigh()]
        layers = Layerwise(self._decoder, self._windows, weights)
        with alone(self._folder, self._output):
            for index in range(len(self._decoder.config.layers)):
                path = self._layer_path(index)
                matrices = self._kept(path)
                if matrices is None:
                    matrices, facts = self._layer(layers, index)
                    write_part(path, matrices, {"job": self._job, **facts})
                layers.replace(index, matrices)
                layers.advance(index)
                yield index + 1

    def write(self, tokenizer: Tokenizer) -> None:
        """Write the file from the layers and the other weights, and remove the layers' files.

        Raises:
            InputError: It cannot be written, or the tokenizer cannot be stored.
        """
        weights = dict(self._decoder.weights)
        losses: dict[str, Any] = {}
        self.unreached = {}
        for index in range(len(self._decoder.config.layers)):
            facts, matrices = read_part(self._layer_path(index))
            if facts.get("unreached"):
                self.unreached[index] = facts["unreached"]
            for name, matrix in matrices.items():
                weights[f"layers.{index}.{name}"] = matrix
                losses[f"layers.{index}.{name}"] = {"loss": facts["matrices"][name]["loss"]}
        for name in VOCABULARY:
            table = weights.get(name)
            if isinstance(table, PackedLinear):
                method = self._method.for_matrix(name)
                weights[name] = pack(method, unpack(table), table.bias, np.empty)
        described, text = tokenizer.stored()
        facts = self._facts | {
            "config": described_config(self._decoder.config),
            "tokenizer": described,
            "losses": losses,
        }
        if self._decoder.config.experts:
            facts["unreached"] = self.unreached
        stored = np.frombuffer(text.encode(), np.uint8)
        write_part(self._output, weights, facts, tokenizer=stored)
        self._clear()

    def _clear(self) -> None:
        """Remove the folder, except for files of others."""
        layers = map(self._layer_path, range(len(self._decoder.config.layers)))
        tokens = map(self._tokens_path, range(len(self._windows)))
        for path in (*layers, *tokens, self._folder / LOCK):
            for each in (path, *unfinished(path)):
                each.unlink(missing_ok=True)
        with suppress(OSError):
            self._folder.rmdir()

    def _layer_path(self, index: int) -> Path:
        return self._folder / f"{index:04}.safetensors"

    def _tokens_path(self, window: int) -> Path:
        return self._folder / f"tokens-{window:04}.safetensors"

    def _tokens(self, window: int) -> dict[str, torch.Tensor]:
        """Return the weights of a window's tokens, by matrix, and the gradients of its sites."""
        weights = self._read(self._tokens_path(window))
        return {
            name: torch.from_numpy(each)
            for name, each in weights.items()
            if isinstance(each, np.ndarray) and (self._method.fisher or name.endswith(GRADIENT))
        }

    def _kept(self, path: Path) -> dict[str, PackedLinear] | None:
        """Return the matrices that an earlier run of the same job stored, if any."""
        if not path.is_file():
            return None
        weights = self._read(path)
        return {name: each for name, each in weights.items() if isinstance(each, PackedLinear)}

    def _read(self, path: Path) -> dict[str, PackedLinear | np.ndarray]:
        """Return the content of a file of this job.

        Raises:
            InputError: It belongs to another job, or is damaged.
        """
        facts, weights = read_part(path)
        if facts.get("job") != self._job:
            raise InputError(
                f"{self._folder} is of another quantization: remove it, or give another -o"
            )
        return weights

    def _layer(
        self, layers: Layerwise, index: int
    ) -> tuple[dict[str, PackedLinear], dict[str, Any]]:
        """Return a layer's matrices in codes, and facts: the loss of each one's outputs, and the
        experts that the text does not reach."""
        inputs, dense = layers.inputs(index), layers.matrices(index)
        matrices: dict[str, PackedLinear] = {}
        losses: dict[str, dict[str, float]] = {}
        for site, names in CALIBRATED.items():
            if site not in inputs:
                continue
            samples, gradients = inputs[site].samples.numpy(), inputs[site].gradients
            own = None if gradients is None else gradients.numpy()
            levels = cast(Calibrated, self._method.for_matrix(names[0])).site(samples, own)
            for name in names:
                if name not in dense:
                    continue
                method = cast(Calibrated, self._method.for_matrix(name))
                try:
                    matrix = _matrix(method, dense[name], inputs[site].of(name).numpy(), levels)
                except InputError as error:
                    raise InputError(f"layers.{index}.{name}: {error}") from None
                matrices[name] = matrix
                losses[name] = {"loss": _lost(dense[name], matrix, inputs[site].hessian.numpy())}
        experts = quantized_experts(layers, index, self._method)
        facts = {"losses": losses | experts.losses, "unreached": experts.unreached}
        return matrices | experts.matrices, facts


def _matrix(
    method: Calibrated, dense: PackedLinear, hessian: np.ndarray, levels: Site | None
) -> PackedLinear:
    return method.packed(quantize(method, unpack(dense), hessian), dense.bias, levels)


def _lost(dense: PackedLinear, matrix: PackedLinear, hessian: np.ndarray) -> float:
    weight = unpack(dense)
    whole = loss(weight, np.zeros_like(weight), hessian)
    return loss(weight, unpack(matrix), hessian) / whole if whole else 0.0
