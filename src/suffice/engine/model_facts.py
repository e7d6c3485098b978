"""What a runner knows of its model, and how many rows it runs together."""

from __future__ import annotations

from suffice.cache.kv import MAX_TENTATIVE
from suffice.decoder.names import weight_count
from suffice.decoder.weights import DecoderWeights
from suffice.engine.config import Config
from suffice.engine.steps import UNIT

PROMPT_ROWS = 128  # most tokens of prompts in a step: as many as share a lookup of codes
EXPERT_ROWS = 512  # with experts: each gets few of them, and is read once for all
KNOWN_ROWS = 30  # where a technique may apply: whole tiles of the 6 rows that share an AVX2 load


class ModelFacts:
    """Sizes and types of a decoder, as a resolved config runs it."""

    def __init__(self, config: Config, decoder: DecoderWeights) -> None:
        self.config = config
        self.decoder = decoder

    @property
    def vocabulary(self) -> int:
        """Number of token ids, V."""
        return self.decoder.config.vocab

    @property
    def weight_count(self) -> int:
        """Number of all weights."""
        return weight_count(self.decoder.config)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self.decoder.bytes

    @property
    def runs_as(self) -> str:
        """The types of the matrices in memory, such as bfloat16, or codes and float32."""
        return self.decoder.runs_as

    @property
    def bits_per_weight(self) -> float:
        """Bits of an entry of the matrices in memory, with their scales."""
        return self.decoder.bits_per_weight

    @property
    def context(self) -> int:
        """The largest number of tokens in a sequence."""
        assert self.config.max_model_len is not None
        return self.config.max_model_len

    @property
    def tile_rows(self) -> int:
        """The largest number of a prompt's tokens in a step."""
        most = EXPERT_ROWS if self.decoder.config.experts else PROMPT_ROWS
        most = KNOWN_ROWS if self.config.softmax.prefill else most
        size = min(most, self.config.prefill_chunk)
        return max(size // MAX_TENTATIVE, 1) * MAX_TENTATIVE if self.tiled else size

    @property
    def tile_unit(self) -> int:
        """Parts of a prompt, but for the last, have a multiple of this number of tokens."""
        return MAX_TENTATIVE if self.tiled else UNIT

    @property
    def tiled(self) -> bool:
        """Whether tiles of MAX_TENTATIVE tokens of a prompt choose what they read."""
        return self.config.technique.unread_in_prompts > 0

    @property
    def known_rows(self) -> int:
        """The largest number of known tokens of a sequence in a decode step."""
        return 1 if self.config.policy.one_by_one else KNOWN_ROWS
