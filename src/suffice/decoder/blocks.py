"""The blocks of a layer: each reads the residual stream and adds its output to it.

A block knows its matrices by name. Outside of it only maps of names do (`families`, GGUF), and the
settings of quantization (`quant.sites`). The code that runs a block is `csrc/model` and, as a
reference, `quantize.torch_decoder`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from suffice.decoder import states
from suffice.decoder.latent import Latent
from suffice.decoder.routing import Experts
from suffice.decoder.states import StateBlock

ROUTERS = ("router", "shared_router")  # matrices that are never rounded
MATRICES = (  # of all blocks
    *("q", "k", "v", "o", "attn_gate", "gate", "up", "down", *ROUTERS, *states.MATRICES),
    *("expert_gate", "expert_up", "expert_down", "shared_gate", "shared_up", "shared_down"),
    *("q_low", "kv", "key_up", "value_up", "narrow", "widen", "layer_gate", "layer_out"),
)
LAYER_EMBEDS = ("layer_embed", "layer_embed_project")  # what `LayerEmbedding` needs of a model
# as the native core numbers them
ACTIVATIONS = (
    *("silu", "gelu_tanh", "gelu", "relu", "clamped_swish", "squared_relu", "logistic", "xielu"),
)
CURVE = ("curve_positive", "curve_negative", "curve_beta", "curve_eps")  # of xielu
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Attention:
    """Attention of a layer's query heads to its own keys and values, or to another layer's.

    `window` and `rope` are those of `LayerConfig`. `norms`: queries and keys are normalized, each
    head alone or, if `whole_norms`, all heads together; before their rotation or, if `late_norms`,
    after it. `spare`: each query head has a logit that takes part in its softmax without a value.
    `grows`: queries are multiplied by `DecoderConfig.query_growth`, if there is one.
    `output_gate`: outputs are multiplied by the logistic of the products of a matrix. The block's
    output is multiplied by `output_scale`. `shares`: the place, among layers with attention, of the
    one whose keys and values are read. `keys_as_values`: see `LayerConfig`. `value_norm`: each
    value is normalized, without a weight. `paired`: it reads
    embeddings and hidden states, see `DraftHead`. `mutual`: see `LayerConfig`.
    """

    name: ClassVar[str] = "attn"
    width: int
    heads: int
    kv_heads: int
    head_size: int
    window: int | None
    rope: int | None
    norms: bool
    whole_norms: bool
    late_norms: bool
    spare: bool
    grows: bool
    output_gate: bool = False
    output_scale: float = 1.0
    value_norm: bool = False
    shares: int | None = None
    keys_as_values: bool = False
    paired: bool = False
    mutual: bool = False

    @property
    def matrices(self) -> Shapes:
        """The shape [N, K] of each matrix."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        width = self.width
        read = 2 * width if self.paired else width
        gate = {"attn_gate": (queries, width)} if self.output_gate else {}
        stored = ("k", "v")[: 0 if self.shares is not None else 1 if self.keys_as_values else 2]
        return {
            "q": (queries, read),
            **gate,
            **dict.fromkeys(stored, (keys, read)),
            "o": (width, queries),
        }

    @property
    def vectors(self) -> Shapes:
        """The shapes of the vectors inside the block: weights of norms, and spare logits."""
        spare = {"spare": (self.heads,)} if self.spare else {}
        if not self.norms:
            return spare
        counts = {"q_norm": self.heads, "k_norm": self.kv_heads}
        if self.shares is not None:
            del counts["k_norm"]
        return spare | {
            name: ((count if self.whole_norms else 1) * self.head_size,)
            for name, count in counts.items()
        }


@dataclass(frozen=True)
class LatentAttention:
    """Attention of a layer's `heads` to rows that they share, rotated by `rope`; see `Latent`.

    `key_up` and `value_up` are stacks of a matrix for each head.
    """

    name: ClassVar[str] = "attn"
    output_scale: ClassVar[float] = 1.0
    width: int
    heads: int
    latent: Latent
    rope: int | None

    @property
    def matrices(self) -> Shapes:
        """The shape [N, K] of each matrix."""
        own, heads, width = self.latent, self.heads, self.width
        low = {"q_low": (own.low, width)} if own.low else {}
        return low | {
            "q": (heads * own.query, own.low or width),
            "kv": (own.row, width),
            "key_up": (heads * own.rank, own.plain),
            "value_up": (heads * own.value, own.rank),
            "o": (width, heads * own.value),
        }

    @property
    def vectors(self) -> Shapes:
        """The shapes of the weights of norms inside the block."""
        own = self.latent
        return ({"q_norm": (own.low,)} if own.low else {}) | {"kv_norm": (own.rank,)}


@dataclass(frozen=True)
class DenseMLP:
    """down(act(gate x) * up x) if `gated`, else down(act(up x)); `inner` values in between.

    gate x is multiplied by `gate_scale`, and the block's output by `output_scale`. The activation
    `xielu` has learned parameters, see `DecoderWeights.curve`.
    """

    name: ClassVar[str] = "mlp"
    width: int
    inner: int
    gated: bool
    activation: str
    gate_scale: float = 1.0
    output_scale: float = 1.0

    @property
    def matrices(self) -> Shapes:
        """The shape [N, K] of each matrix."""
        into = ("gate", "up") if self.gated else ("up",)
        return {**dict.fromkeys(into, (self.inner, self.width)), "down": (self.width, self.inner)}

    @property
    def vectors(self) -> Shapes:
        """The shapes of the learned parameters of the activation."""
        return dict.fromkeys(CURVE, (1,)) if self.activation == "xielu" else {}


@dataclass(frozen=True)
class LayerEmbedding:
    """out(act(gate x) * e), where e are the `size` entries of the token's embedding of a layer.

    They are a sum of two: a row of `layer_embed` (by token), and what `layer_embed_project` makes
    of the token's embedding, normalized. `place` is the layer's.
    """

    name: ClassVar[str] = "layer_embed"
    output_scale: ClassVar[float] = 1.0
    width: int
    size: int
    activation: str
    place: int

    @property
    def matrices(self) -> Shapes:
        """The shape [N, K] of each matrix."""
        return {"layer_gate": (self.size, self.width), "layer_out": (self.width, self.size)}

    @property
    def vectors(self) -> Shapes:
        """None."""
        return {}


@dataclass(frozen=True)
class ExpertMLP:
    """The weighted outputs of the experts of each row; each is an MLP, as `Experts` says.

    The matrices of all experts are stacked, those of the first one on top.
    """

    name: ClassVar[str] = "mlp"
    output_scale: ClassVar[float] = 1.0
    width: int
    activation: str
    experts: Experts

    @property
    def entries(self) -> int:
        """What an expert reads and gives."""
        return self.experts.narrow or self.width

    @property
    def matrices(self) -> Shapes:
        """The shape [N, K] of each matrix."""
        experts, width = self.experts, self.width
        inner = experts.count * experts.inner
        into = ("gate", "up") if experts.gated else ("up",)
        found = {
            "router": (experts.count, width),
            **{f"expert_{part}": (inner, self.entries) for part in into},
            "expert_down": (experts.count * self.entries, experts.inner),
        }
        if experts.narrow:
            found |= {"narrow": (experts.narrow, width), "widen": (width, experts.narrow)}
        if not experts.shared:
            return found
        common = {
            **{f"shared_{part}": (experts.shared, width) for part in into},
            "shared_down": (width, experts.shared),
        }
        return found | common | ({"shared_router": (1, width)} if experts.gated_share else {})

    @property
    def vectors(self) -> Shapes:
        """The shapes of the choice's bias, of factors and of the router's norm, if it has them."""
        own = self.experts
        return {
            **({"choice": (own.count,)} if own.biased else {}),
            **({"factors": (own.count,)} if own.factored else {}),
            **({"router_norm": (self.width,)} if own.with_dense else {}),
        }


Block = Attention | LatentAttention | DenseMLP | ExpertMLP | LayerEmbedding | StateBlock
