"""Three tiers of keys and values: each row is read as exactly as it matters.

Every key and value has a base of 4 bits (`kmeans4`), which is read alone: the first of two planes
of 4 bits where rows lie in `planes`; with other types a copy of the exact row. The bases of all
keys give a score x' for each. With p' = e^x' / sum e^x', blocks of 16 rows are chosen, heaviest
first, until for every head of the group

    sum of p' over the other blocks <= eps

and a row is read as follows:

    p' < skip in every head    skipped         neither weight nor value
    light: in no chosen block  base            weight e^x', value by its base
    heavy: in a chosen block   exact           weight e^x, value exact

The output is the mean of the values by these weights, over the rows that are not skipped. The
row of the largest p' of a head is never skipped.

With `bounded`, all rows of chosen blocks are heavy, and blocks are chosen until the softmax is
certainly within the total variation distance `eps` of the exact one, in every head. What a base
lacks of a key adds at most q* l s to a score, with l its stored length in steps of the scale s and
q* the query's length, both lengths in the measure that the rounding of keys is fitted to. Let W be
the sum of the weights that count, M by how much the true ones may exceed them, and L by how much
they may fall short:

    distance <= M / (W + M - L)

The output is then off by at most the length of the longest value, times 2 M / (W + M - L) and the
sum of e^x' e / W over light rows, with e the stored relative error of a value's base.

With `sample`, nothing of this changes, but what is left out is bounded at a confidence: the exact
scores of up to `sample` blocks say how much of what they may lack they do lack, and Hoeffding's
inequality says it for all. A softmax is further from the exact one than its bound with a
probability of at most `delta`.

With `prompt`, tiles of 32 tokens of a prompt read their heaviest blocks exactly, and no others: see
`suffice.attention.prompt_tiles`. Rows of such prompts serve no other requests.

Source   ours; 4-bit scores for choosing keys as in Lin et al., "Twilight".
Exact    eps = 0, skip = 0 and prompt = 0.
Bound    with `bounded`, `eps`: the total variation distance to the exact softmax, for each head;
         the bound on the output is reported. With `sample`, a bound is reported that each softmax
         keeps with a probability of 1 - `delta`.
Cost     reads the bases of all keys, heavy rows exactly and the bases of light values: D / 2 + 4
         bytes for a base; for bounds, two bytes for each row, and for a sample the exact keys of
         its blocks, each once. Bases of other types than `planes` also take D + 10 bytes of memory
         for a row: 29 % more than bfloat16 (D = 64).
Native   csrc/attention/tier_search.cpp, csrc/attention/tier_sample.cpp,
         csrc/attention/prompt_search.cpp, csrc/kernels/tiers.inl, csrc/kernels/kv_planes.inl,
         csrc/kernels/rows.inl
Example  tiers:eps=0.7,skip=0.0002
Options
    eps         largest share of the softmax with estimated scores, in every head; 0: none
    skip        rows of a smaller share of the softmax, in every head, are not read; 0: all are
    bounded     eps is the largest total variation distance to the exact softmax, which is certain
    prompt      largest share of the softmax that 32 tokens of a prompt leave unread, on average, in
                every head; 0: prompts read everything
    sample      blocks of 16 keys whose exact scores bound the distance, for each key/value head and
                token; 0: none
    delta       with `sample`, the probability with which the bound of one softmax is wrong; without
                it, refused
    calibrated  take eps and skip by layer and head from `suffice calibrate --budget`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from suffice.attention.rule import AttentionRule
from suffice.attention.technique import Technique
from suffice.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from suffice.attention.planes import Planes
    from suffice.attention.tiers_reference import Tiered

LEAST = 1e-6  # of `eps` above 0, that float32 sums of weights distinguish from 0
DELTA = 0.01  # where none is given
LEAST_DELTA = 1e-30  # a float32


@dataclass(frozen=True)
class Tiers(Technique):
    """Estimates at most the share `eps` of a softmax, and skips rows below the share `skip`.

    `bounded`: softmaxes are within the total variation distance `eps` of the exact ones.
    `calibrated`: with an `eps` and a `skip` for each layer and key/value head, see
    `suffice.attention.by_head`.
    """

    needs_exact_softmax: ClassVar[bool] = True
    estimates: ClassVar[bool] = True
    ladders: ClassVar = {
        "eps": (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0),
        "skip": (0.0, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005),
    }

    eps: float = 0.5
    skip: float = 0.0002
    bounded: bool = False
    prompt: float = 0.0
    sample: int = 0
    delta: float = DELTA
    calibrated: bool = False

    def __post_init__(self) -> None:
        if not (self.eps == 0 or LEAST <= self.eps <= 1):
            raise InputError(f"tiers: eps={self.eps}: must be 0 or in [{LEAST}, 1]")
        if not 0 <= self.skip <= 1:
            raise InputError(f"tiers: skip={self.skip}: must be in [0, 1]")
        if not 0 <= self.prompt < 1:
            raise InputError(f"tiers: prompt={self.prompt}: must be in [0, 1)")
        if self.sample < 0:
            raise InputError(f"tiers: sample={self.sample}: must be a number of blocks, or 0")
        if not LEAST_DELTA <= self.delta < 1:
            raise InputError(
                f"tiers: delta={self.delta}: must be at least {LEAST_DELTA} and below 1"
            )
        if self.delta != DELTA and not self.sample:
            raise InputError(
                f"tiers: delta={self.delta}: needs sample, such as sample=64: without it there is "
                "no bound at a confidence"
            )
        if self.sample and not self.approximates:
            raise InputError(
                f"tiers: sample={self.sample} with eps=0,skip=0: nothing is left out, so there is "
                "nothing to bound; give eps or skip above 0"
            )
        if self.sample and self.bounded:
            raise InputError(
                f"tiers: sample={self.sample} with bounded=true: a certain bound takes no sample"
            )

    @property
    def approximates(self) -> bool:
        """Return whether anything may be estimated or skipped."""
        return self.eps > 0 or self.skip > 0

    @property
    def unread_in_prompts(self) -> float:
        """The largest share of its softmaxes that a tile of a prompt leaves unread, on average."""
        return self.prompt

    @property
    def confidence(self) -> float:
        """The probability with which a bound holds, for each softmax."""
        return 1 - self.delta if self.sample else 1.0

    @property
    def based(self) -> bool:
        """Whether the cache must keep a base of each row, 4 bits of it that are read alone."""
        return self.approximates

    @property
    def needs_all_tokens(self) -> bool:
        """Return whether it selects from all tokens itself."""
        return self.approximates

    @classmethod
    def exact_limit(cls) -> Tiers:
        """Return the setting that reads all rows exactly."""
        return cls(eps=0, skip=0)

    def reference(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        *,
        scale: float,
        visible: np.ndarray | None = None,
        states: list[Any] | None = None,
        stored: tuple[Planes, Planes] | None = None,
    ) -> Tiered:
        """Attend to keys and values as `planes` has them; see `Attention.reference`.

        `stored`: keys and values with the bases that a cache has; None: those of `planes.split`.
        """
        from suffice.attention.tiers_reference import Limits, attend

        limits = Limits(self.eps, self.skip, self.bounded, self.sample, self.delta)
        return attend(q, k, v, scale=scale, limits=limits, visible=visible, stored=stored)

    def rule(self) -> AttentionRule:
        """Return what the native kernel does."""
        parameters = {
            "estimated": self.eps,
            "lightest": self.skip,
            "bounded": self.bounded,
            "sample": self.sample,
            "delta": self.delta,
        }
        return AttentionRule("tiers", parameters, exact=not self.approximates)
