"""Measured costs of decode steps and drafts on this machine, and the time that drafts lost."""

from __future__ import annotations

from bisect import bisect_left

_ROW = 0.1  # cost of a draft's row until it is timed, in steps without drafts
_DRAFT = 0.5  # cost of a model's draft until it is timed, in steps without drafts
_RATE = 0.2  # weight of a new time
_SLOWEST = 2.0  # longest believed time of a step, over the expected one; more is other load
_FORGOTTEN = 0.003  # share of a multiple that a step without drafts forgets
_GAIN_RATE = 0.02  # weight of a new step in the gain
_SHARE = 0.01  # share of the time that drafts may lose before they are stopped
_AHEAD = 100.0  # steps that count before the first: one step may be lost to begin with
_MEMORY = 2000.0  # steps until a loss counts for 1/e
_COUNTS = (0, *(2**power for power in range(10)))  # numbers of drafts; linear in between


class StepCosts:
    """Seconds of a step by its numbers of samples and drafts, and seconds of a draft.

    They are measured while decoding, since times grow with the context and change with the batch
    and with other load. The cost of a step with drafts is a multiple of one without. Unused
    multiples are slowly forgotten, so that one measured under load is tried again.
    """

    def __init__(self) -> None:
        self._plain: dict[int, float] = {}  # seconds by samples
        self._multiples = [_guess(count) for count in _COUNTS]
        self._times = [0] * len(_COUNTS)  # number of measurements of each multiple
        self._draft: float | None = None
        self.beginning = 0.0  # seconds that first drafts after a pause take more: texts are read

    def step(self, samples: int, drafts: int) -> float:
        """Return the seconds of a step; before the first measurement, only ratios mean anything."""
        low, share = _place(drafts)
        multiple = (1 - share) * self._multiples[low] + share * self._multiples[low + 1]
        return self._without(samples) * multiple

    def _without(self, samples: int) -> float:
        if samples in self._plain or not self._plain:
            return self._plain.get(samples, 1.0)
        nearest = min(self._plain, key=lambda known: abs(known - samples))
        return self._plain[nearest] * _guess(samples) / _guess(nearest)

    @property
    def draft(self) -> float:
        """The seconds of a model's draft."""
        return _DRAFT * self.step(1, 0) if self._draft is None else self._draft

    def add_step(self, samples: int, drafts: int, seconds: float) -> None:
        """Record the time of a step."""
        expected = self.step(samples, drafts)
        if samples not in self._plain:
            self._plain[samples] = seconds * self._without(samples) / expected
            return
        error = (min(seconds, _SLOWEST * expected) - expected) / self._plain[samples]
        if not drafts:
            self._plain[samples] *= 1 + _RATE * error
            for at, count in enumerate(_COUNTS):
                self._multiples[at] += _FORGOTTEN * (_guess(count) - self._multiples[at])
            return
        # Normalised least mean squares (Widrow and Hoff) on the two neighbouring multiples.
        low, share = _place(drafts)
        for at, weight in ((low, 1 - share), (low + 1, share)):
            if at and weight:  # the multiple without drafts stays 1
                self._times[at] += 1
                rate = max(_RATE, 1 / self._times[at])
                change = rate * error * weight / (share**2 + (1 - share) ** 2)
                self._multiples[at] = max(self._multiples[at] + change, 1.0)

    def add_drafts(self, count: int, seconds: float) -> None:
        """Record the time of `count` drafts, made one after the other."""
        each = seconds / count
        self._draft = each if self._draft is None else self._draft + _RATE * (each - self._draft)

    def add_beginning(self, count: int, seconds: float) -> None:
        """Record the time of as many, the first after a pause."""
        more = max(seconds - count * self.draft, 0.0)
        self.beginning += _RATE * (more - self.beginning) if self.beginning else more


class Gain:
    """How many times as fast steps are with drafts as they would be without, lately."""

    def __init__(self) -> None:
        self._taken = self._without = 0.0  # seconds

    def add(self, taken: float, without: float) -> None:
        """Record the time of a step, and the time of its tokens without drafts."""
        self._taken += _GAIN_RATE * (taken - self._taken)
        self._without += _GAIN_RATE * (without - self._without)

    @property
    def value(self) -> float:
        """The gain, at least 1: drafts that lose time are for others to stop."""
        return max(self._without / self._taken, 1.0) if self._taken else 1.0


class Account:
    """Limits the time that drafts lose, whatever the estimates are.

    Probabilities and costs are estimates, and a first draft may cost more than any estimate, for
    example if it sketches a long prompt. So the measured times of drafts are summed. Once drafts
    have lost more than 1 % of the time, none are made until the total time has grown.
    """

    def __init__(self) -> None:
        self._spent = self._lost = 0.0  # seconds

    def open(self, plain: float) -> bool:
        """Whether drafts may be made, where a step without them takes `plain` seconds."""
        return self._lost <= _SHARE * (self._spent + _AHEAD * plain)

    def add(self, seconds: float, lost: float) -> None:
        """Record the time of a step, and how much less it would have been without drafts."""
        kept = 1 - 1 / _MEMORY
        self._spent = kept * self._spent + seconds
        self._lost = max(kept * self._lost + lost, -_SHARE * self._spent)


def _guess(rows: int) -> float:
    return 1 + _ROW * rows


def _place(drafts: int) -> tuple[int, float]:
    """Return the interval of `_COUNTS` that contains a number of drafts, and how far along."""
    low = max(bisect_left(_COUNTS, drafts) - 1, 0)
    begin, end = _COUNTS[low : low + 2]
    return low, (drafts - begin) / (end - begin)
