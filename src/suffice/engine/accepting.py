"""Chooses a step's tokens from its logits: the accepted drafts, and the token after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from suffice import sampling
from suffice.engine.request import Request, Sample
from suffice.engine.token_log import TokenLog
from suffice.errors import InputError
from suffice.speculate import Tree
from suffice.speculate.acceptance import next_token


class Accepting:
    """Gives samples their tokens; `abort` ends a request for which none can be chosen."""

    def __init__(self, abort: Callable[[Request, str, str], None]) -> None:
        self._abort = abort

    def first_tokens(
        self,
        samples: Sequence[Sample],
        drafts: Sequence[Tree],
        logits: Sequence[NDArray[np.float32]],
        maxima: NDArray[np.float32] | None,
    ) -> Sequence[int | InputError | None]:
        """Choose the token after each sample's last one, for all at once, as without drafts.

        None where that depends on how drafts were sampled. `logits` [1 + drafts, V] are those of
        each sample; `maxima` are of all rows, see `LoopRunner`.
        """
        if any(tree.draft_probs is not None for tree in drafts):
            return [None] * len(samples)
        if maxima is not None:
            firsts = [0, *accumulate(1 + len(tree) for tree in drafts[:-1])]
            maxima = maxima[: len(samples)] if not any(drafts) else maxima[firsts]
        states = [sample.state for sample in samples]
        return sampling.sample(_first_rows(logits), states, maxima=maxima)

    def accept(
        self,
        sample: Sample,
        tree: Tree,
        logits: NDArray[np.float32],
        token: int | InputError | None,
        log: TokenLog,
    ) -> list[int]:
        """Choose the sample's next tokens: the accepted drafts and the token after them.

        `logits` [1 + drafts, V] follow the sample's last token and each draft. `token` is the
        first of the next tokens if it is chosen already. Returns the rows after which tokens were
        chosen; none if choosing failed.
        """
        path: list[int] = []
        node = -1
        while sample.finish_reason is None:
            if token is None:
                token = self._choose(sample, tree, node, logits[node + 1])
            if isinstance(token, InputError):
                self._abort(sample.request, str(token), "invalid")
                return []
            log.add(sample, logits[node + 1], token)
            sample.accept(token)
            path.append(node + 1)
            if (child := tree.child(node, token)) is None:
                break
            node, token = child, None
        return path

    def _choose(
        self, sample: Sample, tree: Tree, node: int, logits: NDArray[np.float32]
    ) -> int | InputError:
        probs = None if tree.draft_probs is None else tree.draft_probs[node + 1]
        if probs is None:
            return sampling.sample(logits[None], [sample.state])[0]
        drafts = [tree.tokens[child] for child in tree.children(node)]
        try:
            return next_token(logits, sample.state, drafts, probs)
        except InputError as error:
            return error


def _first_rows(logits: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the first row of each sample's logits, [B, V].

    Without drafts they are one array already, whose copy would take 5 % of a step of 32 samples.
    """
    whole, last = logits[0].base, len(logits) - 1
    if whole is not None and whole.ndim == 2 and len(whole) > last:
        ends = ((0, logits[0]), (last, logits[last]))
        together = all(whole[at].ctypes.data == own.ctypes.data for at, own in ends)
        if together and whole.dtype == logits[0].dtype and whole[0].nbytes == logits[0][0].nbytes:
            found: NDArray[np.float32] = whole[: len(logits)]
            return found
    return np.stack([own[0] for own in logits])
