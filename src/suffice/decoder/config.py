"""Configuration of a decoder: mechanisms and sizes, never the name of a model family."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from suffice.decoder.blocks import Attention, Block, DenseMLP, ExpertMLP, LatentAttention
from suffice.decoder.draft_head import DraftHead
from suffice.decoder.latent import Latent
from suffice.decoder.layer_config import LayerConfig as LayerConfig
from suffice.decoder.rope_kinds import ROPE_KINDS
from suffice.decoder.routing import Experts
from suffice.decoder.states import StateBlock
from suffice.errors import InputError, brief, unknown

MAX_HEAD_SIZE = 256
# of norms: before a block, after its output is added, before and after it, after it
PLACEMENTS = ("pre", "post", "sandwich", "output")
_MAX_LAYERS = 1024  # several times as many as any published decoder has
_MAX_SIZE = 2**31 - 1  # sizes and positions are 32-bit numbers in the native core
_MAX_NUMBER = 3.4e38  # the decoder computes in float32, where larger numbers are infinite
_LEAST_FACTOR = 1e-3  # smaller ones would turn angles into infinities


def check_size(field: str, value: Any) -> None:
    """Refuse values that are not a size or a count.

    Raises:
        InputError: Not a whole number of at least 1.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX_SIZE:
        raise InputError(
            f"config field '{field}' = {brief(value)} must be a whole number from 1 to {_MAX_SIZE}"
        )


def check_number(field: str, value: Any, above: float = 0) -> None:
    """Refuse values that are not finite float32 numbers above `above`.

    Raises:
        InputError: It is not.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not above < value < _MAX_NUMBER:
        raise InputError(
            f"config field '{field}' = {brief(value)} must be a finite number above {above:g}"
        )


def check_layers(count: int, field: str = "num_hidden_layers") -> None:
    """Refuse a number of layers that no decoder has, before anything is made for each.

    Raises:
        InputError: There are more than 1024.
    """
    if count > _MAX_LAYERS:
        raise InputError(f"config field '{field}' = {count} must be at most {_MAX_LAYERS}")


# parameter below, parameter above, and their values if they are not given
_BANDS = (("low_freq_factor", "high_freq_factor", 0.0, 0.0), ("beta_slow", "beta_fast", 1.0, 32.0))


def check_rope_parameter(name: str, value: Any, within: str = "") -> None:
    """Refuse an impossible value of a parameter of a rotation; `within` precedes its name.

    Raises:
        InputError: It is one.
    """
    field = within + name
    if name == "original_max_position_embeddings":
        check_size(field, value)
    elif name == "truncate":
        if not isinstance(value, bool):
            raise InputError(f"config field '{field}' = {brief(value)} must be true or false")
    elif name in ("long_factor", "short_factor"):
        if not isinstance(value, list | tuple) or len(value) > MAX_HEAD_SIZE // 2:
            raise InputError(
                f"config field '{field}' = {brief(value)} must be a list of numbers, "
                "one for every two entries of a head"
            )
        for number in value:
            check_number(field, number, _LEAST_FACTOR)
    else:
        check_number(field, value, _LEAST_FACTOR if name == "factor" else 0)


@dataclass(frozen=True)
class Rope:
    """Rotary positions: the frequencies by which queries and keys are rotated.

    `parameters` belong to the kind (`factor`, ...), under their names in checkpoints. `divisors`,
    if given, divide the frequencies one by one. The first entries of a head are rotated, `partial`
    of all; `backward`: by minus their angles. `text`: the length in tokens whose frequencies it
    has, where these depend on the text's; None: that on which the model was first trained (see
    `fitted`).

    Raises:
        InputError: An unknown kind, a parameter that it lacks or does not know, an impossible
            number; the message names the checkpoint's field.
    """

    kind: str = "default"
    theta: float = 10_000.0
    parameters: tuple[tuple[str, Any], ...] = ()
    divisors: tuple[float, ...] = ()
    partial: float = 1.0
    text: int | None = None
    backward: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in ROPE_KINDS:
            raise unknown("rope_type", str(self.kind), ROPE_KINDS)
        check_number("rope_theta", self.theta, above=1)
        check_number("partial_rotary_factor", self.partial)
        given: dict[str, Any] = {  # a file of JSON has lists
            name: tuple(value) if isinstance(value, list) else value
            for name, value in self.parameters
        }
        required, optional = ROPE_KINDS[self.kind]
        for name, value in given.items():
            if name not in required | optional:
                raise unknown(f"parameter of rope_type '{self.kind}'", name, required | optional)
            check_rope_parameter(name, value)
        missing = sorted(required - set(given))
        if missing:
            raise InputError(f"rope_type '{self.kind}' needs the parameter '{missing[0]}'")
        for low, high, below, above in _BANDS:
            if low in given or high in given:
                bound, value = given.get(low, below), given.get(high, above)
                if self.kind != "llama3" or value != bound:  # a band may be a single wavelength
                    check_number(f"rope_parameters.{high}", value, above=bound)
        object.__setattr__(self, "parameters", tuple(sorted(given.items())))

    def rotated(self, head_size: int) -> int:
        """Return how many entries of a head are rotated."""
        return int(head_size * self.partial)

    def reached(self, positions: int) -> tuple[int, int]:
        """Return the context length of a model trained on `positions`, and the longest it allows.

        YaRN is a setting for long texts, so a model with YaRN uses its stretched length by default.
        Others may be stretched by their factor on request, at some cost in quality.
        """
        given = dict(self.parameters)
        if self.kind == "yarn":
            stretched = _stretched(given["original_max_position_embeddings"], given["factor"])
            return max(positions, stretched), max(positions, stretched)
        if self.kind in ("linear", "dynamic"):
            return positions, max(positions, _stretched(positions, given["factor"]))
        return positions, positions

    def fitted(self, positions: int, context: int) -> Rope:
        """Return the rotation for texts of up to `context` tokens; `positions` are as above.

        Source: Peng et al. 2023, YaRN, section 3.3 (dynamic); Ding et al. 2024, LongRoPE. There,
        frequencies follow the length of each text as it grows, and keys that are cached keep
        those of a shorter one. Here all texts have the frequencies of the longest, as in vLLM.
        """
        return replace(self, text=context if context > self.unfitted(positions) else None)

    def unfitted(self, positions: int) -> int:
        """Return the tokens of the longest text for which the frequencies need no fitting."""
        if self.kind == "longrope":
            original: int = dict(self.parameters)["original_max_position_embeddings"]
            return min(positions, original)
        return positions if self.kind == "dynamic" else self.reached(positions)[1]


def _stretched(positions: int, factor: float) -> int:
    """Return positions x factor; more than the largest size if it is not a size."""
    return int(min(positions * float(factor), 2.0 * _MAX_SIZE))


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
    placement: str  # of the norms, one of PLACEMENTS
    activation: str  # one of `blocks.ACTIVATIONS`
    gated: bool  # down(act(gate) * up) if true, down(act(up)) if not
    attention_scale: float
    trained_positions: int  # the model's stated length, without any stretching
    ropes: tuple[Rope, ...] = ()
    qk_norm: bool = False  # RMS norm of each query and key head before its rotation
    whole_qk_norm: bool = False  # that norm is over all heads together
    late_qk_norm: bool = False  # it comes after the rotation
    # b, n, first: queries are multiplied by 1 + b ln(1 + (position + first) // n)
    query_growth: tuple[float, int, int] | None = None
    parallel: bool = False  # all blocks of a layer read what it begins with
    shared_norm: bool = False  # parallel blocks share one norm
    residual_scale: float = 1.0  # of a block's output, before it is added
    logit_scale: float = 1.0
    score_cap: float = 0.0  # scores s become cap * tanh(s / cap); 0: they stay
    logit_cap: float = 0.0  # likewise
    spare_logits: bool = False  # each query head has a logit without a value (an attention sink)
    embed_scale: float = 1.0
    rounds_embed_scale: bool = True  # to the type of the embedding
    embed_norm: bool = False  # a norm of what the first layer begins with
    embed_width: int = 0  # of an embedding row; 0: `width`, without projections
    position_rows: int = 0  # of a learned position table; 0: none
    position_offset: int = 0  # row of that table that belongs to position 0
    tied: bool = False  # the head is the embedding
    final_norm: bool = True
    norm_biases: bool = True  # of the norms of kind "layer"
    paired: bool = False  # Hugging Face's files have the two rows that a rotation mixes adjacent
    biases: frozenset[str] = frozenset()  # which matrices have one
    experts: Experts | None = None  # in place of the MLPs of layers that are not dense
    output_gate: bool = False  # attention's outputs are multiplied by the logistic of products
    state: StateBlock | None = None  # in place of attention, in layers that say so
    latent: Latent | None = None  # then there is one key/value head, whose size is that of a row
    drafts: DraftHead | None = None  # it drafts for another decoder; `vocab` is what it drafts of

    def __post_init__(self) -> None:
        if not self.embed_width:
            object.__setattr__(self, "embed_width", self.width)
        for field, size in {
            "vocab_size": self.vocab,
            "hidden_size": self.width,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.mlp_width,
            "num_hidden_layers": len(self.layers),
            "max_position_embeddings": self.trained_positions,
        }.items():
            check_size(field, size)
        check_size("max_position_embeddings, stretched", self.most_positions)
        check_number("rms_norm_eps", self.norm_eps)
        caps = [field for field in ("score_cap", "logit_cap") if getattr(self, field) != 0]
        for field in (*caps, "attention_scale", "residual_scale", "logit_scale", "embed_scale"):
            check_number(field, getattr(self, field))
        if not self.latent and (self.head_size % 16 or not 16 <= self.head_size <= MAX_HEAD_SIZE):
            raise InputError(
                f"config field 'head_dim' = {self.head_size} is not supported; "
                f"supported: multiples of 16 up to {MAX_HEAD_SIZE}"
            )
        if self.heads % self.kv_heads:
            raise InputError(
                f"config field 'num_key_value_heads' = {self.kv_heads} "
                f"must divide 'num_attention_heads' = {self.heads}"
            )
        if self.experts and self.width % 16:
            raise InputError(
                f"config field 'hidden_size' = {self.width} is not supported with experts; "
                "supported: multiples of 16"
            )
        if not self.cached:
            raise InputError("a decoder without a layer of attention is not supported")
        for layer in self.layers:
            if layer.window is not None:
                check_size("sliding_window", layer.window)
        for rope in self.ropes:
            _check_rotated(rope, self.rotary_size)

    def blocks(self, layer: int) -> tuple[Block, ...]:
        """Return the blocks of a layer, in their order."""
        own = self.layers[layer]
        return *self._mixer(own, paired=DraftHead.pairs(self.drafts, layer)), *self._mlp(own)

    def _mixer(self, own: LayerConfig, *, paired: bool) -> tuple[Block, ...]:
        if own.mixer == "none":
            return ()
        if own.mixer == "state":
            assert self.state is not None, "a layer with a state says which"
            return (self.state,)
        if self.latent:
            return (LatentAttention(self.width, self.heads, self.latent, own.rope),)
        attention = Attention(
            self.width,
            self.heads,
            self.kv_heads,
            self.head_size,
            own.window,
            own.rope,
            norms=self.qk_norm and own.norms,
            whole_norms=self.qk_norm and own.norms and self.whole_qk_norm,
            late_norms=self.qk_norm and own.norms and self.late_qk_norm,
            spare=self.spare_logits,
            grows=own.grows,
            output_gate=self.output_gate,
            paired=paired,
        )
        return (attention,)

    def _mlp(self, own: LayerConfig) -> tuple[Block, ...]:
        if not own.mlp:
            return ()
        if self.experts and not own.dense:
            return (ExpertMLP(self.width, self.activation, self.experts),)
        return (DenseMLP(self.width, self.mlp_width, self.gated, self.activation),)

    @property
    def cached(self) -> tuple[LayerConfig, ...]:
        """The layers with attention: those that caches of keys and values have."""
        return tuple(layer for layer in self.layers if layer.mixer == "attention")

    @property
    def states(self) -> tuple[StateBlock, ...]:
        """The blocks that keep states, layer by layer."""
        count = sum(layer.mixer == "state" for layer in self.layers)
        return (self.state,) * count if self.state is not None else ()

    @property
    def rotary_size(self) -> int:
        """Entries of a head that a rotation may rotate, or a part of them."""
        return self.latent.rotated if self.latent else self.head_size

    @property
    def joint(self) -> int:
        """Entries of a cached row that are its value, too; 0: keys and values are apart."""
        return self.latent.rank if self.latent else 0

    @property
    def input_sizes(self) -> list[int]:
        """The numbers of inputs that the matrices of layers take."""
        blocks = [block for at in range(len(self.layers)) for block in self.blocks(at)]
        return sorted({shape[1] for block in blocks for shape in block.matrices.values()})

    def norms(self, block: Block, layer: int) -> dict[str, str]:
        """Return the names of the norms around a block of a layer.

        They are by place: `before` it, `after` it, or of the `whole` stream once it is added.
        """
        if isinstance(block, Attention) and block.paired:
            return {}  # both halves of what it reads are normalized already
        own, after = f"{block.name}_norm", f"post_{block.name}_norm"
        if self.shared_norm:
            own = f"{Attention.name}_norm"
        return {
            "pre": {"before": own},
            "post": {"whole": own},
            "sandwich": {"before": own, "after": after},
            "output": {"after": after},
        }[self.layers[layer].placement or self.placement]

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
    def longest_text(self) -> int:
        """The tokens of the longest text for which the rotations have been made."""
        trained = self.trained_positions
        lengths = (rope.text or rope.unfitted(trained) for rope in self.ropes)
        return min([self.most_positions, *lengths])

    def fitted(self, context: int) -> DecoderConfig:
        """Return the configuration with rotations for texts of up to `context` tokens."""
        ropes = tuple(rope.fitted(self.trained_positions, context) for rope in self.ropes)
        return self if ropes == self.ropes else replace(self, ropes=ropes)

    @property
    def projected(self) -> bool:
        """Whether embedding rows have their own width and are projected in and out."""
        return self.embed_width != self.width


def _check_rotated(rope: Rope, head_size: int) -> None:
    """Refuse a part of a head that cannot be rotated, and lists of another length."""
    entries = rope.rotated(head_size)
    if rope.partial > 1 or entries < 2 or entries % 2:
        raise InputError(
            f"config field 'partial_rotary_factor' = {rope.partial:g} rotates {entries} entries of "
            f"a head of {head_size}; an even number of them can be rotated"
        )
    count = entries // 2
    lists = {name: value for name, value in rope.parameters if isinstance(value, tuple)}
    if rope.divisors:
        lists["rope_freqs"] = rope.divisors
    for name, numbers in lists.items():
        if len(numbers) != count:
            raise InputError(
                f"config field '{name}' has {len(numbers)} numbers; "
                f"needed: {count}, half of "
                + ("'head_dim'" if entries == head_size else "the rotated part of 'head_dim'")
            )
