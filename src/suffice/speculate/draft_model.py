"""A second, smaller model of the same vocabulary drafts.

Source   Leviathan et al., "Fast Inference from Transformers via Speculative Decoding". Drafts are
         chosen by the request's own parameters: argmax for greedy requests, else sampled.
         Siblings (`width`) are the most likely tokens, or drawn without replacement as in Chen et
         al., "Sequoia".
Exact    always: every draft is checked. A chain gives the bits of single steps, and so do siblings
         next to it.
Cost     a step of the second model for each draft of the chain, and a cache of its own for each
         sample. A sibling costs its row in the step that checks it.
Example  draft_model:model=smollm2-135m,kv_cache_dtype=kmeans4
Options
    model                   the second model: a known name, a folder, a hub id or a file
    num_speculative_tokens  maximum length of the chain of drafts in a step
    width                   maximum number of siblings: tokens drafted for the same place
    adaptive                draft fewer, or none, while drafts do not save time
    quantization            how its weights are stored; none: as in its file
    kv_cache_dtype          type of its keys and values
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from suffice.errors import InputError, OutOfMemory
from suffice.registry import spelling
from suffice.speculate import DraftingSample, DraftRunner, DraftSource, ReadsNoKeys
from suffice.speculate.tree import MOST_DRAFTS, Tree, Widths, check_drafts

if TYPE_CHECKING:
    from suffice.speculate.proposers import Drafting


@dataclass(frozen=True)
class DraftModel(ReadsNoKeys):
    """Drafts of `model`, which is a known name, a folder, a hub id or a file.

    Its weights are stored by `quantization` (None: as in the checkpoint), its keys and values in
    `kv_cache_dtype`. With the request's own model and `kmeans4`, the second cache is little more
    than a quarter of a bfloat16 one.
    """

    text: ClassVar[bool] = False

    model: str = field(default="", metadata=spelling(alone=True))
    num_speculative_tokens: int = 4
    width: int = 1
    adaptive: bool = True  # make only as many drafts as save time
    quantization: str | None = None
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        if not self.model:
            raise InputError(
                "speculator 'draft_model': needs 'model': a known name, a folder, a hub id or a "
                "file of the model that drafts"
            )
        check_drafts("draft_model", self.num_speculative_tokens, self.width)

    @classmethod
    def exact_limit(cls) -> None:
        """Return None: any model is exact, but one must be named."""

    def proposer(self, models: DraftSource) -> ByModel:
        """Load the model and return the proposer.

        Raises:
            InputError: The model cannot be used, or has another vocabulary.
        """
        return ByModel(models.second(self.model, self.quantization, self.kv_cache_dtype))


@dataclass(eq=False)
class _Behind:
    """A sample's state in the second model.

    `sequence` holds the tokens `held`; the first `sure` of them are known to equal the text's.
    """

    sequence: Any
    held: list[int] = field(default_factory=list)
    sure: int = 0


class ByModel:
    """Decodes tokens ahead in a second runner, all samples together."""

    def __init__(self, runner: DraftRunner) -> None:
        self._runner = runner
        self._limit = runner.context

    def propose(self, samples: Sequence[DraftingSample], shapes: Sequence[Widths]) -> list[Tree]:
        """Return drafts that continue each sample's text, in shape i or less of it."""
        from suffice.speculate.proposers import Drafting

        waiting = {
            at: chain
            for at, (sample, shape) in enumerate(zip(samples, shapes, strict=True))
            if shape and (chain := self._caught_up(sample, len(shape)))
        }
        drafting = Drafting.of(samples, shapes)
        while waiting:
            self._step(samples, waiting, drafting)
        return drafting.trees()

    def forget(self, sample: DraftingSample) -> None:
        """Free the sequence's memory."""
        if sample.drafter is not None:
            self._runner.close(sample.drafter.sequence)
            sample.drafter = None

    def _step(
        self, samples: Sequence[DraftingSample], waiting: dict[int, list[int]], drafting: Drafting
    ) -> None:
        """Run the waiting tokens and draft one more depth; the first token of each waits next."""
        drafters = {at: samples[at].drafter for at in waiting}
        logits = self._runner.advance(
            [drafter.sequence for drafter in drafters.values()], list(waiting.values())
        )
        end = 0
        for at, chain in list(waiting.items()):
            end += len(chain)
            drafters[at].held += chain
            token = drafting.draft(at, logits[end - 1])
            del waiting[at]
            if token is not None:
                with contextlib.suppress(OutOfMemory):  # then the chain ends here
                    self._runner.reserve(drafters[at].sequence)
                    waiting[at] = [token]

    def _caught_up(self, sample: DraftingSample, count: int) -> list[int] | None:
        """Return the tokens that the second model must run to continue the text; reserve memory.

        None if it cannot: there is no memory, or the text is too long for the model.
        """
        text = [*sample.state.prompt, *sample.state.output]
        if len(text) + count > self._limit:
            return None
        new = sample.drafter is None
        if new:
            sample.drafter = _Behind(self._runner.open("draft", self._runner.context))
        behind: _Behind = sample.drafter
        shared = behind.sure
        while shared < min(len(behind.held), len(text) - 1) and behind.held[shared] == text[shared]:
            shared += 1
        behind.sequence.cache.truncate(shared)
        del behind.held[shared:]
        try:
            missing = text[len(behind.held) : -1]
            if missing and (new or len(missing) >= MOST_DRAFTS):  # too many for one step
                self._runner.prefill(behind.sequence, missing)
                behind.held += missing
            chain = text[len(behind.held) :]
            self._runner.reserve(behind.sequence, len(chain))
        except OutOfMemory:
            self.forget(sample)
            return None
        behind.sure = len(text) - 1
        return chain
