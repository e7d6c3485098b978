"""Prompts that are run to read something off them: queries, hidden states, or all logits."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from suffice.cache.kv import KVCache
from suffice.decoder.step_rows import StepRows
from suffice.engine.techniques import ModelWithTechniques
from suffice.policy import QueryObserver
from suffice.trace import Trace

Sequence = Any  # of a runner


class WholePrompts(ModelWithTechniques):
    """A model that runs whole prompts; `trace` counts what their tiles read."""

    trace: Trace

    def observe(self, sequence: Sequence, tokens: list[int], watch: QueryObserver) -> None:
        """Run tokens as a prompt with exact attention, and show `watch` all queries.

        Raises:
            OutOfMemory: After that, only `close` may be called for the sequence.
        """
        sequence.cache.reserve(len(tokens))
        for chunk in self._chunks(tokens):
            self._run_chunk(sequence.cache, chunk, 0, watch, exact=True)

    def prefill_all(
        self, sequence: Sequence, tokens: list[int], skipped: int = 0
    ) -> Iterator[np.ndarray]:
        """Run tokens as `prefill` does; yield the logits [T, V] of all but the first `skipped`,
        chunk by chunk.

        Raises:
            OutOfMemory: After that, only `close` may be called for the sequence.
        """
        sequence.cache.reserve(len(tokens))
        for chunk in self._chunks(tokens):
            own = max(0, len(chunk) - skipped)
            skipped -= len(chunk) - own
            yield self._run_chunk(sequence.cache, chunk, own, None)

    def streams(
        self,
        sequence: Sequence,
        tokens: list[int],
        layers: abc.Sequence[int],
        *,
        logits: bool = True,
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Run tokens as `prefill_all` does; yield, part by part, the logits [T, V] after each token
        and the inputs [T, layers, W] of these layers. `logits=False`: no logits.

        Raises:
            OutOfMemory: After that, only `close` may be called for the sequence.
        """
        sequence.cache.reserve(len(tokens))
        self._native.hand_out(layers)
        for chunk in self._chunks(tokens):
            found = np.empty((len(chunk), len(layers), self.decoder.config.width), np.float32)
            outputs = None if logits else 0
            yield self._run_chunk(sequence.cache, chunk, outputs, None, streams=found), found

    def _chunks(self, tokens: list[int]) -> list[list[int]]:
        """Return a prompt cut into the parts that run together."""
        size = self.tile_rows
        return [tokens[start : start + size] for start in range(0, len(tokens), size)]

    def _run_chunk(
        self,
        cache: KVCache,
        tokens: list[int],
        outputs: int | None,
        watch: QueryObserver | None,
        *,
        exact: bool | None = None,
        streams: np.ndarray | None = None,
    ) -> np.ndarray:
        """Run tokens after the cached ones; attention is exact, unless the softmax is coded."""
        rows = StepRows(
            cache,
            tokens,
            outputs=outputs,
            exact=not self.config.softmax.prefill if exact is None else exact,
            counted=False,
            watch=shown_to(watch, cache.length + len(tokens)),
            adapter=self.adapter,
            tiled=self.tiled and watch is None,
            streams=0 if streams is None else len(tokens),
        )
        logits = self._native.step([rows], self.trace, streams=streams)
        cache.commit(list(range(len(tokens))))
        return logits


def shown_to(watch: QueryObserver | None, end: int) -> Callable[[int, np.ndarray], None] | None:
    """Return a callback that shows a chunk's queries to a policy; the chunk ends at `end`."""
    if watch is None:
        return None
    return lambda layer, queries: watch.add(layer, queries, end)
