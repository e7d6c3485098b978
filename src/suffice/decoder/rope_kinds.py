"""The kinds of rotations that checkpoints name, and their parameters."""

from __future__ import annotations

from collections.abc import Mapping

# kind of rotation: the parameters that it must have, and those that it may have
ROPE_KINDS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "default": (frozenset(), frozenset()),
    "linear": (frozenset({"factor"}), frozenset()),
    "dynamic": (frozenset({"factor"}), frozenset()),
    "llama3": (
        frozenset(
            {
                "factor",
                "high_freq_factor",
                "low_freq_factor",
                "original_max_position_embeddings",
            }
        ),
        frozenset(),
    ),
    "longrope": (
        frozenset({"factor", "long_factor", "original_max_position_embeddings", "short_factor"}),
        frozenset({"attention_factor"}),
    ),
    "proportional": (frozenset(), frozenset({"factor"})),
    "yarn": (
        frozenset({"factor", "original_max_position_embeddings"}),
        frozenset(
            {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}
        ),
    ),
}
