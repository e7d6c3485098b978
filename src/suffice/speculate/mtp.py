"""The module of the model's own files that predicts further tokens drafts.

Source   DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 2.2. The module joins the hidden
         states that the model has at a token, after the final norm, with the embedding of the next
         one, and runs one more layer; further ahead it reads its own, as SGLang and vLLM do.
         Siblings (`width`) are as those of `eagle3`.
Differs  A model with several modules drafts with the first alone.
Exact    always: every draft is checked. A chain gives the bits of single steps. Siblings next to it
         do so up to rounding, which may decide between tokens of nearly equal probability.
Cost     a step of one layer and of the model's head for each draft of the chain; its weights, and
         its keys and values of every token, which a prompt's tokens make too; with `adaptive`, of
         few tokens while drafts do not save time.
Example  mtp:2
Options
    num_speculative_tokens  maximum length of the chain of drafts in a step
    width                   maximum number of siblings: tokens drafted for the same place
    adaptive                draft fewer, or none, while drafts do not save time
    quantization            how its weights are stored; none: as in the files
    kv_cache_dtype          type of its keys and values: float32, bfloat16, float16 or int8
"""

from __future__ import annotations

from dataclasses import dataclass, field

from suffice.registry import spelling
from suffice.speculate import DraftSource, ReadsNoKeys
from suffice.speculate.by_head import ByHead
from suffice.speculate.tree import check_drafts


@dataclass(frozen=True)
class Predictor(ReadsNoKeys):
    """Drafts of the model's own module.

    Its weights are stored by `quantization` (None: as in the files), its keys and values in
    `kv_cache_dtype`.
    """

    num_speculative_tokens: int = field(default=2, metadata=spelling(alone=True))
    width: int = 1
    adaptive: bool = True  # make only as many drafts as save time
    quantization: str | None = None
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        check_drafts("mtp", self.num_speculative_tokens, self.width)

    @classmethod
    def exact_limit(cls) -> None:
        """Return None: any setting is exact, but the model must have a module."""

    def proposer(self, models: DraftSource) -> ByHead:
        """Load the module and return the proposer.

        Raises:
            InputError: The model's files have none, or it cannot be used.
        """
        return ByHead(models.module(self.quantization, self.kv_cache_dtype))
