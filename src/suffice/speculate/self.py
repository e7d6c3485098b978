"""The model drafts for itself under a cheaper setting.

Source   Weights and cache are those of the model, as in QuantSpec (4-bit weights) and MagicDec (the
         first and the newest keys, as in StreamingLLM): drafts read less, and the model checks them
         with its own setting. Siblings (`width`) are the most likely tokens, or drawn without
         replacement as in Chen et al., "Sequoia".
Exact    always: every draft is checked. A chain gives the bits of single steps, and so do siblings
         next to it.
Cost     a step of the cheaper setting for each draft of the chain, which writes to the row in which
         it is checked later. A sibling costs its row in the step that checks it. Weights of fewer
         bits are held in addition to the model's.
Options
    num_speculative_tokens  maximum length of the chain of drafts in a step
    width                   maximum number of siblings: tokens drafted for the same place
    adaptive                draft fewer, or none, while drafts do not save time
    attention               how drafts attend to the tokens they see
    recent                  newest tokens that drafts see; 0: all
    sinks                   first tokens that drafts see
    quantization            how the layers' weights are stored for drafts; none: not stored again
    skip_layers             layers that drafts leave out, such as 10-12+20; none: none
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from suffice.attention import ATTENTIONS, Attention, rule_of
from suffice.errors import InputError
from suffice.quant import QUANTS, Quant
from suffice.registry import spelling
from suffice.speculate import DraftingSample, DraftSetting, DraftSource
from suffice.speculate.tree import NO_DRAFTS, Tree, Widths, check_drafts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LAYERS = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


def _stateless() -> list[str]:
    """Return the names of sparse attention techniques without state."""
    kinds = {name: ATTENTIONS.load(name) for name in ATTENTIONS.names()}
    return [name for name, kind in kinds.items() if kind.stateless and not kind.applies_to_prompts]


@dataclass(frozen=True)
class SelfDraft:
    """Drafts in a cheaper setting of the model.

    They see the last `recent` tokens (0: all) and the first `sinks`; `attention` decides which of
    these are read. The layers' weights are stored a second time by `quantization`, unless it is
    None or saves nothing. The layers in `skip_layers`, such as `10-12+20`, are left out.
    """

    from_text: ClassVar[bool] = False
    at_once: ClassVar[bool] = False
    text: ClassVar[bool] = False
    drafts_with_own_model: ClassVar[bool] = True

    num_speculative_tokens: int = field(default=4, metadata=spelling(alone=True))
    width: int = 1
    adaptive: bool = True  # make only as many drafts as save time
    attention: str = "exact"
    recent: int = 512
    sinks: int = 16
    quantization: str | None = "rtn:group=64,act_bits=8"
    skip_layers: str | None = None

    def __post_init__(self) -> None:
        check_drafts("self", self.num_speculative_tokens, self.width)
        for option in ("recent", "sinks"):
            if (given := getattr(self, option)) < 0:
                raise InputError(f"speculator 'self': {option}={given}: must be at least 0 tokens")
        technique, quant, skipped = self.technique, self.quant, self.skipped
        rule = rule_of(technique)
        # A technique with state would have to undo drafts, and exact steps do not update states.
        if rule is not None and (rule.exact or not technique.stateless):
            raise InputError(
                f"speculator 'self': attention='{self.attention}': must be exact, or one of "
                f"{', '.join(_stateless())} with a setting that reads fewer rows"
            )
        if technique.calibrated:
            raise InputError(
                f"speculator 'self': attention='{self.attention}': drafts have one threshold for "
                "all heads: leave out calibrated"
            )
        if rule is None and not (self.recent or quant or skipped):
            raise InputError(
                "speculator 'self': drafts would cost as much as the model: give attention, "
                "recent, quantization or skip_layers"
            )

    @property
    def technique(self) -> Attention:
        """The drafts' attention technique."""
        found: Attention = ATTENTIONS.build(self.attention)
        return found

    @property
    def quant(self) -> Quant | None:
        """The quantization of the layers' weights for drafts; None if they are not stored again."""
        return None if self.quantization is None else QUANTS.build(self.quantization)

    @property
    def skipped(self) -> tuple[int, ...]:
        """The layers that drafts leave out, ascending.

        Raises:
            InputError: `skip_layers` is no list of layers.
        """
        found: set[int] = set()
        for part in self.skip_layers.split("+") if self.skip_layers else ():
            match = _LAYERS.fullmatch(part)
            first, last = match.groups(match[1]) if match else ("1", "0")
            if int(first) > int(last):
                raise InputError(
                    f"speculator 'self': skip_layers='{self.skip_layers}': must be layers and "
                    "ranges of them with + between, such as 10-12+20"
                )
            found.update(range(int(first), int(last) + 1))
        return tuple(sorted(found))

    @property
    def sketched(self) -> bool:
        """Whether drafts need sketches of the keys."""
        return self.technique.sketched

    @property
    def based(self) -> bool:
        """Whether drafts need bases of the rows."""
        return self.technique.based

    @classmethod
    def exact_limit(cls) -> SelfDraft:
        """Return any setting."""
        return cls()

    def proposer(self, models: DraftSource) -> ByItself:
        """Return the proposer; store the weights a second time if necessary.

        Raises:
            InputError: The model has no such layers, its weights cannot be quantized so, or drafts
                would cost as much as the model.
        """
        setting = DraftSetting(self.technique, self.quant, self.recent, self.sinks, self.skipped)
        try:
            return ByItself(models.under(setting))
        except InputError as error:
            raise InputError(f"speculator 'self': {error}") from None


class ByItself:
    """Decodes tokens ahead, all samples together, and removes them from the caches again."""

    def __init__(self, step: Callable[[list[Any], list[int]], NDArray[np.float32]]) -> None:
        self._step = step

    def propose(self, samples: Sequence[DraftingSample], shapes: Sequence[Widths]) -> list[Tree]:
        """Return drafts that continue each sample's text, in shape i or less of it."""
        from suffice.speculate.proposers import Drafting

        if not any(shapes):  # as in most steps where drafts do not save time
            return [NO_DRAFTS] * len(samples)
        drafting = Drafting.of(samples, shapes)
        waiting = {at: s.state.output[-1] for at, s in enumerate(samples) if shapes[at]}
        lengths = {at: samples[at].sequence.cache.length for at in waiting}
        try:
            while waiting:
                logits = self._step([samples[at].sequence for at in waiting], [*waiting.values()])
                drafted = {
                    at: drafting.draft(at, row) for at, row in zip(waiting, logits, strict=True)
                }
                waiting = {at: token for at, token in drafted.items() if token is not None}
        finally:
            for at, length in lengths.items():
                samples[at].sequence.cache.truncate(length)
        return drafting.trees()

    def forget(self, sample: DraftingSample) -> None:
        """Do nothing; there is no state."""
