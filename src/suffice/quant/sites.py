"""Activation sites: inputs that several matrices of a layer share, and the choice of sites to
round.

q, k and v share one input, gate and up another. A choice is a list of sites, or of groups of sites,
joined by +: `qkv+down`, `linear`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suffice.errors import InputError, unknown

__all__ = ["GROUPS", "LINEAR", "SITES", "SITE_OF", "VOCABULARY", "chosen"]

SITES = {"qkv": ("q", "k", "v"), "o": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}
SITE_OF = {matrix: site for site, matrices in SITES.items() for matrix in matrices}
VOCABULARY = ("embed", "head")  # the matrices outside the layers, whose rows are tokens
LINEAR = "linear"  # the inputs of all matrices of a layer
GROUPS = {LINEAR: tuple(SITES)}


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
