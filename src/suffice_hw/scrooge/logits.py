"""Logits for the accelerator's decisions: from a generator, or from a trace of a model.

A trace is an .npz file: `schema` (with the value of SCHEMA), `model`, `kv_heads`, `head_size`, and
for each layer `i` an array `layer_i`, float16 [H, T, T]. It has, per query head, the logits
q k / sqrt(d) of step `t` (row) for the tokens up to `t` (columns). Which rows of K and V are read
follows from them.
"""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from suffice.errors import InputError
from suffice.paths import write_whole
from suffice_hw import _simulator, settings
from suffice_hw.scrooge.aet import Rule
from suffice_hw.scrooge.design import Shape
from suffice_hw.settings import Settings, limited

WORKLOADS = Path(__file__).parent / "workloads"
SCHEMA = "suffice-logits/1"
Totals = npt.NDArray[np.int32]
Halves = npt.NDArray[np.float16]


class Source(Protocol):
    """A source of logits, to which rules are applied step by step."""

    def steps(
        self, rule: Rule, shape: Shape, layer: int, kv_head: int, tokens: int, lengths: list[int]
    ) -> tuple[Totals, list[Any]]:
        """Return keys, values and waves of all steps [3, tokens], and decisions at `lengths`."""
        ...


@dataclass(frozen=True)
class Synthetic(Settings):
    """Synthetic attention logits, by a hash of seed, layer, head, step and token.

    A token's logit is the sum of three parts: one that is constant over steps, one that changes in
    every step, both normally distributed, and `recency` e^(-age / reach). Token 0 is the sink: its
    logit goes from `sink_first` in the first layer to `sink_last` in the last one.
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
        """Return a workload: a built-in one by its name, or that of a TOML file.

        Raises:
            InputError: The name is unknown, or the file has an invalid key or value.
        """
        path = settings.named(WORKLOADS, "workload", name)
        return settings.read(cls, path)

    def native(self, shape: Shape, layer: int) -> Any:
        """Return the generator of a layer."""
        place = layer / max(shape.layers - 1, 1)
        sink = self.sink_first + (self.sink_last - self.sink_first) * place
        seed = self.seed * 4096 + layer
        return _simulator.Synthetic(sink, self.spread, self.noise, self.recency, self.reach, seed)

    def steps(
        self, rule: Rule, shape: Shape, layer: int, kv_head: int, tokens: int, lengths: list[int]
    ) -> tuple[Totals, list[Any]]:
        """Return keys, values and waves of all steps [3, tokens], and decisions at `lengths`."""
        group = shape.heads // shape.kv_heads
        totals = np.zeros((3, tokens), np.int32)
        source = self.native(shape, layer)
        decisions = _simulator.synthetic_steps(
            rule.native, group, source, kv_head * group, lengths, totals
        )
        return totals, decisions


@dataclass(frozen=True)
class Trace:
    """Logits of a model, [H, T, T] per layer; a file is read one layer at a time."""

    model: str
    kv_heads: int
    head_size: int
    layers: Sequence[Halves]

    @cached_property
    def shape(self) -> Shape:
        """Sizes of the model's attention."""
        heads = self.layers[0].shape[0]
        return Shape(self.model, len(self.layers), heads, self.kv_heads, self.head_size)

    @cached_property
    def tokens(self) -> int:
        """Number of steps."""
        return int(self.layers[0].shape[1])

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Open a trace.

        Raises:
            InputError: There is no such file, its schema differs, or its arrays do not match.
        """
        stored = _Stored(path)
        values = {key: stored.value(key) for key in ("schema", "model", "kv_heads", "head_size")}
        schema = "none" if values["schema"] is None else str(values["schema"])
        if schema != SCHEMA:
            raise InputError(f"{path}: schema '{schema}': must be '{SCHEMA}'")
        for key, value in values.items():
            if value is None:
                raise InputError(f"{path}: '{key}' is missing")
            if key in ("kv_heads", "head_size") and value.dtype.kind not in "iu":
                raise InputError(f"{path}: {key}={value}: must be a whole number")
        stored.check()
        trace = cls(str(values["model"]), int(values["kv_heads"]), int(values["head_size"]), stored)
        trace.shape  # noqa: B018 (checks that the sizes match)
        return trace

    def save(self, path: Path) -> None:
        """Write the trace."""
        with TraceWriter(path, self.model, self.kv_heads, self.head_size) as writer:
            for layer in self.layers:
                writer.add(layer)

    def steps(
        self, rule: Rule, shape: Shape, layer: int, kv_head: int, tokens: int, lengths: list[int]
    ) -> tuple[Totals, list[Any]]:
        """Return keys, values and waves of all steps [3, tokens], and decisions at `lengths`.

        Raises:
            InputError: Layers or heads differ from the trace's, or it has fewer tokens.
        """
        heads, steps, _ = self.layers[0].shape
        if tokens > steps:
            raise InputError(f"tokens={tokens}: must be at most {steps}, those of the trace")
        if shape.layers != len(self.layers) or shape.heads != heads:
            raise InputError(
                f"the trace has {len(self.layers)} layers of {heads} heads, "
                f"{shape.name} has {shape.layers} of {shape.heads}"
            )
        group = heads // shape.kv_heads
        shared = self.layers[layer][kv_head * group : (kv_head + 1) * group, :tokens, :tokens]
        totals = np.zeros((3, tokens), np.int32)
        logits = np.ascontiguousarray(shared, np.float32)
        return totals, _simulator.traced_steps(rule.native, logits, lengths, totals)


class _Stored(Sequence[Halves]):
    """The layers of a file; the last one read stays in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = np.load(path, allow_pickle=False)
            self._headers = dict(_headers(path))
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            reason = getattr(error, "strerror", None) or "is no .npz file"
            raise InputError(f"{path}: {reason}") from None
        self._kept: tuple[int, Halves] | None = None

    def value(self, name: str) -> Any:
        """Return a scalar by its name, None if there is none."""
        kind = self._headers.get(name)
        return self._read(name) if kind is not None and kind[0] == () else None

    def _read(self, name: str) -> Any:
        try:
            return self._file[name]
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
            raise InputError(f"{self.path}: {name}: is damaged") from None

    def check(self) -> None:
        """Require layers of equal shapes and of the right type.

        Raises:
            InputError: A layer is missing, or has another shape or type.
        """
        shapes = {shape for shape, _ in self._headers.values() if shape != ()}
        first = next(iter(shapes), ())
        named = all(f"layer_{i}" in self._headers for i in range(len(self)))
        if not named or len(shapes) != 1 or len(first) != 3 or first[1] != first[2]:
            raise InputError(
                f"{self.path}: must have layer_0, layer_1, ..., each [H, T, T], of one shape"
            )
        for i in range(len(self)):
            kind = self._headers[f"layer_{i}"][1]
            if kind != np.float16:
                raise InputError(f"{self.path}: layer_{i}: is of {kind}: must be float16")

    def __len__(self) -> int:
        return sum(shape != () for shape, _ in self._headers.values())

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        if self._kept is None or self._kept[0] != index:
            layer = self._read(f"layer_{index}")
            if not np.isfinite(np.tril(layer)).all():
                raise InputError(f"{self.path}: logits must be finite, up to each step's own token")
            self._kept = index, layer
        return self._kept[1]


def _headers(path: Path) -> Iterator[tuple[str, tuple[tuple[int, ...], np.dtype[Any]]]]:
    """Yield names, shapes and types of the arrays in an .npz file, without reading them."""
    with zipfile.ZipFile(path) as file:
        for name in file.namelist():
            with file.open(name) as array:
                version = np.lib.format.read_magic(array)
                read = {
                    (1, 0): np.lib.format.read_array_header_1_0,
                    (2, 0): np.lib.format.read_array_header_2_0,
                }
                if version not in read:
                    raise ValueError(f"{name}: version {version}")
                shape, _, kind = read[version](array)
                yield name.removesuffix(".npy"), (shape, kind)


class TraceWriter:
    """Writes a trace layer by layer; the file appears only after all layers are written."""

    def __init__(self, path: Path, model: str, kv_heads: int, head_size: int) -> None:
        self._path, self._open = path, contextlib.ExitStack()
        self._values = {
            "schema": np.array(SCHEMA),
            "model": np.array(model),
            "kv_heads": np.array(kv_heads),
            "head_size": np.array(head_size),
        }
        self._layers = 0

    def __enter__(self) -> TraceWriter:
        with contextlib.ExitStack() as opening:
            try:
                part = opening.enter_context(write_whole(self._path))
                file = zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
            except OSError as error:
                raise InputError(f"{self._path}: {error.strerror}") from None
            self._file = opening.enter_context(file)
            for name, value in self._values.items():
                self._write(name, value)
            self._open = opening.pop_all()
        return self

    def add(self, logits: npt.NDArray[Any]) -> None:
        """Append a layer, [H, T, T]."""
        self._write(f"layer_{self._layers}", logits.astype(np.float16))
        self._layers += 1

    def _write(self, name: str, value: npt.NDArray[Any]) -> None:
        with self._file.open(f"{name}.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array(file, value, allow_pickle=False)

    def __exit__(self, *failure: Any) -> None:
        self._open.__exit__(*failure)
