"""Selects the drafts to make and to check: those that maximize the expected tokens per second.

Source   Chen et al., "Sequoia": the expected number of accepted tokens is the sum, over a tree's
         drafts, of the probability of the path to each; the best size follows from the measured
         cost of a step. Sequoia finds the best tree of a size by a dynamic program, before it
         knows the tokens. Here the drafts exist already, or are chains. Probabilities fall along
         every path, so the best tree of n drafts consists of the n most likely drafts.
Exact    always: every draft is checked. Measured times decide the number of drafts, hence the
         speed. They affect which tokens come only where drafts are sampled (see `Budget`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from suffice.speculate.costs import Account, StepCosts
from suffice.speculate.rates import Rates

if TYPE_CHECKING:
    from suffice.speculate import DraftingSample, Speculator
    from suffice.speculate.tree import Tree

_PROBING = 0.02  # share of the time for trial drafts that are not expected to save time
_PLAIN = 64  # steps with drafts in a row before one without is timed
_LOOK = 16  # steps without drafts between two checks of whether drafts save time
_MEMORY = 200.0  # observations of all samples; a sample's own rates change faster


def count_that_pays(chances: Sequence[float], samples: int, seconds: Callable[[int], float]) -> int:
    """Return how many of the most likely drafts maximize the expected tokens per second.

    `chances` are in descending order. A step gives a token for each of `samples` and for each
    accepted draft, and takes `seconds(number of drafts)`.
    """
    tokens = accumulate(chances, initial=float(samples))
    speeds = [count / seconds(drafts) for drafts, count in enumerate(tokens)]
    return speeds.index(max(speeds))


class Budget:
    """Decides for each step how many drafts to make and which of them to check.

    Drafts from the text cost next to nothing: all are made, and only those that save time are
    checked. The following tokens show which of the others were right, so no trials are needed.
    Drafts of a model are a chain, whose length is chosen first. While no length saves time, one
    draft is tried now and then; trials take at most 2 % of the time. An `Account` stops drafts
    that were expected to save time but do not.

    A request that samples with a seed gets no drafts of a model: its tokens would depend on which
    drafts were sampled, hence on measured times. With `adaptive=False` the number of drafts is
    fixed, and such a request gets drafts like all others.
    """

    def __init__(self, speculator: Speculator, costs: StepCosts | None = None) -> None:
        self._adaptive, self._from_text = speculator.adaptive, speculator.from_text
        self._costs = costs or StepCosts()
        self._all = Rates(memory=_MEMORY)
        self._account = Account()
        self._proposing, self._tokens = 0.0, 0  # this step's seconds of drafting, and its tokens
        self._idle = math.inf  # steps without drafts since the last with drafts
        self._streak = 0  # steps with drafts in a row
        self._since_plain = _PLAIN

    def lengths(self, samples: Sequence[DraftingSample], room: Sequence[int]) -> list[int]:
        """Return how many drafts to make for each sample, at most `room[i]` for sample i."""
        if not self._adaptive or self._from_text:
            return list(room)
        free = [at for at, sample in enumerate(samples) if not _seeded(sample)]
        lengths = [0] * len(room)
        if self._is_due():
            chains = [self._rates(samples[at]).chain(room[at]) for at in free]
            for at, kept in zip(free, self._best(chains, len(samples)), strict=True):
                lengths[at] = len(kept)
        if free and not any(lengths) and self._is_time(len(samples)):
            for at in free:
                lengths[at] = min(room[at], 1)
        self._streak = self._streak + 1 if any(lengths) else 0
        self._idle = 0 if self._streak else self._idle + 1
        return lengths

    def _is_due(self) -> bool:
        """Whether to compute which drafts save time: rarely while there are none."""
        soon = self._idle <= 2 or math.isinf(self._idle)
        return self._account.open and (soon or self._idle % _LOOK == 0)

    def _is_time(self, samples: int) -> bool:
        """Whether to try a draft although none saves time: in two steps in a row, see `drafted`."""
        if self._since_plain >= _PLAIN or not self._account.open:
            return False
        plain = self._costs.step(samples, 0)
        more = self._costs.step(samples, samples) - plain + samples * self._costs.draft
        return self._streak == 1 or self._idle * _PROBING * plain >= 2 * more

    def cut(self, samples: Sequence[DraftingSample], trees: Sequence[Tree]) -> list[Tree]:
        """Return the subset of the drafts to check."""
        if not self._adaptive or not self._from_text:
            return list(trees)
        chances = [
            self._rates(sample).chances(tree) for sample, tree in zip(samples, trees, strict=True)
        ]
        kept = self._best(chances, len(samples))
        return [tree.only(nodes) for tree, nodes in zip(trees, kept, strict=True)]

    def _best(self, chances: Sequence[Sequence[float]], samples: int) -> list[list[int]]:
        """Return the nodes of each tree that save time, from the `chances` of all nodes."""
        kept: list[list[int]] = [[] for _ in chances]
        if self._since_plain >= _PLAIN or not self._account.open:
            return kept
        draft = 0.0 if self._from_text else self._costs.draft
        order = sorted(
            (-chance, tree, node)
            for tree, each in enumerate(chances)
            for node, chance in enumerate(each)
        )
        count = count_that_pays(
            [-negative for negative, _, _ in order],
            samples,
            lambda drafts: self._costs.step(samples, drafts) + drafts * draft,
        )
        for _, tree, node in order[:count]:
            kept[tree].append(node)
        return [sorted(nodes) for nodes in kept]

    def _rates(self, sample: DraftingSample) -> Rates:
        return sample.rates or self._all

    def drafted(
        self, samples: Sequence[DraftingSample], trees: Sequence[Tree], seconds: float
    ) -> None:
        """Record the time that drafts took.

        A sample's first drafts, or the first after a pause, do not count: they may have included
        running all the text before them.
        """
        count = sum(map(len, trees))
        self._proposing = seconds
        known = all(sample.rates is not None for sample in samples)
        if self._adaptive and not self._from_text and count and known and self._streak > 1:
            self._costs.add_drafts(count, seconds)

    def checked(self, trees: Sequence[Tree], seconds: float) -> None:
        """Record the time of the step that checked these drafts, a tree for each sample."""
        if not self._adaptive:
            return
        drafts = sum(map(len, trees))
        # The first step after a model's drafts finds CPU caches filled by them. Its time counts as
        # their loss, not as the cost of a step without drafts.
        upset = not drafts and self._idle == 1
        plain, steps = self._costs.step(len(trees), 0), self._tokens / max(len(trees), 1)
        self._account.add(self._proposing + seconds, plain, steps, drafted=drafts > 0 or upset)
        self._proposing, self._tokens = 0.0, 0
        if not upset:
            self._since_plain = self._since_plain + 1 if drafts else 0
            self._costs.add_step(len(trees), drafts, seconds)

    def unchecked(self) -> None:
        """Forget a step whose time says nothing of drafts, since it ran other rows too."""
        self._proposing, self._tokens = 0.0, 0

    def learn(self, sample: DraftingSample, tree: Tree, tokens: Sequence[int]) -> None:
        """Update acceptance rates with the tokens chosen where a tree had been drafted."""
        if not self._adaptive:
            return
        self._tokens += len(tokens)
        sample.rates = sample.rates or Rates(self._all)
        for rates in (sample.rates, self._all):
            rates.learn(tree, tokens)


def _seeded(sample: DraftingSample) -> bool:
    """Whether a sample has a seed and would give other tokens with another number of drafts."""
    params = sample.state.params
    return not params.greedy and params.seed is not None
