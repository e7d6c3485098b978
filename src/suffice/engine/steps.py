"""Decides which prompts run in a step, and how many tokens of each. No tensors here.

Those who decode get a token in every step, so prompts may only fill what is left of a step's time:
a neighbour's prompt, however long, then delays nobody's next token by much more than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

STEP_SECONDS = 0.040
MOST_PROMPTS = 4  # that take turns; others wait
LEAST_TOKENS = 32  # of prompts in a step, however long it takes
CALL_SECONDS = 0.4  # of a call while nobody decodes: who comes meanwhile waits for it
UNIT = 8  # a step usually takes a multiple of this many tokens of prompts
_RATE = 0.2  # weight of a new time
_SLOWEST = 3.0  # longest believed time, over the expected one; more is other load


class Prompt(Protocol):
    """A request whose prompt is being run."""

    @property
    def left(self) -> int:
        """Its tokens that have not been run."""
        ...


P = TypeVar("P", bound=Prompt)


class Times:
    """Seconds of a step, learnt from the past: by samples that decode, and by a prompt's token."""

    def __init__(self) -> None:
        self._plain: dict[int, float] = {}
        self._token: float | None = None

    def plain(self, samples: int) -> float:
        """Return the seconds of a step without prompts; 0 if none has been timed."""
        if samples == 0 or not self._plain:
            return 0.0
        return self._plain[min(self._plain, key=lambda known: abs(known - samples))]

    def line(self) -> tuple[float, float]:
        """Return a and b: a step without prompts takes about a + b samples seconds; 0 if unknown.

        It is the line of least squares through what has been timed.
        """
        if not self._plain:
            return 0.0, 0.0
        count = len(self._plain)
        middle, mean = sum(self._plain) / count, sum(self._plain.values()) / count
        spread = sum((samples - middle) ** 2 for samples in self._plain)
        along = sum((samples - middle) * each for samples, each in self._plain.items())
        slope = max(along / spread, 0.0) if spread else 0.0
        return max(mean - slope * middle, 0.0), slope

    @property
    def token(self) -> float | None:
        """The seconds that a prompt's token adds; None if none has been timed."""
        return self._token

    def learn(self, samples: int, tokens: int, seconds: float) -> None:
        """Record the time of a step by its samples that decode and its tokens of prompts."""
        if tokens == 0:
            self._plain[samples] = _mixed(self._plain.get(samples), seconds)
            return
        rest = max(seconds - self.plain(samples), 0.1 * seconds) / tokens
        self._token = _mixed(self._token, rest)


def _mixed(old: float | None, new: float) -> float:
    return new if old is None else old + _RATE * (min(new, _SLOWEST * old) - old)


class Turns(Generic[P]):
    """Shares the time that a step has for prompts among those that wait.

    Every second turn goes to who has the fewest tokens left, so that a short prompt is soon through
    among long ones; the others go round. `tile` is how many tokens of prompts a call runs at most.
    Without `step_seconds` nobody watches the time of a step: it has one call of a whole tile, whose
    products are the fastest, and who decodes takes part in it. Parts of a prompt have a multiple of
    `unit` tokens, but for the last.
    """

    def __init__(
        self, tile: int, step_seconds: float | None = STEP_SECONDS, unit: int = UNIT
    ) -> None:
        self.times = Times()
        self.step_seconds = step_seconds
        self._tile = tile
        self._unit = unit
        self._queue: list[P] = []  # whose turn it is next; who had one goes to the end
        self._shortest = False  # whether the next turn goes to who has the fewest tokens left

    def rounds(self, prompts: Sequence[P], samples: int) -> list[list[tuple[P, int]]]:
        """Return, for each call of the step, the prompts that take part and their tokens.

        `prompts` are in order of arrival, `samples` those that decode. There is at least one call.
        Prompts that end in what a call has left share it with the one whose turn it is.
        """
        active = prompts[: None if self.step_seconds is None else MOST_PROMPTS]
        left = {id(prompt): prompt.left for prompt in active}
        rounds: list[list[tuple[P, int]]] = []
        room = self._room(samples)
        while room and any(left.values()):
            size = min(self._tile, room)
            room -= size
            first, *others = self._in_turn([each for each in active if left[id(each)]], left)
            parts = [(first, min(left[id(first)], size))]
            for other in others:
                if sum(count for _, count in parts) + left[id(other)] <= size:
                    parts.append((other, left[id(other)]))
            for prompt, count in parts:
                left[id(prompt)] -= count
                self._queue = [*(each for each in self._queue if each is not prompt), prompt]
            self._shortest = not self._shortest
            rounds.append(parts)
        return rounds

    def _room(self, samples: int) -> int:
        """Return how many tokens are expected to fit into the step; at least some.

        While nobody decodes there are at least those of a call, unless it takes very long.
        """
        if self.step_seconds is None:
            return self._tile
        least = min(self._tile, LEAST_TOKENS)
        if not self.times.token:
            return least if samples else self._tile
        if not samples:
            most = int(CALL_SECONDS / self.times.token) // self._unit * self._unit
            least = max(least, min(self._tile, most))
        fit = int((self.step_seconds - self.times.plain(samples)) / self.times.token)
        unit = least if fit > self._tile else self._unit
        return max(fit // unit * unit, least)

    def _in_turn(self, prompts: list[P], left: Mapping[int, int]) -> list[P]:
        """Return the prompts that still have tokens, whose turn it is first."""
        known = [each for each in self._queue if any(each is one for one in prompts)]
        new = [each for each in prompts if not any(each is one for one in known)]
        self._queue = [*known, *new]
        found = list(self._queue)
        if self._shortest:
            found.sort(key=lambda prompt: left[id(prompt)])
        return found
