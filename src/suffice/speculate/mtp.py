"""A module of the model's own files that predicts further tokens drafts, or its assistant does.

Source   DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 2.2. The module joins the hidden
         states that the model has at a token, after the final norm, with the embedding of the next
         one, and runs one more layer; further ahead it reads its own, as SGLang and vLLM do.
         Siblings (`width`) are as those of `eagle3`.
         An assistant of Gemma 4 (`model`) is a folder of its own, as Google publishes it
         (`Gemma4AssistantForCausalLM` of transformers). Its layers have queries alone and read the
         model's keys and values; all drafts of a step have the position of the text's last token.
Differs  A model with several modules drafts with the first alone.
Exact    always: every draft is checked. A chain gives the bits of single steps. Siblings next to it
         do so up to rounding, which may decide between tokens of nearly equal probability.
Cost     a step of one layer and of the model's head for each draft of the chain; its weights, and
         its keys and values of every token, which a prompt's tokens make too; with `adaptive`, of
         few tokens while drafts do not save time. An assistant's step is one of its layers and of
         its head; it has no keys and values.
Example  mtp:2
Options
    num_speculative_tokens  maximum length of the chain of drafts in a step
    width                   maximum number of siblings: tokens drafted for the same place
    adaptive                draft fewer, or none, while drafts do not save time
    text                    draft as `suffix` does instead where that is expected to be faster;
                            only with `adaptive`
    quantization            how its weights are stored; file: as in the files; none: so too if they
                            have codes, else in 4 bits
    kv_cache_dtype          type of its keys and values: float32, bfloat16, float16 or int8
    model                   an assistant of the model: a folder or a hub id; none: its own module
"""

from __future__ import annotations

from dataclasses import dataclass, field

from suffice.errors import InputError
from suffice.registry import spelling
from suffice.speculate import DraftSource, ReadsNoKeys
from suffice.speculate.by_head import ByHead
from suffice.speculate.tree import check_drafts


@dataclass(frozen=True)
class Predictor(ReadsNoKeys):
    """Drafts of the model's own module, or of its assistant `model`, a folder or a hub id.

    Its weights are stored by `quantization` (None: in 4 bits, or in the codes of the files), a
    module's keys and values in `kv_cache_dtype`.
    """

    num_speculative_tokens: int = field(default=2, metadata=spelling(alone=True))
    width: int = 1
    adaptive: bool = True  # make only as many drafts as save time
    text: bool = True  # the text's own drafts instead where they are expected to be faster
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    model: str | None = None

    def __post_init__(self) -> None:
        if self.model is not None and self.kv_cache_dtype != "auto":
            raise InputError(
                f"speculator 'mtp': kv_cache_dtype='{self.kv_cache_dtype}': an assistant has no "
                "keys and values of its own"
            )
        check_drafts("mtp", self.num_speculative_tokens, self.width)

    @classmethod
    def exact_limit(cls) -> None:
        """Return None: any setting is exact, but the model must have a module."""

    def proposer(self, models: DraftSource) -> ByHead:
        """Load the module or the assistant and return the proposer.

        Raises:
            InputError: The model's files have no module, or it cannot be used.
        """
        if self.model is not None:
            return ByHead(models.assistant(self.model, self.quantization))
        return ByHead(models.module(self.quantization, self.kv_cache_dtype))
