"""What a decoder consists of: mechanisms and sizes, never the name of a model family."""

from __future__ import annotations

from dataclasses import dataclass

from suffice.errors import InputError

__all__ = ["DecoderConfig", "LayerConfig", "Rope"]

MAX_HEAD_SIZE = 256


@dataclass(frozen=True)
class Rope:
    """Rotary positions: the frequencies by which queries and keys are turned.

    `parameters` are those of the kind (`factor`, ...), under the names checkpoints give them.
    `divisors` [D/2], if any, divide the frequencies one by one.
    """

    kind: str = "default"
    theta: float = 10_000.0
    parameters: tuple[tuple[str, float], ...] = ()
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True)
class LayerConfig:
    """What differs from layer to layer.

    A query sees the last `window` rows, itself included (None: all of them), and is turned by
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
    activation: str  # a name in layers.ACTIVATIONS
    gated: bool  # down(act(gate) * up) if true, down(act(up)) if not
    attention_scale: float
    max_positions: int
    ropes: tuple[Rope, ...] = ()
    qk_norm: bool = False  # RMS norm of each query and key head before its rotation
    embed_scale: float = 1.0
    embed_width: int = 0  # of an embedding row; 0: the same as width, without projections
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
            "max_position_embeddings": self.max_positions,
        }
        for field, size in sizes.items():
            if size < 1:
                raise InputError(f"config field '{field}' = {size} must be at least 1")
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
            if layer.window is not None and layer.window < 1:
                raise InputError(
                    f"config field 'sliding_window' = {layer.window} must be at least 1"
                )

    @property
    def projected(self) -> bool:
        """Whether embedding rows have a width of their own and are projected in and out."""
        return self.embed_width != self.width
