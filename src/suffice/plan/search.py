"""The smallest number of engines that holds a load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Figures = dict[str, Any]
SATURATED = 0.98  # of the front's time: more engines change nothing


@dataclass(frozen=True)
class Try:
    """A number of engines, its figures, and whether they hold the goals, with the reason.

    `vain`: no number of engines holds them, since requests that are alone miss them too.
    """

    instances: int
    figures: Figures
    holds: bool
    reason: str
    vain: bool = False


def fewest(tries: Sequence[Try]) -> Try:
    """Return the fewest engines that hold the goals, or the last that were tried."""
    holding = [each for each in tries if each.holds]
    return min(holding, key=lambda each: each.instances) if holding else tries[-1]


def reason(figures: Figures, goal: float) -> str:
    """Return in a line how many requests hold the goals, and what the others miss."""
    late = {name: count for name, count in figures["missed"].items() if name != "any" and count}
    held = f"{figures['held']:.2%} of the requests hold the goals"
    if figures["held"] >= goal:
        return f"{held}, {goal:.2%} are asked for"
    worst = max(late, key=lambda name: late[name])
    what = "are refused or fail" if worst == "error" else f"miss {worst}"
    parts = [held, f"{late[worst] / figures['requests']:.2%} {what}"]
    if figures["front_utilisation"] >= SATURATED:
        parts.append(f"the front is busy for {figures['front_utilisation']:.0%} of the time")
    else:
        parts.append(f"the engines work for {figures['utilisation']:.0%} of the time")
    return ", ".join(parts)


def smallest(
    simulate: Callable[[int], Figures],
    goal: float,
    most: int,
    only: int | None = None,
    alone: Callable[[], Figures] | None = None,
) -> Iterator[Try]:
    """Yield tries: doubled until the goals hold, then bisected; or the one number `only`.

    The last try that holds is the smallest number; if none does, `most` engines, or the front,
    do not suffice. Fewer engines are taken to hold no more. `alone` gives the figures if each
    request has an idle engine: if they miss the goals, no other number is tried.
    """
    low, high = 0, most + 1  # low does not hold, high does or is too many
    at = 1 if only is None else only
    while True:
        figures = simulate(at)
        holds = figures["held"] >= goal
        if not holds and not low and alone is not None and (idle := alone())["held"] < goal:
            yield Try(at, figures, False, f"on an idle engine {reason(idle, goal)}", vain=True)
            return
        yield Try(at, figures, holds, reason(figures, goal))
        if only is not None:
            return
        if holds:
            high = at
        else:
            low = at
            if figures["front_utilisation"] >= SATURATED:
                return
        if high - low <= 1:
            return
        at = min(2 * low, most) if high > most else (low + high) // 2
