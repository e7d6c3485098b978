"""What a runner knows of its model."""

from __future__ import annotations

from suffice.engine.config import Config
from suffice.models.decoder import DecoderWeights


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
    def longest_prompt(self) -> int:
        """The largest number of tokens in a prompt."""
        return self.decoder.config.longest_prompt

    @property
    def context(self) -> int:
        """The largest number of tokens in a sequence."""
        assert self.config.max_model_len is not None
        return self.config.max_model_len
