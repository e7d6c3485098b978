"""What a decoder begins with that drafts for another one: hidden states as well as embeddings.

A row of such a decoder belongs to a token of the text and the one after it: it begins with the
hidden states that the other model has at the first, or with what this decoder made of the row
before, and with the embedding of the second. Its logits are of the token after both.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DraftHead:
    """How hidden states of `hidden` entries, and tokens of a model of `vocab`, begin a row.

    `fused`: a matrix makes the row's width of the hidden states, which are those of several layers.
    Both halves of a pair, embedding and hidden states, are normalized. `joined`: a matrix makes the
    stream of the pair (multi-token prediction); else the hidden states are the stream, and the
    first layer's attention reads the pair (EAGLE-3). `normed_stream`: the stream begins with hidden
    states that are normalized already. `normed_own`: those that it hands on are what its final norm
    gives, not what its last layer does. `shared`: weights that are the other model's.

    Source: Li et al. 2025, EAGLE-3, section 3.1; DeepSeek-AI 2024, DeepSeek-V3, section 2.2.
    """

    hidden: int
    vocab: int
    fused: bool = True
    joined: bool = False
    normed_stream: bool = False
    normed_own: bool = False
    shared: frozenset[str] = frozenset()

    @staticmethod
    def pairs(head: DraftHead | None, layer: int) -> bool:
        """Return whether a layer's attention reads pairs; `head` is None for other decoders."""
        return head is not None and not head.joined and layer == 0
