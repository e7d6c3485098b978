"""Run-time termination: stop once the running output has settled.

    x_t = probe of o_t                                  elements of the normalised output
    d_scale = |x_t - x_(t-1)|, d_direction = 1 - cos(x_t, x_(t-1))                 (Eq. 2)
    c_t = c_(t-1) + 1 if d_scale < change and d_direction < angle, else 0          (Eq. 3)
    stop if c_t >= patience

checked after each block. Blocks come newest first, or heaviest first with `order=sketch`.

Source   Qiu et al., "ART: Attention Run-time Termination for Efficient LLM Decoding", Algorithm 1;
         `change`, `angle` and `patience` are the paper's tau, phi and p.
Differs  The probe takes runs of 16 elements spread over the head; the paper's elements are
         scattered one by one. It is of the normalised output, as in the paper's appendix A. Heads
         that share keys stop together, once all are stable at the same check. Over `snapkv` and
         `pyramidkv` blocks come in descending importance, as in section 3.3, but for the prompt's
         last window and decoded tokens, which have none and come first. `order=sketch` and `values`
         are ours.
Exact    change=0 (never stable), values=0.
Cost     reads K and V of the blocks up to the stop. No guarantee: the paper's theorems need an
         order in which the mass of blocks decays. Heaviest first nearly is one, newest first often
         not.
Native   csrc/attention/techniques/art.inl
Example  art:change=0.01,block=16,order=sketch
Options
    change      norm of the probe's change below which a check counts as stable
    angle       1 - cosine of successive probes below which a check counts as stable
    patience    stable checks in a row before a head stops
    block       tokens between two checks: 16, 32, 48 or 64; order=sketch needs 16
    probe       elements of the output that are compared, a multiple of 16; all of a shorter head
    values      values of keys lighter than this share of the heaviest key are not read; 0: all are
    order       newest: blocks newest first; sketch: heaviest first by a 4-bit sketch
    calibrated  take change by layer and head from `suffice calibrate --budget`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.linalg import norm

from suffice.attention.rule import AttentionRule
from suffice.attention.technique import BlockByBlock
from suffice.cache import BLOCK
from suffice.errors import InputError

if TYPE_CHECKING:
    from suffice.attention.traversal import Seen

RUN = 16  # elements of the probe that lie together
ENDLESS = 1 << 20  # patience: more checks than any context has


@dataclass
class ProbeState:
    """The probe at the last check, and each head's stable checks in a row, [R]."""

    probe: np.ndarray | None = None
    steady: np.ndarray | None = None


@dataclass(frozen=True)
class ART(BlockByBlock):
    """Termination with thresholds `change` and `angle` of the output, and `patience`.

    They are the paper's tau, phi and p.

    `values` is the value filter of `aet`; 0 reads the value of every key that is read. `order`:
    see `suffice.attention.technique.BlockByBlock`. `calibrated`: with a `change` for each layer and
    key/value head, see `suffice.attention.by_head`.
    """

    ladders: ClassVar = {"change": (1e-4, 3e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2)}

    change: float = 1e-5
    angle: float = 1e-3
    patience: int = 5
    block: int = 64
    probe: int = 32
    values: float = 0.0
    order: str = "newest"
    calibrated: bool = False

    def __post_init__(self) -> None:
        self.check_order("art", self.block)
        for name in ("change", "angle"):
            if not 0 <= getattr(self, name) < np.inf:
                raise InputError(
                    f"art: {name}={getattr(self, name)}: must be a finite number of at least 0"
                )
        if self.patience < 1:
            raise InputError(f"art: patience={self.patience}: must be at least 1 block")
        if self.block not in (16, 32, 48, 64):
            raise InputError(f"art: block={self.block}: must be 16, 32, 48 or 64")
        if self.probe < RUN or self.probe % RUN:
            raise InputError(f"art: probe={self.probe}: must be a multiple of {RUN}")
        if not 0 <= self.values <= 1:
            raise InputError(f"art: values={self.values}: must be in [0, 1]")

    @classmethod
    def exact_limit(cls) -> ART:
        """Return the setting that reads all rows."""
        return cls(change=0)

    def new_state(self) -> None:
        """Return None: there is no state between tokens."""

    def always(self, state: None, length: int) -> list[int]:
        """Return an empty list: no block is always read."""
        return []

    def watch(self) -> ProbeState:
        """Return the state between the checks of one token."""
        return ProbeState()

    def enough(self, seen: Seen, watch: ProbeState) -> np.ndarray:
        """Return which heads may stop, bool [R]."""
        x = self.probed(seen.output / seen.total[:, None])
        before = np.zeros_like(x) if watch.probe is None else watch.probe
        steady = np.zeros(len(x), int) if watch.steady is None else watch.steady
        norms = norm(x, axis=-1) * norm(before, axis=-1)
        stable = (norm(x - before, axis=-1) < self.change) & (
            (x * before).sum(-1) > (1 - self.angle) * norms
        )
        watch.probe, watch.steady = x, (steady + 1) * stable
        return watch.steady >= self.patience

    def probed(self, output: np.ndarray) -> np.ndarray:
        """Return the probe [R, probe] of outputs [R, D]."""
        runs, probes = output.shape[-1] // RUN, min(self.probe, output.shape[-1]) // RUN
        chosen = [i * runs // probes for i in range(probes)]
        return output.reshape(-1, runs, RUN)[:, chosen].reshape(-1, probes * RUN)

    def learn(self, state: None, masses: dict[int, float]) -> None:
        """Do nothing; there is no state."""

    def rule(self) -> AttentionRule:
        """Return what the native kernel does."""
        parameters = {
            "scale": self.change,
            "direction": self.angle,
            "patience": self.patience,
            "probe": self.probe,
            "check_blocks": self.block // BLOCK,
            "by_sketch": self.sketched,
        }
        never_stops = self.change == 0 or self.patience >= ENDLESS
        return AttentionRule("art", parameters, self.values, never_stops and self.values == 0)
