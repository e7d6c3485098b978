"""Attention run-time termination: stop once the running output has settled.

    x_t = probe of o_t                                  some elements of the normalised output
    d_scale = |x_t - x_(t-1)|, d_direction = 1 - cos(x_t, x_(t-1))                 (Eq. 2)
    c_t = c_(t-1) + 1 if d_scale < tau and d_direction < phi, else 0               (Eq. 3)
    stop if c_t >= p

after each block, newest first; or, with `order=sketch`, which is ours, heaviest first as a sketch
of the keys has it. The probe is `probe` elements in runs of 16, spread over the head.

Source   Qiu et al., "ART: Attention Run-time Termination for Efficient LLM Decoding", Algorithm 1.
Exact    tau = 0 (never stable), v = 0.
Cost     reads K and V of the visited blocks. No guarantee: the theorems hold for orders in which
         the mass of blocks decays: newest first is not always one, heaviest first nearly is.
Native   csrc/kernels/traverse.inl
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from suffice.attention.technique import BlockByBlock
from suffice.errors import InputError

if TYPE_CHECKING:
    import torch

    from suffice.attention.traversal import Seen
    from suffice.native import core

RUN = 16  # elements of the probe that lie together


@dataclass
class Watch:
    """The probe at the last look and how often each head was stable in a row, [R]."""

    probe: torch.Tensor | None = None
    steady: torch.Tensor | None = None


@dataclass(frozen=True)
class ART(BlockByBlock):
    """Termination with thresholds `tau` (scale), `phi` (direction) and patience `p`.

    `v` is the value filter of `aet`; 0 reads the values of all visited keys. `order`: see
    `suffice.attention.technique.BlockByBlock`. `calibrated`: with a `tau` for each layer and
    key/value head, see `suffice.attention.by_head`.
    """

    threshold: ClassVar = "tau"
    ladder: ClassVar = (1e-4, 3e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2)

    tau: float = 1e-5
    phi: float = 1e-3
    p: int = 5
    block: int = 64
    probe: int = 32
    v: float = 0.0
    order: str = "newest"
    calibrated: bool = False

    def __post_init__(self) -> None:
        self.check_order("art", self.block)
        for name in ("tau", "phi"):
            if not getattr(self, name) >= 0:
                raise InputError(
                    f"art: {name}={getattr(self, name)}: must be a number of at least 0"
                )
        if self.p < 1:
            raise InputError(f"art: p={self.p}: must be at least 1 block")
        if self.block not in (16, 32, 48, 64):
            raise InputError(f"art: block={self.block}: must be 16, 32, 48 or 64")
        if self.probe < RUN or self.probe % RUN:
            raise InputError(f"art: probe={self.probe}: must be a multiple of {RUN}")
        if not 0 <= self.v <= 1:
            raise InputError(f"art: v={self.v}: must be in [0, 1]")

    @classmethod
    def exact_limit(cls) -> ART:
        """Return the setting that reads everything."""
        return cls(tau=0)

    def new_state(self) -> None:
        """Return nothing: tokens do not know of each other."""

    def always(self, state: None, length: int) -> list[int]:
        """Return nothing: blocks come newest first."""
        return []

    def watch(self) -> Watch:
        """Return what one look keeps for the next."""
        return Watch()

    def enough(self, seen: Seen, watch: Watch) -> torch.Tensor:
        """Return which heads have settled, bool [R]."""
        x = self.probed(seen.output / seen.total[:, None])
        before = x.new_zeros(x.shape) if watch.probe is None else watch.probe
        steady = x.new_zeros(len(x)) if watch.steady is None else watch.steady
        norms = x.norm(dim=-1) * before.norm(dim=-1)
        stable = ((x - before).norm(dim=-1) < self.tau) & (
            (x * before).sum(-1) > (1 - self.phi) * norms
        )
        watch.probe, watch.steady = x, (steady + 1) * stable
        return watch.steady >= self.p

    def probed(self, output: torch.Tensor) -> torch.Tensor:
        """Return the probe [R, probe] of outputs [R, D]."""
        runs, probes = output.shape[-1] // RUN, min(self.probe, output.shape[-1]) // RUN
        chosen = [i * runs // probes for i in range(probes)]
        return output.reshape(-1, runs, RUN)[:, chosen].flatten(1)

    def learn(self, state: None, masses: dict[int, float]) -> None:
        """Take note of nothing."""

    def rule(self) -> core.AttentionRule:
        """Return what the native kernel does."""
        from suffice.native import PANEL, core

        return core.AttentionRule.art(
            scale=self.tau,
            direction=self.phi,
            patience=self.p,
            probe=self.probe,
            value_share=self.v,
            check_blocks=self.block // PANEL,
            by_sketch=self.sketched,
        )
