"""Activation sites: inputs that several matrices of a layer share, and the choice of sites to
round.

q, k and v share one input, gate and up another. A choice is a list of sites, or of groups of sites,
joined by +: `qkv+down`, `linear`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suffice.errors import InputError, unknown

SITES = {"qkv": ("q", "k", "v"), "o": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}
SITE_OF = {matrix: site for site, matrices in SITES.items() for matrix in matrices}
# Those of an expert that all rows share, which has no place in a choice of sites.
SHARED = {"shared_gate_up": ("shared_gate", "shared_up"), "shared_down": ("shared_down",)}
# Those of blocks with states, whose inputs are never rounded. Their strengths and decays are few,
# and stay in float.
STATES = {
    "mix_in": ("mixed", "mix_queries", "mix_keys", "mix_values", "out_gate"),
    "mix_out": ("mix_out",),
}
# Those around embeddings of layers, likewise.
LAYERED = {name: (name,) for name in ("layer_gate", "layer_out")}
CALIBRATED = {**SITES, **SHARED, **STATES, **LAYERED}
VOCABULARY = (
    "embed",
    "head",
    "layer_embed",
)  # the matrices outside the layers, whose rows are tokens
LINEAR = "linear"  # the inputs of all matrices of a layer
GROUPS = {LINEAR: tuple(SITES)}
# Sites whose inputs have few outliers: those of `down` are products of two matrices' outputs.
STEADY = "qkv+o+gate_up"
EXACT = 16  # bits of inputs that count as exact


def in_dense_layer(matrix: str) -> str:
    """Return the name that a matrix of experts has in a layer without: gate, up or down."""
    return matrix.removeprefix("expert_").removeprefix("shared_")


def chosen(text: str, groups: Mapping[str, Sequence[str]] = GROUPS) -> tuple[str, ...]:
    """Return the sites that a text names, each once, in the order of `groups`.

    Raises:
        InputError: A name that is unknown or given twice, or no name.
    """
    known = list(dict.fromkeys(site for sites in groups.values() for site in sites))
    found: set[str] = set()
    if not text:
        raise InputError(f"sites= names none; known: {', '.join([*groups, *known])}")
    for name in text.split("+"):
        if name not in groups and name not in known:
            raise unknown("site", name, [*groups, *known])
        if found.issuperset(groups.get(name, (name,))):
            raise InputError(f"sites={text}: '{name}' is given twice")
        found.update(groups.get(name, (name,)))
    return tuple(site for site in known if site in found)


def input_bits(method: str, act_bits: int, sites: str, matrix: str) -> int:
    """Return the bits of a matrix's inputs, by its name: `act_bits` at the `sites`, else 16.

    Raises:
        InputError: `sites` are given where all inputs have 16 bits, or cannot be read.
    """
    found = chosen(sites)
    if act_bits == EXACT and sites != STEADY:
        raise InputError(f"{method}: sites={sites} goes with act_bits=8, not {act_bits}")
    return act_bits if SITE_OF.get(in_dense_layer(matrix)) in found else EXACT
