"""Blocks that keep a state of fixed size of each request, in place of keys and values.

They are a layer's first block, as attention is. The code that runs them is `csrc/model` and, as a
reference, `quantize.torch_states`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from suffice.errors import InputError

_APART = ("mix_queries", "mix_keys", "mix_values")
_LOW = ("decay_low", "gate_low")  # `gate_up` is then in place of `out_gate`
# of all blocks
MATRICES = ("mixed", *_APART, *_LOW, "gate_up", "out_gate", "strength", "decay", "mix_out")
Shapes = Mapping[str, tuple[int, ...]]


def _filter(channels: int, taps: int, biased: bool) -> dict[str, tuple[int, ...]]:
    bias = {"convolution.bias": (channels,)} if biased else {}
    return {**bias, "convolution": (channels, 1, taps)}


@dataclass(frozen=True)
class Convolution:
    """out(c * convolution(b * x)), where `mixed` gives b, c and x, one below the other.

    Each of the `width` channels is convolved with its last `taps` inputs. The state is the last
    `taps` - 1. `biased`: the convolution has a bias.
    """

    name: ClassVar[str] = "attn"
    output_scale: ClassVar[float] = 1.0
    width: int
    taps: int
    biased: bool = False

    def __post_init__(self) -> None:
        _check("hidden_size", self.width)
        if not 1 <= self.taps <= 64:
            raise InputError(f"a convolution of {self.taps} taps is not supported; allowed: 1..64")

    @property
    def matrices(self) -> Shapes:
        """The shape [N, K] of each matrix."""
        return {"mixed": (3 * self.width, self.width), "mix_out": (self.width, self.width)}

    @property
    def vectors(self) -> Shapes:
        """The shapes of the weights that are no matrices."""
        return _filter(self.width, self.taps, self.biased)


@dataclass(frozen=True)
class Recurrence:
    """A linear recurrence for each of `heads`: a matrix [key_size, value_size] is the state.

    `mixed`, or three matrices if `apart`, whose filters are so too, gives the channels of a
    convolution, as `order` says: queries, keys and values, those of `key_heads` for `heads`, which
    have one side by side or, if `tiled`, in turn. With s = softplus(decay + step_bias), at least
    `least_step`, a state decays by e^(-rates s), each entry of a key by its own if `by_entry`.
    `corrects`: by the delta rule, with keys and queries of length 1, and a strength of at most
    `most_strength`; else values are multiplied by s. Decays and gates are made of an input or, if
    `low` is not 0, each of that many values that are made of it.
    `skips`: an output gets its value, times a number of its head. Outputs go through a norm over
    `norm_size` of them (0: none), of one weight for all if `shared_norm`, and are multiplied by
    gates, before the norm if `gates_first`. What the matrices give for queries, keys and values,
    for gates and for decays is multiplied by scales, and the block's output by `output_scale`.
    """

    name: ClassVar[str] = "attn"
    width: int
    heads: int
    key_heads: int
    key_size: int
    value_size: int
    taps: int
    corrects: bool
    order: tuple[str, str, str]  # "queries", "keys", "values"
    norm_size: int
    norm_eps: float
    shared_norm: bool
    gates_first: bool
    apart: bool = False
    gate_activation: str = "silu"
    by_entry: bool = False
    biased: bool = False
    skips: bool = False
    tiled: bool = False
    most_strength: float = 1.0
    least_step: float = 0.0
    low: int = 0
    query_scale: float = 1.0
    key_scale: float = 1.0
    value_scale: float = 1.0
    gate_scale: float = 1.0
    decay_scale: float = 1.0
    output_scale: float = 1.0

    def __post_init__(self) -> None:
        for field in ("heads", "key_heads"):
            if getattr(self, field) < 1:
                raise InputError(
                    f"a recurrence of {getattr(self, field)} {field}; allowed: 1 or more"
                )
        if self.heads % self.key_heads:
            raise InputError(
                f"{self.heads} heads of a recurrence must be a multiple of its {self.key_heads} "
                "groups of keys"
            )
        _check("size of a state's keys", self.key_size, most=512)
        _check("size of a state's values", self.value_size)
        if not 1 <= self.taps <= 64:
            raise InputError(f"a convolution of {self.taps} taps is not supported; allowed: 1..64")

    @property
    def _sizes(self) -> dict[str, int]:
        keys = self.key_heads * self.key_size
        return {"queries": keys, "keys": keys, "values": self.heads * self.value_size}

    @property
    def channels(self) -> int:
        """The channels of the convolution."""
        return sum(self._sizes.values())

    @property
    def channel_scales(self) -> tuple[tuple[int, float], ...]:
        """Numbers of channels, in their order, and the scale of each."""
        scales = {"queries": self.query_scale, "keys": self.key_scale, "values": self.value_scale}
        return tuple((self._sizes[part], scales[part]) for part in self.order)

    def place(self, part: str) -> int:
        """Return the first channel of the queries, keys or values."""
        before = self.order[: self.order.index(part)]
        return sum(self._sizes[each] for each in before)

    @property
    def decays(self) -> int:
        """How many decays a row has."""
        return self.heads * (self.key_size if self.by_entry else 1)

    @property
    def matrices(self) -> Shapes:
        """The shape [N, K] of each matrix."""
        inner, width = self.heads * self.value_size, self.width
        strength = {"strength": (self.heads, width)} if self.corrects else {}
        keys = self.key_heads * self.key_size
        mixed = {"mixed": (self.channels, width)}
        if self.apart:
            mixed = {"mix_queries": (keys, width), "mix_keys": (keys, width)}
            mixed["mix_values"] = (inner, width)
        low = dict.fromkeys(_LOW, (self.low, width)) if self.low else {}
        return {
            **mixed,
            **low,
            "gate_up" if self.low else "out_gate": (inner, self.low or width),
            **strength,
            "decay": (self.decays, self.low or width),
            "mix_out": (width, inner),
        }

    @property
    def _filters(self) -> Shapes:
        if not self.apart:
            return _filter(self.channels, self.taps, self.biased)
        return {f"{part}_convolution": (size, 1, self.taps) for part, size in self._sizes.items()}

    @property
    def vectors(self) -> Shapes:
        """The shapes of the weights that are no matrices."""
        found: dict[str, tuple[int, ...]] = {
            **self._filters,
            "rates": (self.heads,),
            "step_bias": (self.decays,),
        }
        if self.skips:
            found["skips"] = (self.heads,)
        if self.norm_size:
            inner = self.heads * self.value_size
            found["mix_norm"] = (self.norm_size if self.shared_norm else inner,)
        return found


def _check(what: str, size: int, most: int = 2**31 - 1) -> None:
    if size % 16 or not 16 <= size <= most:
        limit = f" up to {most}" if most < 2**31 - 1 else ""
        raise InputError(f"{what} = {size} is not supported; supported: multiples of 16{limit}")


StateBlock = Convolution | Recurrence
