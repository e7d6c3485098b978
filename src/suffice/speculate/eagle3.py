"""A trained head drafts: one layer that reads the model's own hidden states.

Source   Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
         Training-Time Test", section 3.1. The head fuses the hidden states of three layers of the
         model at a token with the embedding of the next one; further ahead it reads its own.
         Siblings (`width`) are the most likely tokens, or drawn without replacement as in Chen et
         al., "Sequoia".
Differs  EAGLE-2's trees branch everywhere; here only the first of several siblings goes on.
Exact    always: every draft is checked. A chain gives the bits of single steps. Siblings next to it
         do so up to rounding, which may decide between tokens of nearly equal probability.
Cost     a step of one layer and of the head's vocabulary for each draft of the chain, which with
         `adaptive` ends where another would not save time; its keys and values of every token,
         which a prompt's tokens make too; with `adaptive`, of few tokens while drafts do not save
         time. A sibling costs its row in the step that checks it.
Example  eagle3:model=FOLDER,num_speculative_tokens=5
Options
    model                   the head: a folder or a hub id, in the format of EAGLE, SGLang and vLLM
    num_speculative_tokens  maximum length of the chain of drafts in a step
    width                   maximum number of siblings: tokens drafted for the same place
    adaptive                draft fewer, or none, while drafts do not save time
    text                    draft as `suffix` does instead where that is expected to be faster;
                            only with `adaptive`
    quantization            how its weights are stored; file: as in its files; none: so too if they
                            have codes, else in 4 bits
    kv_cache_dtype          type of its keys and values: float32, bfloat16, float16 or int8
"""

from __future__ import annotations

from dataclasses import dataclass, field

from suffice.errors import InputError
from suffice.registry import spelling
from suffice.speculate import DraftSource, ReadsNoKeys
from suffice.speculate.by_head import ByHead
from suffice.speculate.tree import check_drafts


@dataclass(frozen=True)
class Eagle3(ReadsNoKeys):
    """Drafts of the head `model`, a folder or a hub id, that was trained for the model.

    Its weights are stored by `quantization` (None: in 4 bits, or in the codes of its files), its
    keys and values in `kv_cache_dtype`.
    """

    model: str = field(default="", metadata=spelling(alone=True))
    num_speculative_tokens: int = 4
    width: int = 1
    adaptive: bool = True  # make only as many drafts as save time
    text: bool = True  # the text's own drafts instead where they are expected to be faster
    quantization: str | None = None
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        if not self.model:
            raise InputError(
                "speculator 'eagle3': needs 'model': a folder or a hub id of a head that was "
                "trained for the model; `suffice train-drafter` trains one"
            )
        check_drafts("eagle3", self.num_speculative_tokens, self.width)

    @classmethod
    def exact_limit(cls) -> None:
        """Return None: any head is exact, but one must be named."""

    def proposer(self, models: DraftSource) -> ByHead:
        """Load the head and return the proposer.

        Raises:
            InputError: It cannot be used, or is of another model.
        """
        return ByHead(models.head(self.model, self.quantization, self.kv_cache_dtype))
