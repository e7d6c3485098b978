"""Shares the engine's time between keys, such as the users of a server. No tensors here.

Source   Sheng et al., "Fairness in Serving Large Language Models": a virtual token counter per
         client; who has been served least comes first, and a client that was away begins at the
         least counter of those who are active, so that it cannot save up its share.
Differs  A prompt's tokens are charged as they run, and those that were found in a cache are free.
"""

from __future__ import annotations

from collections.abc import Iterable

OUTPUT_WEIGHT = 2  # of a generated token, over a prompt's


class FairShare:
    """Counts what each key was served."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}

    def served(self, key: str) -> float:
        """Return the tokens that a key was served, weighted."""
        return self._served.get(key, 0.0)

    def join(self, key: str, active: Iterable[str]) -> None:
        """Note that a key asks for something; `active` are the keys with requests under way."""
        others = set(active)
        if key in others:
            return
        least = min((self.served(each) for each in others), default=0.0)
        self._served = {each: self.served(each) for each in others}  # forget who has gone
        self._served[key] = max(self._served.get(key, 0.0), least)

    def charge(self, key: str, prompt: int = 0, output: int = 0) -> None:
        """Count tokens of a prompt that were run, and tokens that were generated."""
        self._served[key] = self.served(key) + prompt + OUTPUT_WEIGHT * output
