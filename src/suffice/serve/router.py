"""Which of several engines gets a request: the one that will begin to answer it first.

Costs are counted in tokens of prompts. Who has kept the beginning of a prompt need not run it, and
who has much to do comes later. Where kept beginnings are is remembered here by what was sent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from suffice.serve import wire

BLOCK = 64  # tokens; beginnings are compared by blocks
MOST_BLOCKS = 1 << 16  # remembered for an engine: beginnings of 4 million tokens
SAMPLE_COST = 32  # tokens of a prompt: a sample that decodes slows it as much


@dataclass(frozen=True)
class Load:
    """What an engine has to do.

    Attributes:
        prompts: Tokens of prompts that have no first token yet.
        samples: Samples that decode, or will once their prompt has run.
    """

    prompts: int = 0
    samples: int = 0


class Router:
    """Chooses among engines by their numbers."""

    def __init__(self, count: int) -> None:
        self._known: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(count)]
        self._chosen = [0] * count

    def choose(self, work: wire.Submit, loads: Sequence[Load | None]) -> int:
        """Return the number of the engine for a request, and note that it gets the prompt.

        `loads` has None for an engine that takes no requests now; at least one must.
        """
        blocks = list(_blocks(work, work.prompt)) if work.reuse else []

        def cost(at: int) -> tuple[int, int]:
            load = loads[at]
            assert load is not None, "only those that take requests are compared"
            left = len(work.prompt) - self._kept(at, blocks)
            return load.prompts + left + SAMPLE_COST * load.samples, self._chosen[at]

        found = min((at for at, load in enumerate(loads) if load is not None), key=cost)
        self._chosen[found] += 1
        self._note(found, blocks)
        return found

    def keep(self, at: int, work: wire.Submit, answer: Sequence[int]) -> None:
        """Note that an engine has run a prompt and its answer, with which the next may begin."""
        if work.reuse:
            self._note(at, _blocks(work, [*work.prompt, *answer]))

    def forget(self, at: int) -> None:
        """Note that an engine has lost all it kept."""
        self._known[at].clear()

    def _kept(self, at: int, blocks: Sequence[int]) -> int:
        known = self._known[at]
        missing = (count for count, block in enumerate(blocks) if block not in known)
        return BLOCK * next(missing, len(blocks))

    def _note(self, at: int, blocks: Sequence[int] | Iterator[int]) -> None:
        known = self._known[at]
        for block in blocks:
            known[block] = None
            known.move_to_end(block)
        while len(known) > MOST_BLOCKS:
            known.popitem(last=False)


def _blocks(work: wire.Submit, tokens: Sequence[int]) -> Iterator[int]:
    """Yield a number for each whole block, which stands for all tokens up to its end."""
    found = hash((work.group, work.attention))
    for at in range(BLOCK, len(tokens) + 1, BLOCK):
        found = hash((found, *tokens[at - BLOCK : at]))
        yield found
