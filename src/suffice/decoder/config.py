"""Configuration of a decoder: mechanisms and sizes, never the name of a model family."""

from __future__ import annotations

from dataclasses import dataclass, replace

from suffice.cache import LayerRows
from suffice.decoder.blocks import (
    Attention,
    Block,
    DenseMLP,
    ExpertMLP,
    LatentAttention,
    LayerEmbedding,
)
from suffice.decoder.checks import check_number, check_size
from suffice.decoder.draft_head import DraftHead
from suffice.decoder.latent import Latent
from suffice.decoder.layer_config import LayerConfig as LayerConfig
from suffice.decoder.rotation import MAX_HEAD_SIZE, Rope, check_rotated
from suffice.decoder.routing import Experts
from suffice.decoder.states import StateBlock
from suffice.errors import InputError

# of norms: before a block, after its output is added, before and after it, after it
PLACEMENTS = ("pre", "post", "sandwich", "output")
SCALES = (  # fields of a decoder
    *("attention_scale", "residual_scale", "logit_scale", "embed_scale"),
    *("attention_output_scale", "mlp_output_scale", "mlp_gate_scale"),
)


@dataclass(frozen=True)
class DecoderConfig:
    """The mechanisms and sizes of one decoder.

    `kv_heads` and `head_size` are the most that a layer has; some may have fewer, see
    `LayerConfig`.

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
    attention_scale: float  # of scores
    trained_positions: int  # the model's stated length, without any stretching
    ropes: tuple[Rope, ...] = ()
    value_norm: bool = False  # RMS norm without a weight of each value head
    layer_scales: bool = False  # the stream is multiplied by a layer's own number after it
    layer_embed_size: int = 0  # of each token's own input of each layer; 0: there are none
    qk_norm: bool = False  # RMS norm of each query and key head before its rotation
    whole_qk_norm: bool = False  # that norm is over all heads together
    late_qk_norm: bool = False  # it comes after the rotation
    # b, n, first: queries are multiplied by 1 + b ln(1 + (position + first) // n)
    query_growth: tuple[float, int, int] | None = None
    parallel: bool = False  # all blocks of a layer read what it begins with
    shared_norm: bool = False  # parallel blocks share one norm
    residual_scale: float = 1.0  # of a block's output, before it is added
    attention_output_scale: float = 1.0  # of attention's, besides
    mlp_output_scale: float = 1.0  # of a dense MLP's, besides
    mlp_gate_scale: float = 1.0  # of a dense MLP's gates, before their activation
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
    adaptable: bool = True  # adapters of the family suit the weights
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
        for field in (*caps, *SCALES):
            check_number(field, getattr(self, field))
        for rows in (LayerRows(self.kv_heads, self.head_size), *self.rows):
            self._check_rows(rows)
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
        for index, rope in enumerate(self.ropes):
            check_rotated(rope, self.rotary_size(index))

    def _check_rows(self, rows: LayerRows) -> None:
        size, heads = rows.size, rows.heads
        if not self.latent and (size % 16 or not 16 <= size <= MAX_HEAD_SIZE):
            raise InputError(
                f"config field 'head_dim' = {size} is not supported; "
                f"supported: multiples of 16 up to {MAX_HEAD_SIZE}"
            )
        if self.heads % heads:
            raise InputError(
                f"config field 'num_key_value_heads' = {heads} "
                f"must divide 'num_attention_heads' = {self.heads}"
            )

    def blocks(self, layer: int) -> tuple[Block, ...]:
        """Return the blocks of a layer, in their order."""
        own = self.layers[layer]
        embedding = LayerEmbedding(self.width, self.layer_embed_size, self.activation, layer)
        extra = (embedding,) if self.layer_embed_size else ()
        mixer = self._mixer(own, paired=DraftHead.pairs(self.drafts, layer))
        return *mixer, *self._mlp(own), *extra

    def is_parallel(self, layer: int, index: int) -> bool:
        """Return whether a block of a layer reads what the one before it began with."""
        return index > 0 and (self.parallel or (index == 1 and self.layers[layer].mixer == "both"))

    def _mixer(self, own: LayerConfig, *, paired: bool) -> tuple[Block, ...]:
        found: list[Block] = []
        if own.attends:
            found.append(self._attention(own, paired=paired))
        if own.keeps_state:
            assert self.state is not None, "a layer with a state says which"
            found.append(self.state)
        return tuple(found)

    def _attention(self, own: LayerConfig, *, paired: bool) -> Block:
        if self.latent:
            return LatentAttention(self.width, self.heads, self.latent, own.rope)
        return Attention(
            self.width,
            self.heads,
            own.kv_heads or self.kv_heads,
            own.head_size or self.head_size,
            own.window,
            own.rope,
            norms=self.qk_norm and own.norms,
            whole_norms=self.qk_norm and own.norms and self.whole_qk_norm,
            late_norms=self.qk_norm and own.norms and self.late_qk_norm,
            spare=self.spare_logits,
            grows=own.grows,
            output_gate=self.output_gate,
            value_norm=self.value_norm,
            shares=None if own.shares is None else self._place(own.shares),
            keys_as_values=own.keys_as_values,
            output_scale=self.attention_output_scale,
            paired=paired,
            mutual=own.mutual,
        )

    def _mlp(self, own: LayerConfig) -> tuple[Block, ...]:
        if not own.mlp:
            return ()
        scales = self.mlp_gate_scale, self.mlp_output_scale
        width = own.mlp_width or self.mlp_width
        dense = DenseMLP(self.width, width, self.gated, self.activation, *scales)
        if not self.experts or own.dense:
            return (dense,)
        experts = ExpertMLP(self.width, self.activation, self.experts)
        return (dense, experts) if self.experts.with_dense else (experts,)

    @property
    def cached(self) -> tuple[LayerConfig, ...]:
        """The layers with attention: those that caches of keys and values have."""
        return tuple(layer for layer in self.layers if layer.attends)

    def _place(self, layer: int) -> int:
        """Return the place in caches of a layer whose rows another one shares."""
        if self.drafts is not None and self.drafts.rows:
            return layer
        return sum(each.attends for each in self.layers[:layer])

    @property
    def rows(self) -> tuple[LayerRows, ...]:
        """What caches hold of the layers of `cached`, or of those of the decoder whose it reads."""
        if self.drafts is not None and self.drafts.rows:
            return self.drafts.rows
        return tuple(
            LayerRows(
                own.kv_heads or self.kv_heads,
                own.head_size or self.head_size,
                None if own.shares is None else self._place(own.shares),
            )
            for own in self.cached
        )

    @property
    def alike(self) -> bool:
        """Whether all layers with attention have the same heads."""
        return len({(rows.heads, rows.size) for rows in self.rows}) == 1

    @property
    def states(self) -> tuple[StateBlock, ...]:
        """The blocks that keep states, layer by layer."""
        count = sum(layer.keeps_state for layer in self.layers)
        return (self.state,) * count if self.state is not None else ()

    def rotary_size(self, rope: int) -> int:
        """Return the entries of a head that a rotation may rotate, or a part of them."""
        if self.latent:
            return self.latent.rotated
        sizes = (each.head_size or self.head_size for each in self.cached if each.rope == rope)
        return next(sizes, self.head_size)

    @property
    def joint(self) -> int:
        """Entries of a cached row that are its value, too; 0: keys and values are apart."""
        return self.latent.rank if self.latent else 0

    @property
    def input_sizes(self) -> list[int]:
        """The numbers of inputs that the matrices of layers take."""
        blocks = [block for at in range(len(self.layers)) for block in self.blocks(at)]
        return sorted({shape[1] for block in blocks for shape in block.matrices.values()})

    def held(self, block: Block, layer: int) -> bool:
        """Return whether a block's output goes to the sum with the layer's experts."""
        joins = self.experts and self.experts.with_dense and not self.layers[layer].dense
        return bool(joins) and isinstance(block, DenseMLP)

    def norms(self, block: Block, layer: int) -> dict[str, str]:
        """Return the names of the norms around a block of a layer.

        They are by place: `before` it, `after` it, of the `whole` stream once it is added, or of
        its sum with the block before it (`joined`).
        """
        if self.held(block, layer):
            return {"before": "mlp_norm", "after": "post_dense_norm"}
        if isinstance(block, ExpertMLP) and block.experts.with_dense:
            both = {"before": "experts_norm", "after": "post_experts_norm"}
            return {**both, "joined": "post_mlp_norm"}
        if isinstance(block, Attention) and block.paired:
            return {}  # both halves of what it reads are normalized already
        own, after = f"{block.name}_norm", f"post_{block.name}_norm"
        if isinstance(block, LayerEmbedding):
            return {"after": after}
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
        return self.drafts is None and self.embed_width != self.width
