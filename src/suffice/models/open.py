"""Opens models in any storage format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from suffice.errors import InputError
from suffice.models.checkpoint import Checkpoint, assemble
from suffice.models.families import family_of
from suffice.models.files import is_quantized, locate
from suffice.models.formats.quantized_file import Quantized, open_quantized
from suffice.models.weights import check_layers

__all__ = ["open_checkpoint", "open_model"]


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
        from suffice.models.formats.gguf_model import open_gguf

        return open_gguf(path)
    from suffice.models.formats.hf_folder import Safetensors, read_json

    raw = read_json(path / "config.json")
    _check_float(path, raw.get("quantization_config"))
    family = family_of(raw)
    weights = Safetensors(path)
    where = f"{path / 'config.json'}: 'num_hidden_layers'"
    check_layers(where, raw.get("num_hidden_layers"), len(weights.shapes()))
    return assemble(path, family, family.read(raw), weights)


def _check_float(path: Path, stored: object) -> None:
    """Refuse weights that another program has quantized.

    Raises:
        InputError: They are; the message gives alternatives.
    """
    if stored is None:
        return
    method = stored.get("quant_method") if isinstance(stored, Mapping) else None
    raise InputError(
        f"{path}: its weights are quantized by {method or 'another program'}, which is not "
        "supported: give the model's float weights, and --quant int8 or a file of `suffice "
        "quantize` to make it small; or a GGUF file of the model"
    )


def open_checkpoint(model: str | Path) -> Checkpoint:
    """Open a model as `open_model` does and require weights that are not quantized.

    Raises:
        InputError: As there, or the weights are quantized.
    """
    opened = open_model(model)
    if isinstance(opened, Quantized):
        raise InputError(f"{opened.path} is quantized already: give the original model")
    return opened
