"""What calibration asks of a way to store weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from suffice.quant import PackedLinear, Quant
from suffice.quant.activations import Site
from suffice.quant.coded import Coded


class Calibrated(Quant, Protocol):
    """A way to store weights that uses statistics of their inputs on a text."""

    @property
    def fisher(self) -> bool:
        """Whether tokens are weighted by `sensitivity` instead of equally."""
        ...

    def quantize(self, weight: np.ndarray, hessian: np.ndarray | None = None) -> Coded:
        """Return a weight [N, K] as codes."""
        ...

    @property
    def weighs_inputs(self) -> bool:
        """Whether codebooks of inputs are weighted by `sensitivity`."""
        ...

    def site(self, inputs: np.ndarray, gradients: np.ndarray | None = None) -> Site | None:
        """Learn the codebook of a site from some tokens' inputs [T, K]; None: it has none.

        `gradients` [T, K] of the log probability weigh them.
        """
        ...

    def packed(
        self, coded: Coded, bias: np.ndarray | None = None, site: Site | None = None
    ) -> PackedLinear:
        """Pack what `quantize` and `site` returned."""
        ...

    def shared_levels(self, parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray | None:
        """Return `levels` for `quantize`, learned from weights [N, K] with H of their inputs.

        Matrices of the same levels can be stacked. None: all weights have the same ones.
        """
        ...
