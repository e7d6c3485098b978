"""Which of several engines gets a request: the one that is expected to answer it first.

The time is that of the prompts that come before its first token, of its own without the beginning
that the engine has kept, and of the steps of its answer, which others share. Engines measure how
long tokens of prompts and steps take; until they have, costs are fixed numbers of tokens. Where
kept beginnings are is remembered here by what was sent. Where engines keep prompts in a folder that
all of them read, one that has a beginning in memory comes first, and then any.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterator, Sequence

import msgspec

from suffice.serve.processes import wire

BLOCK = 64  # tokens; beginnings are compared by blocks
MOST_BLOCKS = 1 << 16  # remembered for an engine: beginnings of 4 million tokens
SAMPLE_COST = 32  # tokens of a prompt: a sample that decodes slows it as much, if nothing is known
READ_COST = 0.1  # tokens of a prompt, for a token whose rows are read from disk: rather too much
ALIKE = 1.05  # times that are no further apart are equal: what is measured is no more exact
LEAST_SHARE = 0.1  # of a step, that prompts get however long the others' part takes
_NEW_ANSWER = 0.1  # weight of a new answer's length in the mean


class Rates(msgspec.Struct, frozen=True, gc=False):
    """How fast an engine is, measured.

    Attributes:
        token: Seconds that a token of a prompt takes.
        step: Seconds of a step without prompts, and `row` for each sample that decodes.
    """

    token: float
    step: float
    row: float


class Load(msgspec.Struct, frozen=True):
    """What an engine has to do.

    Attributes:
        prompts: Tokens of prompts that are run before the request's.
        samples: Samples that decode, or will once their prompt has run.
        rates: How fast the engine is; None if it has not been measured.
    """

    prompts: int = 0
    samples: int = 0
    rates: Rates | None = None


class Router:
    """Chooses among engines by their numbers.

    An engine decodes `places` samples together, and its steps take about `step_seconds` while
    prompts are run. `on_disk`: what any of them has run, all can read.
    """

    def __init__(
        self, count: int, places: int = 16, step_seconds: float = 0.04, on_disk: bool = False
    ) -> None:
        self._known: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(count)]
        self._written: OrderedDict[int, None] | None = OrderedDict() if on_disk else None
        self._chosen = [0] * count
        self._places, self._step_seconds = places, step_seconds
        self._answer: float | None = None  # tokens of one, in the mean

    def choose(self, work: wire.Submit, loads: Sequence[Load | None]) -> int:
        """Return the number of the engine for a request, and note that it gets the prompt.

        `loads` has None for an engine that takes no requests now; at least one must.
        """
        blocks = list(_blocks(work, work.prompt)) if work.reuse else []
        open_ = [(at, load) for at, load in enumerate(loads) if load is not None]
        measured = [load.rates for _, load in open_ if load.rates is not None]
        usual = measured[0] if len(measured) == len(open_) else _mean(measured)
        costs, prompt = {}, len(work.prompt)
        for at, load in open_:
            left = prompt - self._kept(at, blocks) if blocks else float(prompt)
            rates = load.rates or usual
            if rates is None or self._answer is None:
                costs[at] = float(load.prompts + left + SAMPLE_COST * load.samples)
            else:
                costs[at] = self._seconds(load, left, rates, self._answer)
        alike = 1.0 if usual is None or self._answer is None else ALIKE
        least = min(costs.values())
        close = [at for at, cost in costs.items() if cost <= alike * least]
        found = min(close, key=lambda at: self._chosen[at])
        self._chosen[found] += 1
        self._note(found, blocks)
        return found

    def _seconds(self, load: Load, left: float, rates: Rates, answer: float) -> float:
        """Return the expected seconds until a request is answered that has `left` tokens to run."""
        decoding = min(load.samples, self._places)
        others = rates.step + rates.row * decoding if decoding else 0.0
        share = max(1 - others / self._step_seconds, LEAST_SHARE)
        prompts = (load.prompts + left) * rates.token / share
        beyond = max(load.samples + 1 - self._places, 0)  # samples that end before it has a place
        full = rates.step + rates.row * self._places
        steps = rates.step + rates.row * min(load.samples + 1, self._places)
        return prompts + answer * (steps + full * beyond / self._places)

    def keep(self, at: int, work: wire.Submit, answer: Sequence[int]) -> None:
        """Note that an engine has run a prompt and its answer, with which the next may begin."""
        new = _NEW_ANSWER * (len(answer) - (self._answer or 0))
        self._answer = len(answer) if self._answer is None else self._answer + new
        if work.reuse:
            self._note(at, _blocks(work, [*work.prompt, *answer]))

    def forget(self, at: int) -> None:
        """Note that an engine has lost all it kept."""
        self._known[at].clear()

    def _kept(self, at: int, blocks: Sequence[int]) -> float:
        """Return how many tokens an engine need not run, less what reading others costs it."""
        known = _first(blocks, self._known[at])
        if self._written is None:
            return known
        read = max(_first(blocks, self._written), known)
        return read - READ_COST * (read - known)

    def _note(self, at: int, blocks: Sequence[int] | Iterator[int]) -> None:
        both = (self._known[at],) if self._written is None else (self._known[at], self._written)
        for block in blocks:
            for known in both:
                known[block] = None
                known.move_to_end(block)
        for known in both:
            while len(known) > MOST_BLOCKS:
                known.popitem(last=False)


def _first(blocks: Sequence[int], known: Container[int]) -> int:
    """Return the tokens of the first blocks that are known."""
    missing = (count for count, block in enumerate(blocks) if block not in known)
    return BLOCK * next(missing, len(blocks))


def _mean(rates: Sequence[Rates]) -> Rates | None:
    """Return the rates of engines that have been measured in the mean; None if none has been."""
    if not rates:
        return None
    parts = zip(*((each.token, each.step, each.row) for each in rates), strict=True)
    return Rates(*(sum(part) / len(rates) for part in parts))


def _blocks(work: wire.Submit, tokens: Sequence[int]) -> Iterator[int]:
    """Yield a number for each whole block, which stands for all tokens up to its end."""
    found = hash((work.group, work.attention))
    for at in range(BLOCK, len(tokens) + 1, BLOCK):
        found = hash((found, *tokens[at - BLOCK : at]))
        yield found
