"""Leave out the experts that weigh next to nothing for a token.

    of a row's experts, the lightest are left out
    as long as their weights sum up to at most (1 - keep) of the weights of all

The heaviest is always computed. Weights of the others stay as they are.

Source   ours
Exact    keep=1.
Bound    with w the weights, f_e an expert's output and D the experts that are left out, the output
         of the layer's experts changes by |sum_D w_e f_e| <= (1 - keep) sum |w| max_D |f_e|.
Cost     nothing: the weights are known before an expert is read.
Native   csrc/model/routing.cpp
Options
    keep  share of a row's weights that the computed experts have, at least
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from suffice.errors import InputError


@dataclass(frozen=True)
class Mass:
    """Keep the experts that have `keep` of a row's weights.

    Raises:
        InputError: `keep` is not above 0 and at most 1.
    """

    keep: float = 0.98

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise InputError(f"mass: keep={self.keep}: must be a number above 0, at most 1")

    @classmethod
    def exact_limit(cls) -> Mass:
        """Return the setting that leaves out nothing."""
        return cls(keep=1.0)

    @property
    def left_out(self) -> float:
        """The share of a row's weights that may be left out."""
        return 1.0 - self.keep

    def kept(self, weights: np.ndarray) -> np.ndarray:
        """Return which experts of a row with weights float32 [E], 0 for others, are computed."""
        found = np.asarray(weights != 0)
        sizes = np.abs(weights.astype(np.float64))
        most = float(np.float32(self.left_out)) * sizes.sum()
        dropped = 0.0
        for expert in np.argsort(np.where(found, sizes, np.inf), kind="stable")[: found.sum() - 1]:
            dropped += sizes[expert]
            if not (dropped <= most and self.left_out):
                break
            found[expert] = False
        return found
