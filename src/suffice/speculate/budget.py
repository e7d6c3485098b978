"""How many drafts pay, and which: those that make the expected tokens per second greatest.

Source   Chen et al., "Sequoia": the expected number of accepted tokens is the sum over a tree's
         drafts of the chance of the path to each, and its size is what this machine's cost of a
         step makes best. Sequoia finds the best tree of a size by a dynamic programme, before it
         knows the tokens. Here the drafts are there already, or are chains; chances fall along
         every path, so the best tree of n drafts is the n likeliest of them.
Exact    always: what is drafted is checked. Times decide how many drafts are, hence how fast tokens
         come; which they are depends on them only where drafts are drawn (see `Budget`).
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

_PROBING = 0.02  # of the time may go into drafts that are not expected to pay
_PLAIN = 64  # steps after which one without drafts says what it costs
_LOOK = 16  # steps without drafts after which to see again what pays
_MEMORY = 200.0  # observations of all samples; a sample's own rates change faster


def count_that_pays(chances: Sequence[float], samples: int, seconds: Callable[[int], float]) -> int:
    """Return how many of the likeliest drafts make tokens per second greatest.

    `chances` are in falling order; a step gives a token for each of `samples` and each draft that
    is accepted, and takes `seconds` of the number of drafts.
    """
    tokens = accumulate(chances, initial=float(samples))
    speeds = [count / seconds(drafts) for drafts, count in enumerate(tokens)]
    return speeds.index(max(speeds))


class Budget:
    """Says for each step how many drafts to make and which of them to check.

    Drafts from the text cost next to nothing: all are made, those that pay are checked, and the
    tokens that come say how good the others would have been. So they need no trial once they have
    been turned down. Drafts of a model are a chain, whose length is chosen before; where none pays,
    one is tried now and then, so seldom that it takes 2 % of the time. Where drafts that should pay
    do not, an `Account` stops them.

    A request that draws its tokens and names a seed gets no drafts of a model: drawn drafts are
    part of what its tokens follow from, and these must not depend on a clock. Where they are to be
    made whatever they cost (`adaptive=False`), it gets them as all others do.
    """

    def __init__(self, speculator: Speculator, costs: StepCosts | None = None) -> None:
        self._adaptive, self._from_text = speculator.adaptive, speculator.from_text
        self._costs = costs or StepCosts()
        self._all = Rates(memory=_MEMORY)
        self._account = Account()
        self._proposing, self._tokens = 0.0, 0  # seconds that this step's drafts took; its tokens
        self._idle = math.inf  # steps without drafts, and the steps with some that came last
        self._streak = 0
        self._since_plain = _PLAIN

    def lengths(self, samples: Sequence[DraftingSample], room: Sequence[int]) -> list[int]:
        """Return how many drafts to make for each sample, at most as many as it has room for."""
        if not self._adaptive or self._from_text:
            return list(room)
        free = [at for at, sample in enumerate(samples) if not _fixed(sample)]
        lengths = [0] * len(room)
        if self._looks():
            chains = [self._rates(samples[at]).chain(room[at]) for at in free]
            for at, kept in zip(free, self._likeliest(chains, len(samples)), strict=True):
                lengths[at] = len(kept)
        if free and not any(lengths) and self._is_time(len(samples)):
            for at in free:
                lengths[at] = min(room[at], 1)
        self._streak = self._streak + 1 if any(lengths) else 0
        self._idle = 0 if self._streak else self._idle + 1
        return lengths

    def _looks(self) -> bool:
        """Whether to see what pays: not at each step while nothing is drafted or learned."""
        soon = self._idle <= 2 or math.isinf(self._idle)
        return self._account.open and (soon or self._idle % _LOOK == 0)

    def _is_time(self, samples: int) -> bool:
        """Whether a draft is tried though none pays: twice in a row, see `drafted`."""
        if self._since_plain >= _PLAIN or not self._account.open:
            return False
        plain = self._costs.step(samples, 0)
        more = self._costs.step(samples, samples) - plain + samples * self._costs.draft
        return self._streak == 1 or self._idle * _PROBING * plain >= 2 * more

    def cut(self, samples: Sequence[DraftingSample], trees: Sequence[Tree]) -> list[Tree]:
        """Return what to check of the drafts that were made."""
        if not self._adaptive or not self._from_text:
            return list(trees)
        chances = [
            self._rates(sample).chances(tree) for sample, tree in zip(samples, trees, strict=True)
        ]
        kept = self._likeliest(chances, len(samples))
        return [tree.only(nodes) for tree, nodes in zip(trees, kept, strict=True)]

    def _likeliest(self, chances: Sequence[Sequence[float]], samples: int) -> list[list[int]]:
        """Return for each tree the drafts, of these chances, that pay."""
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
        """Take the time that drafts took.

        The first ones of a sample, or after a pause, may have run all the text before them.
        """
        count = sum(map(len, trees))
        self._proposing = seconds
        known = all(sample.rates is not None for sample in samples)
        if self._adaptive and not self._from_text and count and known and self._streak > 1:
            self._costs.add_drafts(count, seconds)

    def checked(self, trees: Sequence[Tree], seconds: float) -> None:
        """Take the time of the step that checked these drafts, a tree for each sample."""
        if not self._adaptive:
            return
        drafts = sum(map(len, trees))
        # The step after a model's drafts finds caches that these have filled. That is their loss,
        # not what a step costs without them.
        upset = not drafts and self._idle == 1
        plain, steps = self._costs.step(len(trees), 0), self._tokens / max(len(trees), 1)
        self._account.add(self._proposing + seconds, plain, steps, drafted=drafts > 0 or upset)
        self._proposing, self._tokens = 0.0, 0
        if not upset:
            self._since_plain = self._since_plain + 1 if drafts else 0
            self._costs.add_step(len(trees), drafts, seconds)

    def learn(self, sample: DraftingSample, tree: Tree, tokens: Sequence[int]) -> None:
        """Take the tokens that came where a tree of drafts had been made."""
        if not self._adaptive:
            return
        self._tokens += len(tokens)
        sample.rates = sample.rates or Rates(self._all)
        for rates in (sample.rates, self._all):
            rates.learn(tree, tokens)


def _fixed(sample: DraftingSample) -> bool:
    """Whether a sample's tokens would depend on how many drafts a model makes."""
    params = sample.state.params
    return not params.greedy and params.seed is not None
