"""Log likelihoods of many short texts in PyTorch, a pass of about TOKENS tokens at a time.

Matmuls, norms and codes of inputs see the tokens of all texts of a pass, one after another. Only
attention goes text by text: its rows are padded to those of the longest text, so texts of about one
length run together. Nothing is cached. A likelihood is that of the text alone, up to the rounding
of sums. Texts that differ only in their last token, as the answers yes and no, are one text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from suffice.engine.protocol import Tokenizer
from suffice.eval.likelihood import Likelihood, Pair
from suffice.eval.tasks import Question, Task, TasksTally, encoded
from suffice.progress import counting_bar
from suffice.quantize.torch_decoder import TorchDecoder
from suffice.quantize.torch_layers import masked_scores, soften, visible

TOKENS = 2048  # of a pass, with those that pad attention
ROWS = 256  # of logits that exist at a time
ABOUT = " Run in PyTorch, with activations, keys and values in float32."  # for a table


@dataclass(frozen=True)
class Layout:
    """Where the tokens of several texts stand: N in a row, or padded to B texts of T tokens."""

    positions: torch.Tensor  # [N], each within its own text
    padded: torch.Tensor  # [B, T]: the row of each token; a text ends with repeats of its last
    places: torch.Tensor  # [N]: the place of each row among the B T

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> Layout:
        """Return the layout of texts of these lengths, in their order."""
        counts = torch.tensor(lengths)[:, None]
        steps = torch.arange(max(lengths)).expand(len(lengths), -1)
        real = steps < counts
        padded = counts.cumsum(0) - counts + steps.minimum(counts - 1)
        parts = steps[real], padded, real.flatten().nonzero()[:, 0]
        return cls(*(part.to(device) for part in parts))


class TextsDecoder(TorchDecoder):
    """A decoder that runs several texts in one pass, each from its own first position on."""

    _layout: Layout

    @torch.no_grad()
    def follow(self, pairs: Sequence[Pair]) -> list[Likelihood]:
        """Return the likelihoods of pairs, which run together.

        Raises:
            InputError: A token outside the vocabulary, or a text longer than the model allows.
        """
        own = [tuple(pair.inputs) for pair in pairs]
        texts = list(dict.fromkeys(own))
        for text in texts:
            self._check(torch.tensor(text), 0)
        lengths = [len(text) for text in texts]
        self._layout = Layout.of(lengths, self.device)
        tokens = torch.tensor([token for text in texts for token in text])
        states = self._through(tokens, self._layout.positions, max(lengths))
        ends = dict(zip(texts, torch.tensor(lengths).cumsum(0).tolist(), strict=True))
        sizes = [len(pair.continuation) for pair in pairs]
        rows = [
            torch.arange(ends[text] - size, ends[text])
            for text, size in zip(own, sizes, strict=True)
        ]
        targets = torch.tensor([token for pair in pairs for token in pair.continuation])
        found = self._predicted(states[torch.cat(rows).to(self.device)], targets.to(self.device))
        logs, greedy = (each.split(sizes) for each in found)
        return [
            Likelihood(float(log.sum()), bool(same.all()))
            for log, same in zip(logs, greedy, strict=True)
        ]

    def _predicted(
        self, states: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ln p of the targets [N] after states [N, M], in float64, and which are the argmax.

        Both are on the host.
        """
        logs, greedy = [], []
        for own, wanted in zip(states.split(ROWS), targets.split(ROWS), strict=True):
            logits = self._logits(own)
            logs.append(logits.log_softmax(-1).gather(1, wanted[:, None])[:, 0])
            greedy.append(logits.argmax(-1) == wanted)
        return torch.cat(logs).cpu().double(), torch.cat(greedy).cpu()

    def _mixed(self, index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        config, layout = self.config, self._layout
        share, longest = len(q) // len(k), layout.padded.shape[1]
        q, k, v = (each[:, layout.padded] for each in (q, k, v))  # [H or G, B, T, D]
        k, v = k.repeat_interleave(share, 0), v.repeat_interleave(share, 0)
        sees = visible(longest, longest, config.layers[index].window, q.device)
        scores = masked_scores(q, k, config.attention_scale, sees, config.score_cap)
        return (self._weights(index, scores) @ v).flatten(1, 2)[:, layout.places]

    def _weights(self, index: int, scores: torch.Tensor) -> torch.Tensor:
        """Return a layer's weights of scores [H, B, T, S], which are -infinity where masked."""
        return soften(scores, self._spare(index))


def passes(lengths: Sequence[int], tokens: int = TOKENS) -> Iterator[list[int]]:
    """Yield the indices of texts that run together, the longest first.

    Padded to the longest of them they have at most `tokens` tokens, unless one alone has more.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    while order:
        count = max(1, tokens // lengths[order[0]])
        yield order[:count]
        order = order[count:]


def likelihoods(
    decoder: TextsDecoder, pairs: Sequence[Pair]
) -> Iterator[list[tuple[int, Likelihood]]]:
    """Yield the index of each pair and its likelihood, pass by pass.

    Raises:
        InputError: A text that the model cannot run.
    """
    same: dict[tuple[int, ...], list[int]] = {}
    for index, pair in enumerate(pairs):
        same.setdefault(tuple(pair.inputs), []).append(index)
    groups = list(same.values())
    for texts in passes([len(text) for text in same]):
        members = [index for text in texts for index in groups[text]]
        found = decoder.follow([pairs[index] for index in members])
        yield list(zip(members, found, strict=True))


def answered(
    decoder: TextsDecoder, tokenizer: Tokenizer, task: Task, questions: list[Question], name: str
) -> TasksTally:
    """Return the answers to questions, in their order; each answer runs with its context.

    Raises:
        InputError: An answer that does not fit, or a text that the model cannot run.
    """
    config = decoder.config
    pairs = encoded(tokenizer, questions, min(config.max_positions, config.longest_text))
    every = [pair for choices in pairs for pair in choices]
    logs = [0.0] * len(every)
    with counting_bar() as bar:
        line = bar.add_task(f"{task.name} {name}", total=len(every))
        for found in likelihoods(decoder, every):
            for index, likelihood in found:
                logs[index] = likelihood.log
            bar.update(line, advance=len(found))
    tally, rest = TasksTally(task), iter(logs)
    for question, choices in zip(questions, pairs, strict=True):
        tally.add(question, [next(rest) for _ in choices])
    return tally
