"""Linear layers of any transformers model, stored and multiplied by suffice.

    import suffice.integrations.transformers as st

    st.quantize(model, "kmeans:bits=4", calibrate=[tokens, ...])   # any architecture
    st.load_quantized(model, "smollm2-w4.safetensors")          # a file of `suffice quantize`

Both replace the modules permanently and free the dense weights. Embeddings are unchanged. The head
is stored as the method chooses, usually in 8 bits.

A calibration runs its batches through the model and computes E[x x^T] of the inputs of each linear
layer, for as many layers at a time as fit in 256 MiB. Layers before them are already quantized, so
each layer is fitted to its real inputs. All tokens count alike, even with `fisher=true`: the
backward pass that this needs exists in `suffice quantize` only, whose files are slightly better.

Exact    with quant "none:dtype=float32", up to the order of sums.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from suffice.integrations import missing

try:
    import torch
    from transformers import PreTrainedModel
    from transformers.pytorch_utils import Conv1D
except ImportError as error:
    raise missing(error) from None

from suffice.backends.cpu.linear import native_linear
from suffice.backends.cpu.packing import pack
from suffice.checkpoints.formats.quantized_file import open_quantized
from suffice.decoder.families import ARCHITECTURES
from suffice.decoder.name_maps import Slice, Templates
from suffice.errors import InputError
from suffice.integrations.checks import check_source
from suffice.progress import counting_bar
from suffice.quant import QUANTS, PackedLinear, Quant
from suffice.quant.panels import ROWS
from suffice.quant.sites import SITE_OF
from suffice.quantize.layerwise import SiteInputs

HESSIAN_BYTES = 256 << 20


class QuantizedLinear(torch.nn.Module):
    """A linear layer [..., K] to [..., N] by native matmul with a packed weight."""

    def __init__(self, packed: PackedLinear) -> None:
        super().__init__()
        self.packed = packed
        self.in_features, self.out_features = packed.columns, packed.rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T + bias in the type of x, without a gradient.

        Raises:
            InputError: A gradient is required.
        """
        if torch.is_grad_enabled() and x.requires_grad:
            raise InputError("a quantized layer has no gradient: use torch.no_grad()")
        rows = x.detach().reshape(-1, self.in_features).float().contiguous()
        y = rows.new_empty(len(rows), -(-self.out_features // ROWS) * ROWS)
        native_linear(self.packed)(rows.numpy(), y.numpy())
        return y[:, : self.out_features].reshape(*x.shape[:-1], -1).to(x.dtype)

    def _save_to_state_dict(self, *_: Any) -> None:
        """Refuse: a checkpoint without its linear layers would load with random ones.

        Raises:
            InputError: Always.
        """
        raise InputError(
            "a quantized layer cannot be saved with its model: use `suffice quantize`, whose file "
            "load_quantized takes"
        )

    def extra_repr(self) -> str:
        """Return sizes and type for the printed module."""
        return f"{self.in_features}, {self.out_features}, {self.packed.dtype}"


def quantize(
    model: Any,
    quant: str | Quant = "kmeans",
    *,
    calibrate: Sequence[torch.Tensor | Sequence[int]] | None = None,
) -> None:
    """Replace the linear layers of a transformers model by quantized ones.

    `calibrate` are batches of tokens, [B, T] or [T] or lists, for methods that use them, such as
    `kmeans` and `rtn`; without them these methods quantize by the weights alone.

    Raises:
        InputError: An unknown method, a calibration that it cannot use or lacks, or a model or
            layer that cannot be quantized. Layers before it are then quantized if there is a
            calibration; without one the model is unchanged.
    """
    method = QUANTS.build(quant) if isinstance(quant, str) else quant
    if isinstance(method, type) or not QUANTS.holds(method):
        raise InputError(
            f"quant must be a name such as 'kmeans:bits=4' or a method, not {quant!r:.60}"
        )
    if any(method.for_matrix(matrix) != method for matrix in SITE_OF):
        raise InputError(
            f"quant {quant!r}: layers of a transformers model have no sites; give sites=linear "
            "or use `suffice quantize` and st.load_quantized"
        )
    _check(model)
    head = model.get_output_embeddings()
    layers = {name: part for name, part in _linears(model) if part is not head}
    if calibrate is None:
        packed = {name: _packed(name, method, part) for name, part in layers.items()}
        for name, each in packed.items():
            model.set_submodule(name, QuantizedLinear(each))
    else:
        _calibrated(model, method, layers, _batches(calibrate, model.config.vocab_size))
    if head is not None:
        name = next(name for name, part in model.named_modules() if part is head)
        model.set_submodule(name, QuantizedLinear(_packed(name, method.for_matrix("head"), head)))


def _batches(calibrate: Any, vocab: int) -> list[torch.Tensor]:
    """Return batches of tokens [B, T].

    Raises:
        InputError: They are not batches of tokens, or a token is outside the vocabulary.
    """
    wanted = f"calibrate must be batches of tokens, [B, T] or [T], below {vocab}"
    if isinstance(calibrate, str):
        raise InputError(f"{wanted}, not a text")
    try:
        batches = [torch.as_tensor(batch) for batch in calibrate]
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{wanted}: {error}") from None
    for batch in batches:
        whole = not batch.is_floating_point() and batch.dim() in (1, 2) and batch.numel()
        if not whole or int(batch.min()) < 0 or int(batch.max()) >= vocab:
            raise InputError(wanted)
    return [batch.long().view(-1, batch.shape[-1]) for batch in batches]


def load_quantized(
    model: Any,
    path: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str] | None = None,
) -> None:
    """Replace the linear layers of a transformers model by those of a file of `suffice quantize`.

    The file must be made from `checkpoint`: the folder, hub id or .gguf file of the model. It is
    needed only if transformers has not recorded it.

    Raises:
        InputError: Not such a file, one of another model, or one of an unsupported family. The
            model is then unchanged.
    """
    _check(model)
    opened = open_quantized(Path(path))
    source = opened.facts["model"]
    check_source(f"{path}", source["name"], source["hash"], model, checkpoint)
    names = _names(type(model).__name__)
    found: dict[str, PackedLinear] = {}
    for name, weight in opened.weights.items():
        if not isinstance(weight, PackedLinear) or name == "embed":
            continue
        _, number, part = name.split(".") if name.startswith("layers.") else ("", "", name)
        known = names[f"layers.{part}" if number else part].format(i=number)
        found[known] = weight
    tied, head = opened.weights["embed"], model.get_output_embeddings()
    if isinstance(tied, PackedLinear) and opened.config.tied:
        found[next(name for name, part in model.named_modules() if part is head)] = tied
    parts = dict(_linears(model))
    for name, weight in found.items():
        shape = (weight.rows, weight.columns)
        if name not in parts or _shape(parts[name]) != shape:
            kind = type(model).__name__
            raise InputError(f"{path}: has {name} {list(shape)}, which {kind} has not")
    for name, weight in found.items():
        model.set_submodule(name, QuantizedLinear(weight))


def _names(kind: str) -> dict[str, str]:
    """Return the name map of a class of models whose linear layers are those of the decoder.

    Raises:
        InputError: It is unknown, or has several of the decoder's matrices in one layer.
    """
    weights: Templates = ARCHITECTURES.load(kind).weights
    joined = next((each for each in weights.values() if isinstance(each, Slice)), None)
    if joined is not None:
        raise InputError(
            f"{kind} has {', '.join(joined.parts)} in one layer, a file of `suffice quantize` has "
            "not: use st.quantize"
        )
    return {name: each for name, each in weights.items() if isinstance(each, str)}


def _check(model: Any) -> None:
    if not isinstance(model, PreTrainedModel):
        raise InputError(f"model must be a transformers model, not {type(model).__name__}")
    name = type(model).__name__
    if model.device.type != "cpu":
        raise InputError(f"{name} is on '{model.device}': only models on the CPU can be quantized")
    if any(isinstance(part, QuantizedLinear) for part in model.modules()):
        raise InputError(f"{name} is quantized already: load the model again")
    if next(_linears(model), None) is None:
        raise InputError(f"{name} has no linear layer: there is nothing to quantize")


def _linears(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the linear layers by name; those of GPT-2 are a class of their own, stored
    transposed."""
    for name, part in model.named_modules():
        if isinstance(part, torch.nn.Linear | Conv1D):
            yield name, part


def _shape(part: Any) -> tuple[int, int]:
    """Return the outputs N and inputs K of a layer."""
    first, second = part.weight.shape
    return (second, first) if isinstance(part, Conv1D) else (first, second)


def _weight(part: Any) -> np.ndarray:
    """Return the dense float32 weight [N, K] of a layer."""
    weight = part.weight.detach()
    dense: np.ndarray = (weight.T if isinstance(part, Conv1D) else weight).float().numpy()
    return np.ascontiguousarray(dense)


def _bias(part: Any) -> np.ndarray | None:
    return None if part.bias is None else part.bias.detach().float().numpy()


def _packed(name: str, method: Quant, part: Any) -> PackedLinear:
    try:
        return pack(method, _weight(part), _bias(part), np.empty)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


@torch.no_grad()
def _calibrated(
    model: Any, method: Any, layers: dict[str, Any], batches: list[torch.Tensor]
) -> None:
    """Quantize layers, chunk after chunk, to their inputs on the batches."""
    if not method.calibrates:
        raise InputError(f"calibrate: {QUANTS.name_of(method)} does not use a calibration")
    tokens = sum(batch.numel() for batch in batches)
    widest = max(_shape(part)[1] for part in layers.values())
    if tokens < widest:
        raise InputError(
            f"calibrate: {tokens} tokens; at least {widest}, the inputs of the widest layer, are "
            "needed"
        )
    with counting_bar() as bar:
        task = bar.add_task("layers", total=len(layers))
        for chunk in _chunks(layers):
            inputs = {name: _Inputs(part, tokens) for name, part in chunk.items()}
            try:
                for batch in batches:
                    model(input_ids=batch, use_cache=False)
            finally:
                for each in inputs.values():
                    each.hook.remove()
            for name, part in chunk.items():
                model.set_submodule(
                    name, QuantizedLinear(_fitted(name, method, part, inputs[name]))
                )
                bar.update(task, advance=1)


def _chunks(layers: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Cut layers into runs whose H = E[x x^T] fit in HESSIAN_BYTES, of at least one layer."""
    chunk: dict[str, Any] = {}
    used = 0
    for name, part in layers.items():
        size = 4 * _shape(part)[1] ** 2
        if chunk and used + size > HESSIAN_BYTES:
            yield chunk
            chunk, used = {}, 0
        chunk[name] = part
        used += size
    yield chunk


class _Inputs:
    """Collects the inputs of a layer while the model runs on `tokens` tokens in all."""

    def __init__(self, part: Any, tokens: int) -> None:
        self.site = SiteInputs.none(_shape(part)[1])
        self.seen, self._tokens = 0, tokens
        self.hook = part.register_forward_pre_hook(self._take)

    def _take(self, part: Any, given: tuple[Any, ...]) -> None:
        x = given[0].reshape(-1, len(self.site.hessian)).float()
        self.site.add(x, self._tokens)
        self.seen += len(x)


def _fitted(name: str, method: Any, part: Any, inputs: _Inputs) -> PackedLinear:
    if not inputs.seen:  # the batches did not reach it
        return _packed(name, method, part)
    try:
        coded = method.quantize(_weight(part), (inputs.site.hessian / inputs.seen).numpy())
        site = method.site(inputs.site.samples.numpy())
        packed: PackedLinear = method.packed(coded, _bias(part), site)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    return packed
