"""What decode steps and drafts cost on this machine, and what drafts have lost."""

from __future__ import annotations

from bisect import bisect_left

_ROW = 0.1  # of a step without drafts: what a row more costs until it has been timed
_DRAFT = 0.5  # of a step without drafts: what a model's draft costs until it has been timed
_RATE = 0.2  # at which new times count
_SLOWEST = 2.0  # times what was expected: then something else ran
_FORGOTTEN = 0.003  # by a step without drafts
_SHARE = 0.01  # of the time may be lost by drafts; more makes them wait
_MEMORY = 2000.0  # steps after which what was lost counts for a third
_MOST = 16.0  # steps without drafts that one step may lose: beyond, something else ran
_COUNTS = (0, *(2**power for power in range(10)))  # of drafts; straight lines between them


class StepCosts:
    """Seconds of a step by the samples and drafts in it, and seconds of a draft.

    They are measured while decoding, not beforehand: times grow with the context and change with
    the batch and with what else the machine does. A step with drafts is known as a multiple of one
    without. Multiples that are not used are slowly forgotten, so that one which was measured at a
    bad moment is tried again.
    """

    def __init__(self) -> None:
        self._plain: dict[int, float] = {}  # seconds by samples
        self._multiples = [_guess(count) for count in _COUNTS]
        self._times = [0] * len(_COUNTS)  # that each multiple was measured
        self._draft: float | None = None

    def step(self, samples: int, drafts: int) -> float:
        """Return the seconds of a step; only ratios mean anything before one has been timed."""
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
        """The seconds of a draft that a model makes."""
        return _DRAFT * self.step(1, 0) if self._draft is None else self._draft

    def add_step(self, samples: int, drafts: int, seconds: float) -> None:
        """Take the time of a step."""
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
        # Normalised least mean squares (Widrow and Hoff) on the two ends of the straight line.
        low, share = _place(drafts)
        for at, weight in ((low, 1 - share), (low + 1, share)):
            if at and weight:  # none without drafts, whose multiple is 1
                self._times[at] += 1
                rate = max(_RATE, 1 / self._times[at])
                change = rate * error * weight / (share**2 + (1 - share) ** 2)
                self._multiples[at] = max(self._multiples[at] + change, 1.0)

    def add_drafts(self, count: int, seconds: float) -> None:
        """Take the time of some drafts, made one after the other."""
        each = seconds / count
        self._draft = each if self._draft is None else self._draft + _RATE * (each - self._draft)


class Account:
    """Keeps drafts from losing time, whatever was expected of them.

    Chances and costs are estimates, and a first draft may cost what none of them says, as where it
    makes sketches of a long prompt. So what drafts really took is booked, and once they have lost
    more than 1 % of the time there are none until the time has grown.
    """

    def __init__(self) -> None:
        self._spent = self._lost = 0.0  # seconds

    @property
    def open(self) -> bool:
        """Whether drafts may be made."""
        return self._lost <= _SHARE * self._spent

    def add(self, seconds: float, plain: float, steps: float, drafted: bool) -> None:
        """Take a step's time, its drafts' included.

        `plain`: of a step without drafts; `steps`: such steps that its tokens would have taken.
        """
        kept = 1 - 1 / _MEMORY
        self._spent, self._lost = kept * self._spent + seconds, kept * self._lost
        if drafted:
            self._lost += min(seconds - steps * plain, _MOST * plain)
        self._lost = max(self._lost, -_SHARE * self._spent)


def _guess(rows: int) -> float:
    return 1 + _ROW * rows


def _place(drafts: int) -> tuple[int, float]:
    """Return the straight line on which a number of drafts lies, and how far along it."""
    low = max(bisect_left(_COUNTS, drafts) - 1, 0)
    begin, end = _COUNTS[low : low + 2]
    return low, (drafts - begin) / (end - begin)
