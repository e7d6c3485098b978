"""Linear layers of any transformers model as suffice stores and multiplies them.

    import suffice.integrations.transformers as st

    st.quantize(model, "kmeans:bits=4", calibrate=[tokens, ...])   # any architecture
    st.load_quantized(model, "smollm2-w4.safetensors")          # a file of `suffice quantize`

Both replace the modules for good, and give the memory of the dense weights back. Embeddings stay
what they are; the head is stored as the method says, eight bits as a rule.

A calibration runs its batches through the model and takes E[x x^T] of the inputs of each linear
layer, of as many at a time as fit in 256 MiB; those before them are quantised by then, so that each
layer is fitted to what it will really be given. All tokens count alike, with `fisher=true` too: the
backward pass which that takes is `suffice quantize`'s, whose files are a little better.

Exact    with quant "none:dtype=float32", up to the order of sums.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from suffice.backends.cpu.linear import native_linear
from suffice.errors import InputError
from suffice.integrations.checks import check_source
from suffice.models.families import ARCHITECTURES
from suffice.models.formats.quantized_file import open_quantized
from suffice.models.quantize.layerwise import SiteInputs
from suffice.progress import counting_bar
from suffice.quant import QUANTS, PackedLinear, Quant
from suffice.quant.panels import ROWS
from suffice.quant.sites import SITE_OF

__all__ = ["QuantizedLinear", "load_quantized", "quantize"]

HESSIAN_BYTES = 256 << 20


class QuantizedLinear(torch.nn.Module):
    """A linear layer [..., K] to [..., N] by the native product of a packed weight."""

    def __init__(self, packed: PackedLinear) -> None:
        super().__init__()
        self.packed = packed
        self.in_features, self.out_features = packed.columns, packed.rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T + bias in the type of x, without a gradient.

        Raises:
            InputError: A gradient is asked for.
        """
        if torch.is_grad_enabled() and x.requires_grad:
            raise InputError("a quantised layer has no gradient: use torch.no_grad()")
        rows = x.detach().reshape(-1, self.in_features).float().contiguous()
        y = rows.new_empty(len(rows), -(-self.out_features // ROWS) * ROWS)
        native_linear(self.packed)(rows.numpy(), y.numpy())
        return y[:, : self.out_features].reshape(*x.shape[:-1], -1).to(x.dtype)

    def _save_to_state_dict(self, *_: Any) -> None:
        """Refuse: a checkpoint that lacks its linear layers would load with random ones.

        Raises:
            InputError: Always.
        """
        raise InputError(
            "a quantised layer cannot be saved with its model: use `suffice quantize`, whose file "
            "load_quantized takes"
        )

    def extra_repr(self) -> str:
        """Return sizes and type, as the module is printed."""
        return f"{self.in_features}, {self.out_features}, {self.packed.dtype}"


def quantize(
    model: Any,
    quant: str | Quant = "kmeans",
    *,
    calibrate: Sequence[torch.Tensor | Sequence[int]] | None = None,
) -> None:
    """Replace the linear layers of a transformers model by quantised ones.

    `calibrate` are batches of tokens, [B, T] or [T] or lists, for methods that make use of it, as
    `kmeans` and `rtn` do; without it these quantise by the weights alone.

    Raises:
        InputError: An unknown method, a calibration that it makes no use of or cannot do without,
            or a model or layer that cannot be quantised. The layers before it are quantised then,
            if there is a calibration; else nothing has changed.
    """
    method = QUANTS.build(quant) if isinstance(quant, str) else quant
    if isinstance(method, type) or not QUANTS.holds(method):
        raise InputError(
            f"quant must be a name such as 'kmeans:bits=4' or a method, not {quant!r:.60}"
        )
    if any(method.for_matrix(matrix) != method for matrix in SITE_OF):
        raise InputError(
            f"quant {quant!r}: layers of a transformers model have no sites; leave them out or "
            "use `suffice quantize` and st.load_quantized"
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
        InputError: Something else, or tokens that the model has not.
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

    The file must be of `checkpoint`: the folder, hub id or .gguf file of the model, which need be
    given only where transformers has not kept it.

    Raises:
        InputError: Not such a file, or of another model; one of a family that suffice does not
            know. Nothing has changed then.
    """
    _check(model)
    opened = open_quantized(Path(path))
    source = opened.facts["model"]
    check_source(f"{path}", source["name"], source["hash"], model, checkpoint)
    names: dict[str, str] = ARCHITECTURES.load(type(model).__name__).weights
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


def _check(model: Any) -> None:
    if not isinstance(model, PreTrainedModel):
        raise InputError(f"model must be a transformers model, not {type(model).__name__}")
    name = type(model).__name__
    if model.device.type != "cpu":
        raise InputError(f"{name} is on '{model.device}': only models on the CPU can be quantised")
    if any(isinstance(part, QuantizedLinear) for part in model.modules()):
        raise InputError(f"{name} is quantised already: load it anew")
    if next(_linears(model), None) is None:
        raise InputError(f"{name} has no linear layer: there is nothing to quantise")


def _linears(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the linear layers by name; GPT-2 has its own kind, stored the other way round."""
    for name, part in model.named_modules():
        if isinstance(part, torch.nn.Linear | Conv1D):
            yield name, part


def _shape(part: Any) -> tuple[int, int]:
    """Return the outputs N and inputs K of a layer."""
    first, second = part.weight.shape
    return (second, first) if isinstance(part, Conv1D) else (first, second)


def _weight(part: Any) -> torch.Tensor:
    """Return the dense float32 weight [N, K] of a layer."""
    weight: torch.Tensor = part.weight.detach()
    return (weight.T if isinstance(part, Conv1D) else weight).float().contiguous()


def _packed(name: str, method: Quant, part: Any) -> PackedLinear:
    bias = None if part.bias is None else part.bias.detach()
    try:
        return method.pack(_weight(part), bias)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


@torch.no_grad()
def _calibrated(
    model: Any, method: Any, layers: dict[str, Any], batches: list[torch.Tensor]
) -> None:
    """Quantise layers to what they are given of some batches, chunk after chunk."""
    if not method.calibrates:
        raise InputError(f"calibrate: {QUANTS.name_of(method)} makes no use of a calibration")
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
    """Cut layers into runs whose H = E[x x^T] fit in HESSIAN_BYTES, of one layer at least."""
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
    """Takes what goes into a layer while the model runs on `tokens` tokens in all."""

    def __init__(self, part: Any, tokens: int) -> None:
        self.site = SiteInputs.none(_shape(part)[1])
        self.seen, self._tokens = 0, tokens
        self.hook = part.register_forward_pre_hook(self._take)

    def _take(self, part: Any, given: tuple[Any, ...]) -> None:
        x = given[0].reshape(-1, len(self.site.hessian)).float()
        self.site.add(x, self._tokens)
        self.seen += len(x)


def _fitted(name: str, method: Any, part: Any, inputs: _Inputs) -> PackedLinear:
    bias = None if part.bias is None else part.bias.detach()
    if not inputs.seen:  # the batches did not reach it
        return _packed(name, method, part)
    try:
        coded = method.quantize(_weight(part), inputs.site.hessian / inputs.seen)
        packed: PackedLinear = method.packed(coded, bias, method.site(inputs.site.samples))
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    return packed
