"""Runs the model: prefill in chunks by PyTorch, decode steps in native code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from suffice import native
from suffice.cache.kv import KVCache
from suffice.engine.config import Config
from suffice.models.checkpoint import open_checkpoint
from suffice.models.decoder import Decoder
from suffice.models.native_model import NativeModel, Rows
from suffice.native import core
from suffice.trace import Trace

if TYPE_CHECKING:
    from suffice.models.tokenizer import Tokenizer

# A prompt (or the rest of one) of at most this many tokens goes through the native step: unpacking
# every weight for PyTorch costs more than it gains.
NATIVE_PREFILL = 16


@dataclass(eq=False)
class Sequence:
    """A request as the runner knows it: its cache."""

    request_id: str
    cache: KVCache


class Runner:
    """A model with the memory of its requests.

    `trace` sums what the decode steps read since it was last replaced.
    """

    def __init__(self, config: Config, decoder: Decoder) -> None:
        assert config.max_model_len is not None, "the config must be resolved"
        self.config = config
        self.decoder = decoder
        self.trace = Trace()
        self.arena = core.Arena(config.kv_cache_bytes or 0)
        self._native = NativeModel(decoder, config.max_model_len)

    @property
    def vocabulary(self) -> int:
        """Number of token ids, V."""
        return self.decoder.config.vocab

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        parts = self.decoder.weights.values()
        return sum(p.nbytes if isinstance(p, torch.Tensor) else p.bytes for p in parts)

    def open(self, request_id: str, limit: int) -> Sequence:
        """Return a new, empty sequence that may grow to `limit` rows."""
        model = self.decoder.config
        cache = KVCache(
            len(model.layers),
            model.kv_heads,
            model.head_size,
            growth=self.config.growth,
            limit=limit,
            key_dtype=self.config.kv_cache_dtype,
            value_dtype=self.config.kv_cache_dtype,
            arena=self.arena,
        )
        return Sequence(request_id, cache)

    def prefill(self, sequence: Sequence, tokens: list[int]) -> torch.Tensor:
        """Run tokens after those the cache holds; return the last one's logits, float32 [V].

        Raises:
            OutOfMemory: The sequence is good for nothing but `close` then.
        """
        sequence.cache.reserve(len(tokens))
        if len(tokens) <= NATIVE_PREFILL:
            logits = self._native.step([Rows(sequence.cache, tokens)])[0]
            sequence.cache.commit(list(range(len(tokens))))
            return logits
        chunk = self.config.prefill_chunk
        ids = torch.tensor(tokens)
        for start in range(0, len(tokens) - chunk, chunk):
            self.decoder.forward(ids[start : start + chunk], sequence.cache, logits="none")
        rest = (len(tokens) - 1) // chunk * chunk
        result = self.decoder.forward(ids[rest:], sequence.cache, logits="last")
        assert result is not None
        return result

    def reserve(self, sequence: Sequence) -> None:
        """Make sure that one more token fits.

        Raises:
            OutOfMemory: Nothing has changed then.
        """
        sequence.cache.reserve(1)

    def step(self, sequences: list[Sequence], tokens: list[int]) -> torch.Tensor:
        """Run one more token of each sequence, space reserved; return float32 logits [B, V]."""
        batch = [
            Rows(sequence.cache, [token]) for sequence, token in zip(sequences, tokens, strict=True)
        ]
        logits = self._native.step(batch, self.trace)
        for sequence in sequences:
            sequence.cache.commit([0])
        return logits

    def fork(self, sequence: Sequence) -> Sequence:
        """Return an independent copy of a sequence.

        Raises:
            OutOfMemory: The copy's memory cannot be had.
        """
        return Sequence(sequence.request_id, sequence.cache.fork())

    def close(self, sequence: Sequence) -> None:
        """Give the sequence's memory back."""
        sequence.cache.close()


def load(config: Config) -> tuple[Config, Runner, Tokenizer]:
    """Load what a config asks for; return the resolved config, the runner and the tokenizer.

    Raises:
        InputError: The model cannot be used, or not with these options.
    """
    from suffice.models.tokenizer import load_tokenizer

    checkpoint = open_checkpoint(config.model)
    config = config.resolved(checkpoint.dtype, checkpoint.config.max_positions)
    assert config.quant is not None and config.threads is not None
    native.set_threads(config.threads)
    torch.set_num_threads(config.threads)
    decoder = Decoder.from_checkpoint(checkpoint, config.quant)
    return config, Runner(config, decoder), load_tokenizer(config.tokenizer or config.model)
