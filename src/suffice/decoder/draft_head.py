"""What a decoder begins with that drafts for another one: hidden states as well as embeddings.

A row of such a decoder belongs to a token of the text and the one after it: it begins with the
hidden states that the other model has at the first, or with what this decoder made of the row
before, and with the embedding of the second. Its logits are of the token after both.

A decoder that drafts blocks begins with embeddings alone: hidden states are keys and values of its
layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from suffice.cache import LayerRows


@dataclass(frozen=True)
class DraftHead:
    """How hidden states of `hidden` entries, and tokens of a model of `vocab`, begin a row.

    `fused`: a matrix makes the row's width of the hidden states, which are those of several layers.
    Both halves of a pair, embedding and hidden states, are normalized. `joined`: a matrix makes the
    stream of the pair (multi-token prediction); else the hidden states are the stream, and the
    first layer's attention reads the pair (EAGLE-3). `normed_stream`: the stream begins with hidden
    states that are normalized already. `normed_own`: those that it hands on are what its final norm
    gives, not what its last layer does. `shared`: weights that are the other model's.

    `plain`: both halves have the other model's width, and a matrix joins them as they are; the
    states that it hands on go through a matrix to that width. `rows`: it stores nothing, and its
    layers read the other model's caches, which have these rows; `LayerConfig.shares` are places
    among them. `groups`: the head's rows are in that many equal groups, and only those of the
    `kept_groups` that fit a row's state best have logits; 0: all have.

    `block`: it was trained to draft a block of that many rows at once, the text's last token and
    tokens `mask` after it; the logits of a row are of the token in its place, or `ahead`: of the
    one after. Of a token of the text, every layer makes its keys and values of the fused and
    normalized hidden states that the other model has at this token; nothing else is run for it. 0:
    it drafts one token at a time.

    Source: Li et al. 2025, EAGLE-3, section 3.1; DeepSeek-AI 2024, DeepSeek-V3, section 2.2; Chen
    et al. 2026, DFlash, of blocks; Cheng et al. 2026, DSpark, of `ahead`; the rest
    `Gemma4AssistantForCausalLM` of transformers.
    """

    hidden: int
    vocab: int
    fused: bool = True
    joined: bool = False
    normed_stream: bool = False
    normed_own: bool = False
    shared: frozenset[str] = frozenset()
    plain: bool = False
    rows: tuple[LayerRows, ...] = ()
    groups: int = 0
    kept_groups: int = 0
    block: int = 0
    mask: int = 0
    ahead: bool = False

    @staticmethod
    def pairs(head: DraftHead | None, layer: int) -> bool:
        """Return whether a layer's attention reads pairs; `head` is None for other decoders."""
        return head is not None and not (head.joined or head.block) and layer == 0
