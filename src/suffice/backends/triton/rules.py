"""What each key/value head of a layer reads, as the kernels take it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from suffice.attention.rule import READ_ALL, AttentionRule
from suffice.errors import InputError

# The kinds that there are, and the parameters that may differ from head to head.
LIMITS: Mapping[str, tuple[str, ...]] = {
    "aet": ("key_share",),
    "art": ("scale",),
    "certified": ("missing",),
    "read_all": (),
    "skip_softmax": ("factor",),
    "tiers": ("estimated", "lightest"),
}


@dataclass(frozen=True)
class HeadRules:
    """The rules of G key/value heads: of one kind, with `parameters` that they share.

    `limits` are the others, float32 [G]. Values of keys below 2^`floors` [G] of the largest weight
    are not read; if nothing `filters`, all are.
    """

    kind: str
    parameters: Mapping[str, float]
    limits: Mapping[str, torch.Tensor]
    floors: torch.Tensor
    filters: bool

    @property
    def sketched(self) -> bool:
        """Whether sketches of the keys say what is read, or in which order."""
        return self.kind == "certified" or bool(self.parameters.get("by_sketch"))

    @classmethod
    def of(cls, given: Sequence[AttentionRule | None], device: torch.device) -> HeadRules:
        """Return the rules of a layer's heads, None for those that read everything.

        Raises:
            InputError: One that the kernels do not have.
        """
        rules = [each or READ_ALL for each in given]
        for each in rules:
            check_rule(each)
        if all(each.exact for each in rules):
            rules = [READ_ALL] * len(rules)
        main = next((each for each in rules if not each.exact), READ_ALL)
        limits = {
            name: torch.tensor([each.parameters[name] for each in rules], device=device)
            for name in LIMITS[main.kind]
        }
        shares = [each.value_share for each in rules]
        floors = [math.log2(share) if share else -math.inf for share in shares]
        return cls(
            main.kind, main.parameters, limits, torch.tensor(floors, device=device), any(shares)
        )


def check_rule(rule: AttentionRule) -> None:
    """Refuse a rule that the kernels do not have.

    Raises:
        InputError: It is another kind, or has parameters that only native code knows.
    """
    if rule.kind not in LIMITS:
        raise InputError(f"attention rule '{rule.kind}' on a GPU: must be {', '.join(LIMITS)}")
    if rule.softmax_tables:
        raise InputError(f"{rule.kind}: a coded softmax on a GPU: must be left out")
    if rule.value_share and rule.kind in ("art", "certified"):
        raise InputError(f"{rule.kind}: values={rule.value_share:g} on a GPU: must be 0")
    if rule.parameters.get("by_rows"):
        raise InputError("aet: block=1 on a GPU: must be 16")
    if rule.parameters.get("by_sketch") and rule.kind == "aet":
        raise InputError("aet: order=sketch on a GPU: must be newest")
    if rule.parameters.get("sample"):
        raise InputError(f"tiers: sample={rule.parameters['sample']} on a GPU: must be 0")
