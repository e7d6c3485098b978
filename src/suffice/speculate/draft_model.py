"""A second, smaller model of the same vocabulary drafts.

Source   Leviathan et al., "Fast Inference from Transformers via Speculative Decoding". Drafts are
         chosen by the request's own parameters: argmax for greedy requests, else sampled.
Exact    always: every draft is checked.
Cost     a step of the second model for each draft, and a cache of its own for each sample.
Example  draft_model:model=smollm2-135m,kv_cache_dtype=kmeans4
Options
    model                   the second model: a known name, a folder, a hub id or a file
    num_speculative_tokens  maximum number of drafts in a step
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
from suffice.speculate import DraftingSample, DraftRunner, DraftSource
from suffice.speculate.tree import MOST_DRAFTS, Tree, check_drafts

if TYPE_CHECKING:
    from suffice.speculate.proposers import Chains


@dataclass(frozen=True)
class DraftModel:
    """Drafts of `model`, a known name, a folder, a hub id or a file, stored as `quantization` says.

    `quantization` None: as the checkpoint is. Its keys and values are of `kv_cache_dtype`: the same
    model with `kmeans4` drafts from a second cache, little more than a quarter of bfloat16's.
    """

    sketched: ClassVar[bool] = False
    drafts_with_own_model: ClassVar[bool] = False
    from_text: ClassVar[bool] = False

    model: str = field(default="", metadata=spelling(alone=True))
    num_speculative_tokens: int = 4
    adaptive: bool = True  # make only as many drafts as pay
    quantization: str | None = None
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        if not self.model:
            raise InputError(
                "speculator 'draft_model': needs 'model': a known name, a folder, a hub id or a "
                "file of the model that drafts"
            )
        check_drafts("draft_model", self.num_speculative_tokens)

    @classmethod
    def exact_limit(cls) -> None:
        """Return none: any model will do, but one must be named."""

    def proposer(self, models: DraftSource) -> ByModel:
        """Return what makes the drafts; loads the model.

        Raises:
            InputError: The model cannot be used, or has another vocabulary.
        """
        return ByModel(models.second(self.model, self.quantization, self.kv_cache_dtype))


@dataclass(eq=False)
class _Behind:
    """What the second model knows of a sample: a sequence that holds these tokens, so many of
    which are sure to be those of the text.
    """

    sequence: Any
    held: list[int] = field(default_factory=list)
    sure: int = 0


class ByModel:
    """Lets a second runner decode some tokens ahead, all samples together."""

    def __init__(self, runner: DraftRunner) -> None:
        self._runner = runner
        self._limit = min(runner.longest_prompt, runner.context)

    def propose(self, samples: Sequence[DraftingSample], most: Sequence[int]) -> list[Tree]:
        """Return drafts that continue each sample's text, at most so many tokens for each."""
        from suffice.speculate.proposers import Chains

        waiting = {
            at: chain
            for at, (sample, count) in enumerate(zip(samples, most, strict=True))
            if count > 0 and (chain := self._caught_up(sample, count))
        }
        chains = Chains([sample.state for sample in samples], most)
        while waiting:
            self._step(samples, waiting, chains)
        return chains.trees()

    def forget(self, sample: DraftingSample) -> None:
        """Give the sequence's memory back."""
        if sample.drafter is not None:
            self._runner.close(sample.drafter.sequence)
            sample.drafter = None

    def _step(
        self, samples: Sequence[DraftingSample], waiting: dict[int, list[int]], chains: Chains
    ) -> None:
        """Run the tokens that wait, and draft one more behind each; these wait then."""
        drafters = {at: samples[at].drafter for at in waiting}
        logits = self._runner.advance(
            [drafter.sequence for drafter in drafters.values()], list(waiting.values())
        )
        end = 0
        for at, chain in list(waiting.items()):
            end += len(chain)
            drafters[at].held += chain
            token = chains.draft(at, logits[end - 1])
            del waiting[at]
            if token is not None:
                with contextlib.suppress(OutOfMemory):  # then the chain is as long as it is
                    self._runner.reserve(drafters[at].sequence)
                    waiting[at] = [token]

    def _caught_up(self, sample: DraftingSample, count: int) -> list[int] | None:
        """Return the tokens that the second model must run to continue the text, space reserved.

        None if it cannot: there is no memory, or the text is too long for it.
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
            if missing and (new or len(missing) >= MOST_DRAFTS):  # more than a step takes
                self._runner.prefill(behind.sequence, missing)
                behind.held += missing
            chain = text[len(behind.held) :]
            self._runner.reserve(behind.sequence, len(chain))
        except OutOfMemory:
            self.forget(sample)
            return None
        behind.sure = len(text) - 1
        return chain
