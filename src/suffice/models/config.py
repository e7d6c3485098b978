"""Configuration of a decoder: mechanisms and sizes, never the name of a model family."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from suffice.errors import InputError

__all__ = ["ACTIVATIONS", "DecoderConfig", "LayerConfig", "Rope", "check_number", "check_size"]

MAX_HEAD_SIZE = 256
ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "relu")  # as the native core numbers them
_MAX_SIZE = 2**31 - 1  # sizes and positions are 32-bit numbers in the native core


def check_size(field: str, value: Any) -> None:
    """Refuse values that are not a size or a count.

    Raises:
        InputError: Not a whole number of at least 1.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX_SIZE:
        raise InputError(
            f"config field '{field}' = {value!r:.60} must be a whole number from 1 to {_MAX_SIZE}"
        )


def check_number(field: str, value: Any, above: float = 0) -> None:
    """Refuse values that are not finite numbers above `above`.

    Raises:
        InputError: It is not.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not above < value < math.inf:
        kind = "number" if above == -math.inf else f"number above {above:g}"
        raise InputError(f"config field '{field}' = {value!r:.60} must be a finite {kind}")


@dataclass(frozen=True)
class Rope:
    """Rotary positions: the frequencies by which queries and keys are rotated.

    `parameters` belong to the kind (`factor`, ...), under their names in checkpoints. `divisors`
    [D/2], if given, divide the frequencies one by one.

    Raises:
        InputError: An impossible number; the message names the checkpoint's field.
    """

    kind: str = "default"
    theta: float = 10_000.0
    parameters: tuple[tuple[str, float], ...] = ()
    divisors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_number("rope_theta", self.theta, above=1)

    def reached(self, positions: int) -> tuple[int, int]:
        """Return the context length of a model trained on `positions`, and the longest it allows.

        YaRN is a setting for long texts, so a model with YaRN uses its stretched length by default.
        Other kinds may be stretched by their factor on request, at some cost in quality.
        """
        given = dict(self.parameters)
        if self.kind == "yarn":
            stretched = int(given["original_max_position_embeddings"] * given["factor"])
            return max(positions, stretched), max(positions, stretched)
        if self.kind in ("linear", "dynamic"):
            return positions, max(positions, int(positions * given["factor"]))
        return positions, positions


@dataclass(frozen=True)
class LayerConfig:
    """Settings that differ from layer to layer.

    A query sees the last `window` rows, itself included (None: all of them), and is rotated by
    `DecoderConfig.ropes[rope]` (None: not at all).
    """

    window: int | None = None
    rope: int | None = 0


@dataclass(frozen=True)
class DecoderConfig:
    """The mechanisms and sizes of one decoder.

    Raises:
        InputError: A size that cannot work; the message names the checkpoint's field.
    """

    vocab: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    mlp_width: int
    layers: tuple[LayerConfig, ...]
    norm: str  # "rms" or "layer"
    norm_eps: float
    placement: str  # of the norms: "pre", "post" (of the sum) or "sandwich" (before and after)
    activation: str  # one of ACTIVATIONS
    gated: bool  # down(act(gate) * up) if true, down(act(up)) if not
    attention_scale: float
    trained_positions: int  # the model's stated length, without any stretching
    ropes: tuple[Rope, ...] = ()
    qk_norm: bool = False  # RMS norm of each query and key head before its rotation
    embed_scale: float = 1.0
    embed_width: int = 0  # of an embedding row; 0: `width`, without projections
    position_rows: int = 0  # of a learned position table; 0: none
    position_offset: int = 0  # row of that table that belongs to position 0
    tied: bool = False  # the head is the embedding
    final_norm: bool = True
    biases: frozenset[str] = frozenset()  # which of q, k, v, o, gate, up, down have one

    def __post_init__(self) -> None:
        if not self.embed_width:
            object.__setattr__(self, "embed_width", self.width)
        sizes = {
            "vocab_size": self.vocab,
            "hidden_size": self.width,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.mlp_width,
            "num_hidden_layers": len(self.layers),
            "max_position_embeddings": self.trained_positions,
        }
        for field, size in sizes.items():
            check_size(field, size)
        check_size("max_position_embeddings, stretched", self.most_positions)
        check_number("rms_norm_eps", self.norm_eps)
        if self.head_size % 16 or not 16 <= self.head_size <= MAX_HEAD_SIZE:
            raise InputError(
                f"config field 'head_dim' = {self.head_size} is not supported; "
                f"supported: multiples of 16 up to {MAX_HEAD_SIZE}"
            )
        if self.heads % self.kv_heads:
            raise InputError(
                f"config field 'num_key_value_heads' = {self.kv_heads} "
                f"must divide 'num_attention_heads' = {self.heads}"
            )
        for layer in self.layers:
            if layer.window is not None:
                check_size("sliding_window", layer.window)

    @property
    def max_positions(self) -> int:
        """The context length, unless a longer one is requested."""
        trained = self.trained_positions
        return max((rope.reached(trained)[0] for rope in self.ropes), default=trained)

    @property
    def most_positions(self) -> int:
        """The longest context that may be requested."""
        trained = self.trained_positions
        return max((rope.reached(trained)[1] for rope in self.ropes), default=trained)

    @property
    def longest_prompt(self) -> int:
        """The most tokens a prompt may have; `rope.check_call` explains why it can be fewer."""
        dynamic = any(rope.kind == "dynamic" for rope in self.ropes)
        return self.trained_positions if dynamic else self.most_positions

    @property
    def projected(self) -> bool:
        """Whether embedding rows have their own width and are projected in and out."""
        return self.embed_width != self.width
