"""A trained head drafts a block of tokens at once from the model's own hidden states.

Source   Chen, Liang and Liu 2026, "DFlash: Block Diffusion for Flash Speculative Decoding". The
         head fuses the hidden states of some layers of the model; of each token of the text, its
         own layers have keys and values that are made of these. A block is the last token and masks
         after it, which see the text and each other; each mask becomes a draft, all in one step.
         Siblings (`width`) are as those of `eagle3`. Heads of DSpark go on from it (Cheng et al.
         2026, "DSpark: Confidence-Scheduled Speculative Decoding with Semi-Autoregressive
         Generation"): every row of a block becomes the draft after its place, the last token's own
         too, and a matrix of low rank (the Markov head) adds to the logits of each draft what the
         draft before it makes likely. The folder says which of both it is.
Differs  Blocks have a row more than `num_speculative_tokens`, or with DSpark as many, also where
         that is fewer than the head was trained with: so vLLM, SGLang and llama.cpp run DFlash, and
         vLLM DSpark. DFlash's authors do it at the end of a text alone, DSpark's never.
         `num_speculative_tokens` is 7 by default, and not what the head's block allows: on CPUs
         rows cost time. DSpark's matrix is added to the 64 most likely tokens of a row, a few more
         in some; others are not drafted. To add it to all 151,936 tokens of Qwen3, at a rank of
         256, reads 78 MB a draft in bfloat16; to 64, 33 kB. vLLM has `dspark_draft_topk` for that.
         DSpark's confidence head is left unread: how likely a draft gives its token, and how often
         such drafts were right, decide how many are checked.
Exact    always: every draft is checked. A chain gives the bits of single steps. Siblings next to it
         do so up to rounding, which may decide between tokens of nearly equal probability.
Cost     a step of the head's layers for all drafts of a text, and of the model's own vocabulary for
         those that are asked for; its keys and values of every token, which a prompt's tokens make
         too; with `adaptive`, of few tokens while drafts do not save time.
Example  dflash:model=FOLDER,num_speculative_tokens=5
Options
    model                   the head: a folder or a hub id, as its authors publish it
    num_speculative_tokens  maximum number of drafts in a step: fewer than the head's block has
                            rows, or with DSpark as many
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
from typing import ClassVar

from suffice.errors import InputError
from suffice.registry import spelling
from suffice.speculate import DraftSource, ReadsNoKeys
from suffice.speculate.by_head import ByBlock
from suffice.speculate.tree import check_drafts


@dataclass(frozen=True)
class DFlash(ReadsNoKeys):
    """Drafts of the head `model`, a folder or a hub id, that was trained for the model.

    Its weights are stored by `quantization` (None: in 4 bits, or in the codes of its files), its
    keys and values in `kv_cache_dtype`.
    """

    at_once: ClassVar[bool] = True

    model: str = field(default="", metadata=spelling(alone=True))
    num_speculative_tokens: int = 7
    width: int = 1
    adaptive: bool = True  # make only as many drafts as save time
    text: bool = True  # the text's own drafts instead where they are expected to be faster
    quantization: str | None = None
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        if not self.model:
            raise InputError(
                "speculator 'dflash': needs 'model': a folder or a hub id of a head that was "
                "trained for the model"
            )
        check_drafts("dflash", self.num_speculative_tokens, self.width)

    @classmethod
    def exact_limit(cls) -> None:
        """Return None: any head is exact, but one must be named."""

    def proposer(self, models: DraftSource) -> ByBlock:
        """Load the head and return the proposer.

        Raises:
            InputError: It cannot be used, or is of another model.
        """
        drafts = self.num_speculative_tokens
        return ByBlock(models.blocks(self.model, drafts, self.quantization, self.kv_cache_dtype))
