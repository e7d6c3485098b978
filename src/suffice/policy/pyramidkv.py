"""SnapKV with more tokens in the first layers than in the last.

    c = budget - window, of T - window tokens before the window
    low = c // beta,  high = 2 c - low;  if high > T - window: high = T - window, low = 2 c - high
    layer l of L keeps high - l (high - low) // (L - 1) of them, and the window

If T < 2 c every layer keeps c. The mean over the layers is c, up to rounding.

Source   Cai et al., "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information
         Funneling", section 4 and its code, beta = 20. Window 128 and pooling 5 by the maximum are
         those of ART, Table 5.
Differs  The code divides (high - low) // (L - 1) first, which adds up to (L - 1) / 2 tokens to the
         mean. Layers with a sliding window are not counted.
Exact    ratio = 1.
Cost     that of `snapkv`.
Example  pyramidkv:ratio=0.25
Options
    window  last tokens of the prompt; they choose, and they are kept
    beta    steepness: the last layer keeps 1 / beta of the mean
"""

from __future__ import annotations

from dataclasses import dataclass

from suffice.errors import InputError
from suffice.policy.snapkv import SnapKV


@dataclass(frozen=True)
class PyramidKV(SnapKV):
    """Keeps tokens that the end of the prompt attends to, fewer from layer to layer."""

    window: int = 128
    beta: int = 20

    def __post_init__(self) -> None:
        if self.beta < 1:
            raise InputError(f"pyramidkv: beta={self.beta}: must be at least 1")
        super().__post_init__()

    def budgets(self, prompt: int, layers: int) -> list[int]:
        """Return the number of prompt tokens kept by each layer without a sliding window."""
        budget = self.tokens(prompt)
        if prompt <= budget:
            return [prompt] * layers
        past, mean = prompt - self.window, budget - self.window
        if prompt < 2 * mean or layers == 1:
            return [budget] * layers
        low = mean // self.beta
        high = 2 * mean - low
        if high > past:
            high, low = past, 2 * mean - past
        return [
            high - layer * (high - low) // (layers - 1) + self.window for layer in range(layers)
        ]
