"""Opens models in any storage format."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from suffice.checkpoints.checkpoint import Checkpoint, assemble
from suffice.checkpoints.files import is_quantized, locate
from suffice.checkpoints.formats.quantized_file import Quantized, open_quantized
from suffice.checkpoints.matching import check_layers
from suffice.checkpoints.source import Source
from suffice.decoder.families import family_of
from suffice.decoder.ignored import is_stored_whole, without_quantization
from suffice.errors import InputError


def open_model(model: str | Path) -> Checkpoint | Quantized:
    """Open a Hugging Face directory, a hub id, a `.gguf` file or a file of `suffice quantize`.

    Raises:
        InputError: No such model, damaged or incomplete files, an unsupported architecture, field
            or type, or weights that do not match the configuration; the message names them.
    """
    path = locate(model)
    if is_quantized(path):
        return open_quantized(path)
    if path.is_file():
        from suffice.checkpoints.formats.gguf_model import open_gguf

        return open_gguf(path)
    return _open_folder(path)


def _open_folder(path: Path) -> Checkpoint:
    from suffice.checkpoints.formats.hf_folder import FolderTensors, Safetensors, read_json
    from suffice.checkpoints.mixed import has_head, is_mixed, text_config, text_tensors

    raw = read_json(path / "config.json")
    if is_mixed(raw):
        raw = text_config(raw)
        family = family_of(raw)
        tensors = text_tensors(path, family.called)
        raw["tie_word_embeddings"] &= not has_head(tensors)  # one that is stored counts
    else:
        family = family_of(raw)
        tensors = FolderTensors(path, family.called)
    weights: Source
    surplus: tuple[str, ...] = ()
    if is_stored_whole(raw, tensors.types):
        weights = Safetensors(tensors)
    else:
        from suffice.checkpoints.formats.hf_quantized import QuantizedFolder
        from suffice.checkpoints.formats.hf_readers import reader_of

        weights = quantized = QuantizedFolder(tensors, reader_of(raw, str(path)))
        surplus = tuple(re.escape(name) for name in quantized.zero_biases())
        raw = without_quantization(raw)
        family = replace(family, weights=family.in_codes or family.weights)
    family = replace(family, surplus=family.surplus + surplus)
    where = f"{path / 'config.json'}: 'num_hidden_layers'"
    check_layers(where, raw.get("num_hidden_layers"), len(weights.shapes()))
    return assemble(path, family, family.read(raw), weights)


def open_checkpoint(model: str | Path) -> Checkpoint:
    """Open a model as `open_model` does and require weights that are not quantized.

    Raises:
        InputError: As there, or the weights are quantized.
    """
    opened = open_model(model)
    if isinstance(opened, Quantized):
        raise InputError(f"{opened.path} is quantized already: give the original model")
    return opened
