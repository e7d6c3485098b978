"""The experts of a layer, and the rule by which a row goes to a few of them.

A rule is a list of steps on a row's scores, which are at first the logits of the router:

    softmax      of the scores that are there
    sigmoid      of each score
    in_turn      leaves the greatest ones; each becomes its softmax among itself and those after it
                 that are close to it
    top          leaves the greatest ones; of equal scores, those of the first experts
    normalize    to the sum 1
    best_groups  leaves the groups of experts with the greatest scores
    best_pairs   leaves the groups whose two greatest scores have the greatest sums

What is left at the end weighs the experts' outputs. So a family's rule stands in its own file. The
steps are carried out by `csrc/model/routing.cpp` and, as a reference, by
`quantize.torch_layers.route`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from suffice.errors import InputError

# as the native core numbers them
STEPS = ("softmax", "top", "normalize", "sigmoid", "in_turn", "best_groups", "best_pairs")
CHOICES = ("top", "in_turn")  # a rule has one of them
MAX_EXPERTS = 1024  # of a layer, several times as many as published models have
_WHOLE = 16  # rows of a panel, which belong to one expert


def is_rule(steps: Sequence[str]) -> bool:
    """Return whether steps choose experts once, and all are known."""
    return sum(step in CHOICES for step in steps) == 1 and set(steps) <= set(STEPS)


@dataclass(frozen=True)
class Experts:
    """`count` experts of a layer, `chosen` of them for a row, by `steps`, times `scale`.

    `inner` is the inner width of each, `shared` that of one more expert that all rows go to (0:
    there is none); `gated_share`: its output is multiplied by the sigmoid of a row of its own.
    `factored`: the weight of each is multiplied by a factor of its own, after the steps.
    `with_dense`: they read the stream next to the layer's dense MLP, by a norm of their own, and
    the router by another; the sum of both is normalized.
    `biased`: a bias of each expert is added to its score for the choice alone, of groups as well.
    Of the `groups`, equal shares of the experts in their order, a step may leave `kept_groups`.
    Scores are close to a score s if they are less than it by at most `margin` of the greater of s
    and their own size. `before`: weights multiply what experts read, not what they give. `gated`:
    all of them are MLPs with gates. `narrow`: they read that many entries, which a matrix makes of
    a row, and another makes a row of the sum of what they give; 0: whole rows.

    Source: Liu et al. 2024, GRIN: SparseMixer-v2 as it runs after training (in_turn).

    Raises:
        InputError: A number that cannot work.
    """

    count: int
    chosen: int
    inner: int
    steps: tuple[str, ...]
    scale: float = 1.0
    shared: int = 0
    gated_share: bool = False
    biased: bool = False
    margin: float = 0.0
    before: bool = False
    groups: int = 1
    kept_groups: int = 1
    factored: bool = False
    with_dense: bool = False
    gated: bool = True
    narrow: int = 0

    def __post_init__(self) -> None:
        assert is_rule(self.steps)
        if self.count > MAX_EXPERTS:
            raise InputError(f"{self.count} experts in a layer; at most {MAX_EXPERTS} can be")
        if self.chosen > self.count:
            raise InputError(
                f"config field 'num_experts_per_tok' = {self.chosen} is more than the "
                f"{self.count} experts of a layer"
            )
        self._check_groups()
        if self.inner % _WHOLE:
            raise InputError(
                f"the inner width of an expert is {self.inner}; a multiple of {_WHOLE} is supported"
            )
        if self.narrow % _WHOLE:
            raise InputError(
                f"an expert reads {self.narrow} entries; a multiple of {_WHOLE} is supported"
            )

    def _check_groups(self) -> None:
        """Refuse groups that do not share out the experts, or leave too few to choose from."""
        least = 2 if "best_pairs" in self.steps else 1
        each = self.count // self.groups
        if self.count % self.groups or each < least:
            raise InputError(
                f"config field 'n_group' = {self.groups} does not share out {self.count} experts "
                f"to groups of at least {least}"
            )
        if not self.chosen <= self.kept_groups * each <= self.count:
            raise InputError(
                f"config field 'topk_group' = {self.kept_groups} of {self.groups} groups leaves no "
                f"{self.chosen} of {self.count} experts"
            )
