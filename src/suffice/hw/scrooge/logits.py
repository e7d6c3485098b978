"""Where the logits come from that the accelerator decides by: a generator, or a trace of a model.

A trace is an .npz file: `schema` (this one's name), `model`, `kv_heads`, `head_size`, and for each
layer `i` an array `layer_i`, float16 [H, T, T]: the logits q k / sqrt(d) of step `t` (row) for the
tokens up to `t` (columns), per query head. Order, sums, sets and what is read of V follow.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from suffice.errors import InputError
from suffice.hw import _simulator, settings
from suffice.hw.scrooge.aet import Rule
from suffice.hw.scrooge.design import Shape
from suffice.hw.settings import Settings, limited

WORKLOADS = Path(__file__).parent / "workloads"
SCHEMA = "suffice-logits/1"
Totals = npt.NDArray[np.int32]


class Source(Protocol):
    """Decides what a rule reads, step by step."""

    def steps(
        self, rule: Rule, shape: Shape, layer: int, kv_head: int, tokens: int, lengths: list[int]
    ) -> tuple[Totals, list[Any]]:
        """Return keys, values and waves of all steps [3, tokens], and decisions at some lengths."""
        ...


@dataclass(frozen=True)
class Synthetic(Settings):
    """Logits that look like attention's, by a hash of seed, layer, head, step and token.

    A token's logit is the sum of a lasting part, a passing part, both of normal density, and one
    for the recent: `recency` e^(-age / reach). Token 0 is the sink: its logit goes from
    `sink_first` in the first layer to `sink_last` in the last one.
    """

    key_share: float = limited(0.01, 2)
    value_share: float = limited(0, 1)
    sink_first: float = limited(-50, 50)
    sink_last: float = limited(-50, 50)
    spread: float = limited(0, 20)
    noise: float = limited(0, 20)
    recency: float = limited(-20, 20)
    reach: float = limited(0.1, 1000)
    seed: int = limited(0, 2**31)

    @classmethod
    def load(cls, name: str) -> Synthetic:
        """Return a workload of ours by its name, or of a TOML file.

        Raises:
            InputError: Unknown, or the file has a key or a value that cannot be.
        """
        path = settings.named(WORKLOADS, "workload", name)
        return settings.build(cls, settings.table(path), path.name)

    def native(self, shape: Shape, layer: int) -> Any:
        """Return a layer's generator."""
        place = layer / max(shape.layers - 1, 1)
        sink = self.sink_first + (self.sink_last - self.sink_first) * place
        seed = self.seed * 4096 + layer
        return _simulator.Synthetic(sink, self.spread, self.noise, self.recency, self.reach, seed)

    def steps(
        self, rule: Rule, shape: Shape, layer: int, kv_head: int, tokens: int, lengths: list[int]
    ) -> tuple[Totals, list[Any]]:
        """Return keys, values and waves of all steps [3, tokens], and decisions at some lengths."""
        group = shape.heads // shape.kv_heads
        totals = np.zeros((3, tokens), np.int32)
        source = self.native(shape, layer)
        decisions = _simulator.synthetic_steps(
            rule.native, group, source, kv_head * group, lengths, totals
        )
        return totals, decisions


@dataclass(frozen=True)
class Trace:
    """Logits of a model, [H, T, T] for each layer."""

    model: str
    kv_heads: int
    head_size: int
    layers: list[npt.NDArray[np.float16]]

    @property
    def shape(self) -> Shape:
        """The model's attention."""
        heads = self.layers[0].shape[0]
        return Shape(self.model, len(self.layers), heads, self.kv_heads, self.head_size)

    @property
    def tokens(self) -> int:
        """Steps that it has."""
        return int(self.layers[0].shape[1])

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read a trace.

        Raises:
            InputError: No such file, of another schema, or with arrays that do not fit together.
        """
        try:
            with np.load(path, allow_pickle=False) as stored:
                held = {name: stored[name] for name in stored.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            reason = getattr(error, "strerror", None) or "is no .npz file"
            raise InputError(f"{path}: {reason}") from None
        schema = str(held.pop("schema", "none"))
        if schema != SCHEMA:
            raise InputError(f"{path}: schema '{schema}': must be '{SCHEMA}'")
        for key in ("model", "kv_heads", "head_size"):
            if key not in held or held[key].shape != ():
                raise InputError(f"{path}: '{key}' is missing")
            if key != "model" and held[key].dtype.kind not in "iu":
                raise InputError(f"{path}: {key}={held[key]}: must be a whole number")
        name, kv_heads, head_size = (
            held.pop(key)[()] for key in ("model", "kv_heads", "head_size")
        )
        layers = [held[f"layer_{i}"] for i in range(len(held)) if f"layer_{i}" in held]
        shapes = {layer.shape for layer in layers}
        first: tuple[int, ...] = next(iter(shapes), ())
        if len(layers) < len(held) or len(shapes) != 1 or len(first) != 3 or first[1] != first[2]:
            raise InputError(f"{path}: must have layer_0, layer_1, ..., each [H, T, T], all alike")
        if not all(np.isfinite(np.tril(layer)).all() for layer in layers):
            raise InputError(f"{path}: logits must be finite, up to each step's own token")
        trace = cls(str(name), int(kv_heads), int(head_size), layers)
        trace.shape  # noqa: B018 (refuses what does not fit together)
        return trace

    def save(self, path: Path) -> None:
        """Write the trace."""
        arrays: dict[str, Any] = {"schema": np.array(SCHEMA), "model": np.array(self.model)}
        arrays |= {"kv_heads": np.array(self.kv_heads), "head_size": np.array(self.head_size)}
        for i, layer in enumerate(self.layers):
            arrays[f"layer_{i}"] = layer.astype(np.float16)
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)

    def steps(
        self, rule: Rule, shape: Shape, layer: int, kv_head: int, tokens: int, lengths: list[int]
    ) -> tuple[Totals, list[Any]]:
        """Return keys, values and waves of all steps [3, tokens], and decisions at some lengths.

        Raises:
            InputError: More layers, heads or tokens than the trace has.
        """
        heads, held, _ = self.layers[0].shape
        if tokens > held:
            raise InputError(f"tokens={tokens}: must be at most {held}, the trace's")
        if shape.layers != len(self.layers) or shape.heads != heads:
            raise InputError(
                f"the trace has {len(self.layers)} layers of {heads} heads, "
                f"{shape.name} has {shape.layers} of {shape.heads}"
            )
        group = heads // shape.kv_heads
        own = self.layers[layer][kv_head * group : (kv_head + 1) * group, :tokens, :tokens]
        totals = np.zeros((3, tokens), np.int32)
        logits = np.ascontiguousarray(own, np.float32)
        return totals, _simulator.traced_steps(rule.native, logits, lengths, totals)
