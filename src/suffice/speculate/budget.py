"""Selects the drafts to make and to check: those that maximize the expected tokens per second.

Source   Chen et al., "Sequoia": the expected number of accepted tokens is the sum, over a tree's
         drafts, of the probability of the path to each; the best size follows from the measured
         cost of a step. Sequoia finds the best tree of a size by a dynamic program, before it
         knows the tokens. Here drafts from the text exist already. Probabilities fall along every
         path, so the best tree of n drafts consists of the n most likely drafts. A model's tree is
         a chain with siblings next to it: see `shapes.py`.
Exact    always: every draft is checked. Measured times decide the number of drafts, hence the
         speed. They affect which tokens come only where drafts are sampled (see `Budget`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from suffice.speculate.costs import Account, Gain, StepCosts
from suffice.speculate.rates import Rates
from suffice.speculate.shapes import (
    best_speed,
    blocks_that_pay,
    count_that_pays,
    shapes_that_pay,
)
from suffice.speculate.text_drafts import TextDrafts, texts_draft
from suffice.speculate.tree import ALL_ROWS, FEW_ROWS, MOST_DRAFTS, Tree, Widths, filled

if TYPE_CHECKING:
    from suffice.speculate import DraftingSample, GoesOn, Speculator

_PROBING = 0.02  # share of the time for trial drafts that are not expected to save time
_PLAIN = 64  # steps with drafts in a row before one without is timed
_LOOK = 16  # steps without drafts between two checks of whether drafts save time
_PAUSE = 2  # such steps in which a head goes on following texts
_MOST = 16.0  # largest believed loss of a step, in steps without drafts; more is other load
_MEMORY = 200.0  # observations of all samples; a sample's own rates change faster


class Budget:
    """Decides for each step how many drafts to make and which of them to check.

    Drafts from the text cost next to nothing: all are made, and only those that save time are
    checked. The following tokens show which of the others were right, so no trials are needed.
    Drafts of a model are a chain and siblings next to it, whose shape is chosen before any token is
    known: it depends on what was accepted before. A chain without siblings may become as long as
    allowed, unless all of it is made at once, and ends where the next draft is not expected to save
    time, by how sure the model was of those before it. No draft depends on tokens after it, so the
    text keeps its distribution.
    While no shape saves time, one draft with its siblings is tried now and then; trials take at
    most 2 % of the time. An `Account` stops drafts that were expected to save time but do not.

    Where texts draft next to a model, a sample has the drafts from which more tokens per second are
    expected. Texts are looked up in every step, so the rates of their drafts are always known.

    A head follows texts only while drafts are wanted, and shortly after: else the model hands out
    no hidden states. Where drafts are wanted again, it begins in the middle of texts; for a trial
    it reads no more than the last tokens of a prompt. What that takes counts as a loss.

    A request that samples with a seed gets no drafts of a model: its tokens would depend on which
    drafts were sampled, hence on measured times. With `adaptive=False` the number of drafts is
    fixed, and such a request gets drafts like all others.
    """

    def __init__(self, speculator: Speculator, costs: StepCosts | None = None) -> None:
        self._adaptive, self._from_text = speculator.adaptive, speculator.from_text
        self._at_once = speculator.at_once
        self._depths, self._width = speculator.num_speculative_tokens, speculator.width
        self._costs = costs or StepCosts()
        self._texts = TextDrafts(texts_draft(speculator))
        self._all = Rates(memory=_MEMORY)
        self._account, self._gain = Account(), Gain()
        self._proposing = self._following = 0.0  # this step's seconds of drafts, and of reading
        self._tokens = 0  # this step's
        self._unwanted = 0.0  # steps since drafts were last asked for
        self._unpaid = math.inf  # steps since they were expected to save time
        self._idle = math.inf  # steps without drafts since the last with drafts
        self._streak = 0  # steps with drafts in a row
        self._since_plain = _PLAIN

    def shapes(self, samples: Sequence[DraftingSample], room: Sequence[int]) -> list[Widths]:
        """Return the drafts to make for each sample, at most `room[i]` for sample i.

        Drafts from the text may have another shape.
        """
        if self._from_text:
            return [(1,) * most for most in room]
        if not self._adaptive:
            return [filled(self._depths, self._width, most) for most in room]
        for sample in samples:
            sample.goes_on = None
        free = [at for at, sample in enumerate(samples) if not _seeded(sample)]
        shapes: list[Widths] = [()] * len(room)
        speeds = [len(room) / self._costs.step(len(room), 0)] * len(room)
        if free and self._is_due() and self._may_draft:
            self._find_shapes(samples, room, free, shapes, speeds)
        if self._texts.on:
            self._use_texts(samples, room, shapes, speeds)
        idle = not any(shapes) and not self._texts
        self._unpaid = 0 if any(shapes) else self._unpaid + idle
        if idle and free and self._is_time(len(samples)):
            for at in free:
                shapes[at] = filled(1, self._width, room[at])
        self._unwanted = 0 if any(shapes) else self._unwanted + idle
        return shapes

    def follows(self, sample: DraftingSample) -> int:
        """Return of how many of a sample's rows in this step, the last ones, a head is told."""
        if not self._adaptive:
            return ALL_ROWS
        if self._unwanted > _PAUSE or _seeded(sample):
            return 0
        return ALL_ROWS if self._unpaid <= _PAUSE else FEW_ROWS

    def _find_shapes(
        self,
        samples: Sequence[DraftingSample],
        room: Sequence[int],
        free: Sequence[int],
        shapes: list[Widths],
        speeds: list[float],
    ) -> None:
        """Set the best shapes of samples `free`, and the speed expected from each alone."""
        wholes = [filled(min(self._depths, room[at]), self._width, MOST_DRAFTS) for at in free]
        levels = [
            self._rates(samples[at]).levels(whole) for at, whole in zip(free, wholes, strict=True)
        ]
        step, draft = partial(self._costs.step, len(samples)), self._costs.draft
        least, own = self._least(len(samples)), [room[at] for at in free]
        best = blocks_that_pay if self._at_once else shapes_that_pay
        found = best(levels, own, len(samples), step, draft)
        for at, shape, whole, chances in zip(free, found, wholes, levels, strict=True):
            tokens = len(samples) + sum(
                sum(level[:width]) for level, width in zip(chances, shape, strict=False)
            )
            speeds[at] = tokens / (step(sum(shape)) + self._made(len(shape)) * draft)
            longer = shape and self._width == 1 and not self._at_once
            shapes[at] = whole if longer else shape
            samples[at].goes_on = self._goes_on(samples[at], least) if shape else None

    def _made(self, depths: int) -> int:
        """Return how many drafts a model makes one after the other, for a number of depths."""
        return min(depths, 1) if self._at_once else depths

    def _least(self, samples: int) -> float:
        """Return the probability from which a draft is worth its time, at the speed of late.

        It takes its own time, unless all are made at once, and a row in the step that checks it,
        which is a mean over rows.
        """
        plain, rows = self._costs.step(samples, 0), samples * self._depths
        row = (self._costs.step(samples, rows) - plain) / rows
        own = 0.0 if self._at_once else self._costs.draft
        return (own + row) * self._gain.value * samples / plain

    def _goes_on(self, sample: DraftingSample, least: float) -> GoesOn:
        """Return whether a chain's next draft has at least this probability."""
        rates = self._rates(sample)

        def pays(sure: Sequence[float]) -> bool:
            path = math.prod(map(rates.rate_if, sure))
            return path * rates.rate(0, len(sure) + 1) >= least

        return pays

    def _use_texts(
        self,
        samples: Sequence[DraftingSample],
        room: Sequence[int],
        shapes: list[Widths],
        speeds: Sequence[float],
    ) -> None:
        """Use what texts draft where it is expected to be faster; leave out a model's drafts."""
        self._texts.look_up(samples, room)
        if not self._may_draft:
            return
        step = partial(self._costs.step, len(samples))
        for at, sample in enumerate(samples):
            chances = sorted(self._rates(sample).chances(self._texts.of(sample)), reverse=True)
            faster = chances and best_speed(chances, len(samples), step) > speeds[at]
            if faster:
                shapes[at] = ()
                self._texts.use(sample)

    @property
    def _may_draft(self) -> bool:
        return self._since_plain < _PLAIN and self._open

    @property
    def _open(self) -> bool:
        return self._account.open(self._costs.step(1, 0))

    def _is_due(self) -> bool:
        """Whether to compute which drafts save time: rarely while there are none."""
        soon = self._idle <= 2 or math.isinf(self._idle)
        return self._open and (soon or self._idle % _LOOK == 0)

    def _is_time(self, samples: int) -> bool:
        """Whether to try a draft although none saves time: in two steps in a row, see `drafted`."""
        if not self._may_draft:
            return False
        plain = self._costs.step(samples, 0)
        more = self._costs.step(samples, samples * self._width) - plain
        more += samples * self._costs.draft
        paid = self._idle * _PROBING * plain >= 2 * more + self._costs.beginning
        return self._streak == 1 or paid

    def cut(
        self, samples: Sequence[DraftingSample], trees: Sequence[Tree], room: Sequence[int]
    ) -> list[Tree]:
        """Return the subset of the drafts to check, at most `room[i]` for sample i.

        Those of a model are a choice where it says how sure it is of them: of greedy texts, which
        are the same whatever is drafted. What was sampled is checked whole.
        """
        made = self._made_for(trees) * (not self._from_text)
        trees = [
            self._texts.of(sample) if self._texts.uses(sample) else tree
            for sample, tree in zip(samples, trees, strict=True)
        ]
        if not self._adaptive or not any(map(len, trees)):
            return trees
        free = [
            tree.draft_probs is None
            and (self._from_text or tree.match > 0 or tree.sure is not None)
            for tree in trees
        ]
        chances = [
            self._rates(sample).chances(tree) if each else []
            for sample, tree, each in zip(samples, trees, free, strict=True)
        ]
        whole = sum(len(tree) for tree, each in zip(trees, free, strict=True) if not each)
        kept = self._best(chances, room, whole, made * self._costs.draft)
        return [
            tree.only(nodes) if each else tree
            for tree, nodes, each in zip(trees, kept, free, strict=True)
        ]

    def _best(
        self, chances: Sequence[Sequence[float]], room: Sequence[int], whole: int, spent: float
    ) -> list[list[int]]:
        """Return the nodes of each tree that save time, from the `chances` of all nodes.

        `whole` other drafts are checked too, and making drafts has taken `spent` seconds.
        """
        kept: list[list[int]] = [[] for _ in chances]
        if self._from_text and not self._may_draft:
            return kept
        order = sorted(
            (negative, tree, node)
            for tree, each in enumerate(chances)
            for negative, node in sorted((-chance, node) for node, chance in enumerate(each))[
                : room[tree]
            ]
        )
        count = count_that_pays(
            [-negative for negative, _, _ in order],
            len(chances),
            lambda drafts: spent + self._costs.step(len(chances), whole + drafts),
        )
        for _, tree, node in order[:count]:
            kept[tree].append(node)
        return [sorted(nodes) for nodes in kept]

    def _rates(self, sample: DraftingSample) -> Rates:
        return sample.rates or self._all

    def drafted(
        self, samples: Sequence[DraftingSample], trees: Sequence[Tree], seconds: float
    ) -> None:
        """Record the time that drafts took; there may be none where there was a shape for them.

        A sample's first drafts, or the first after a pause, count apart: they may have included
        running all the text before them.
        """
        self._proposing = seconds
        if not self._adaptive or self._from_text:
            return
        count = self._made_for(trees)
        if not count and self._texts:  # no pause: the model could have drafted
            return
        self._streak = self._streak + 1 if count else 0
        self._idle = 0 if count else self._idle + 1
        if count and self._streak == 1:
            self._costs.add_beginning(count, seconds)
        elif count and all(sample.rates is not None for sample in samples):
            self._costs.add_drafts(count, seconds)

    def _made_for(self, trees: Sequence[Tree]) -> int:
        return sum(self._made(max(tree.depths, default=0)) for tree in trees)  # siblings cost none

    def followed(self, seconds: float) -> None:
        """Record the time in which a head read texts, ahead of drafts that may never be made."""
        self._following += seconds

    def checked(self, trees: Sequence[Tree], seconds: float) -> None:
        """Record the time of the step that checked these drafts, a tree for each sample."""
        if not self._adaptive:
            return
        drafts = sum(map(len, trees))
        # The first step after a model's drafts finds CPU caches filled by them. Its time counts as
        # their loss, not as the cost of a step without drafts.
        upset = not drafts and self._idle <= 1
        taken, lost = self._following + self._proposing + seconds, self._following
        if drafts or upset:
            plain, steps = self._costs.step(len(trees), 0), self._tokens / max(len(trees), 1)
            lost = min(taken - steps * plain, _MOST * plain)
            self._gain.add(taken, steps * plain)
        self._account.add(taken, lost)
        self._forget()
        if not upset:
            self._since_plain = self._since_plain + 1 if drafts else 0
            self._costs.add_step(len(trees), drafts, seconds)

    def unchecked(self, seconds: float) -> None:
        """Record the time of a step that says nothing of drafts, since it ran other rows too."""
        self._account.add(self._following + self._proposing + seconds, self._following)
        self._forget()

    def _forget(self) -> None:
        self._proposing = self._following = 0.0
        self._tokens = 0

    def learn(self, sample: DraftingSample, tree: Tree, tokens: Sequence[int]) -> None:
        """Update acceptance rates with the tokens chosen where a tree had been drafted."""
        if not self._adaptive:
            return
        self._tokens += len(tokens)
        sample.rates = sample.rates or Rates(self._all)
        for drafts in (tree, self._texts.of(sample)):
            if len(drafts):
                for rates in (sample.rates, self._all):
                    rates.learn(drafts, tokens, self._width)


def _seeded(sample: DraftingSample) -> bool:
    """Whether a sample has a seed and would give other tokens with another number of drafts."""
    params = sample.state.params
    return not params.greedy and params.seed is not None
