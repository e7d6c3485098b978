"""Training a head on a model's answers; a run that was killed goes on to the same weights.

Hidden states and logits of a text come from the engine when the text is trained on, which takes
longer than an update. Those of a few texts are kept for some passes over these, and all others are
dropped. The state (weights, moments, how far it is) is stored as a whole from time to time. An
update depends on the state and on the texts alone, so it does not matter where a run was killed.

Source: Li et al. 2025, EAGLE-3, section 3.2. As in the authors' code, a draft's loss is the cross
entropy to the model's own distribution over the tokens that can be drafted, at rows where the
model's most likely token is one of these.
Differs: rows of prompts count too, and drafts after the first are trained in the last updates only.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn import functional

from suffice import native
from suffice.backends.cpu.linear import unpack_rows
from suffice.checkpoints.formats.quantized_file import read_part, write_part
from suffice.errors import InputError
from suffice.paths import unfinished, write_whole
from suffice.quantize.job import LOCK
from suffice.train.answers import Answers, Text
from suffice.train.recipe import (
    KEPT_UPDATES,
    Recipe,
    described,
    drafted_tokens,
    fused_layers,
    head_config,
)
from suffice.train.torch_head import TorchHead, shapes

if TYPE_CHECKING:
    from suffice.engine.runner import Runner

ANSWERS = "answers.jsonl"
_STATE = "state.safetensors"
_FUSE, _HEAD, _NORM = "fc.weight", "lm_head.weight", "norm.weight"
_MOMENTS = ("exp_avg", "exp_avg_sq")  # of AdamW
_KEPT, _SECONDS = 25, 60.0  # updates between two stored states, or seconds if these pass first
_BETAS, _CLIP, _DECAY = (0.9, 0.95), 1.0, 0.01
_WARM = 0.05  # share of the updates in which the rate rises
_LEAST = 0.1  # of the rate, at the end
_MEMORY = 0.98  # of the means of training over updates


@dataclass(frozen=True)
class Measured:
    """How drafts fare: the share of rows whose draft of each depth is right, if those before it
    are, and the tokens of a step that drafts a chain of them."""

    rates: tuple[float, ...]
    tokens_per_step: float


class Progress(NamedTuple):
    """Updates done, the mean loss of first drafts lately, and what was measured on texts held out,
    if just now."""

    done: int
    loss: float
    held_out: Measured | None


class _States(NamedTuple):
    """What a model says of a text: the hidden states [T - 1, H] that rows begin with, its own
    probabilities float16 [T, D] of what can be drafted, and which rows count."""

    hidden: torch.Tensor
    wanted: torch.Tensor
    counts: torch.Tensor


class HeadTraining:
    """Trains a head for a runner's model by a recipe, on answers, into the folder `output`.

    `facts` name the model and the prompts: an unfinished run is continued only with the same.

    Raises:
        InputError: Another run is at work, or an unfinished one was another.
    """

    def __init__(
        self, runner: Runner, answers: Answers, recipe: Recipe, output: Path, facts: dict[str, Any]
    ) -> None:
        self._runner, self._answers, self._recipe, self._output = runner, answers, recipe, output
        self._narrow = native.isa() == "v4_bf16"  # others multiply bfloat16 no faster than float32
        kind = [torch.get_num_threads(), self._narrow]
        job = json.dumps([facts, asdict(recipe), kind], sort_keys=True)
        self._job = hashlib.sha256(job.encode()).hexdigest()[:16]
        self._state_path = answers.path.with_name(_STATE)
        self.layers = fused_layers(len(runner.decoder.config.layers))

    def begin(self) -> int:
        """Read the answers, choose what is drafted, and take up the state; return all updates.

        Raises:
            InputError: There are too few answers, or the state is of another job.
        """
        recipe, model = self._recipe, self._runner.decoder.config
        self._texts = self._answers.texts()
        self._training, self._held_out = recipe.parted(self._texts)
        seen = [self._texts[at] for at in self._training]
        count = min(recipe.draft_vocab, model.vocab) // 16 * 16
        self.tokens = drafted_tokens(seen, model.vocab, count)
        self.config = head_config(model, len(self.tokens))
        self._by_token = np.full(model.vocab, -1, np.int64)
        self._by_token[self.tokens] = np.arange(len(self.tokens))
        self._weights = self._first_weights()
        for weight in self._weights.values():
            weight.requires_grad_(True)
        self._head = TorchHead(self.config, self._weights)
        self._optimizer = torch.optim.AdamW(
            self._weights.values(), lr=recipe.rate, betas=_BETAS, weight_decay=_DECAY
        )
        self.done, self._loss = 0, 0.0
        self._batches = recipe.batches(self._training)
        self._kept: dict[int, _States] = {}
        self._take_up()
        return len(self._batches)

    @property
    def others_from(self) -> int:
        """The number of updates after which drafts after the first are trained too."""
        updates = len(self._batches)
        return sum(self._recipe.drafts(at, updates) == 1 for at in range(updates))

    def run(self, every: int) -> Iterator[Progress]:
        """Make the updates that are left; yield after each, with a measurement after `every`.

        Raises:
            InputError: The state cannot be written.
        """
        kept = time.monotonic()
        updates = len(self._batches)
        while self.done < updates:
            loss = self._update(self._batches[self.done])
            self.done += 1
            before = _MEMORY if self.done > 1 else 0.0
            self._loss = before * self._loss + (1 - before) * loss
            last = self.done == updates
            if last or self.done % _KEPT == 0 or time.monotonic() - kept > _SECONDS:
                self._keep()
                kept = time.monotonic()
            due = last or self.done % every == 0
            yield Progress(self.done, self._loss, self.measure() if due else None)

    def measure(self, *, training: bool = False) -> Measured:
        """Return how drafts fare on the texts held out, or on as many of those trained on."""
        chosen = self._training[: len(self._held_out)] if training else self._held_out
        steps = self._recipe.steps
        right, tried = np.zeros(steps), np.zeros(steps)
        tokens = decoded = 0
        for at in chosen:
            runs = self._accepted(self._texts[at])
            for depth in range(steps):
                tried[depth] += np.count_nonzero(runs >= depth)
                right[depth] += np.count_nonzero(runs > depth)
            row = 0
            while row < len(runs):
                row += int(runs[row]) + 1
                decoded += 1
            tokens += row
        rates = (right / np.maximum(tried, 1)).tolist()
        return Measured(tuple(rates), tokens / max(decoded, 1))

    @torch.no_grad()
    def _accepted(self, text: Text) -> np.ndarray:
        """Return how many drafts of a chain the text has after each of its answer's tokens."""
        hidden, _ = self._states(text, logits=False)
        tokens = np.array(text.tokens)
        found, going = np.zeros((2, len(hidden)), np.int64)
        going[:] = 1
        for step, logits in enumerate(self._drafts(text, hidden, self._recipe.steps)):
            said = tokens[2 + step :]
            drafted = self.tokens[logits.argmax(-1).numpy()]
            going[: len(said)] &= drafted[: len(said)] == said
            going[len(said) :] = 0
            found += going
        return found[max(text.prompt - 1, 0) : -1]

    def _update(self, batch: Sequence[int]) -> float:
        """Make an update on texts; return the mean loss of first drafts."""
        recipe, loss, updates = self._recipe, 0.0, len(self._batches)
        texts, drafts = [self._texts[at] for at in batch], recipe.drafts(self.done, updates)
        rows = sum(len(text.tokens) - 2 for text in texts)
        weights = [recipe.decay**step for step in range(drafts)]
        self._optimizer.zero_grad()
        for at in batch:
            losses = self._losses_of(at, drafts)
            parts = [weight * each for weight, each in zip(weights, losses, strict=True)]
            own = torch.stack(parts).sum() / (rows * sum(weights))
            own.backward()  # type: ignore[no-untyped-call]
            loss += losses[0].item() / rows
        torch.nn.utils.clip_grad_norm_(self._weights.values(), _CLIP)
        for group in self._optimizer.param_groups:
            group["lr"] = recipe.rate * _rate(self.done, updates)
        self._optimizer.step()
        return loss

    def _losses_of(self, at: int, drafts: int) -> list[torch.Tensor]:
        """Return the sum of the losses of a text's rows, for each of `drafts` in a row."""
        text, states, found = self._texts[at], self._said_of(at), []
        with torch.autocast("cpu", torch.bfloat16, enabled=self._narrow):
            rows = [*self._drafts(text, states.hidden, drafts)]
        for first, drafted in enumerate(rows, 1):
            # The model's row `first` predicts what the head's first row drafts.
            said = functional.log_softmax(drafted[: len(text.tokens) - first].float(), dim=-1)
            own = -(states.wanted[first:] * said).sum(-1)
            found.append(own[states.counts[first:]].sum())
        return found

    def _said_of(self, at: int) -> _States:
        """Return what the model says of a text; the latest texts' are kept."""
        if at not in self._kept:
            hidden, logits = self._states(self._texts[at])
            counts = torch.from_numpy(self._by_token[logits.argmax(-1)] >= 0)
            wanted = torch.softmax(torch.from_numpy(logits[:, self.tokens]), dim=-1)
            self._kept[at] = _States(hidden, wanted.half(), counts)
            if len(self._kept) > self._recipe.batch * KEPT_UPDATES:
                del self._kept[next(iter(self._kept))]
        return self._kept[at]

    def _drafts(self, text: Text, hidden: torch.Tensor, steps: int) -> Iterator[torch.Tensor]:
        """Yield the logits [T - 1, D] of each step of training-time test."""
        tokens = [*text.tokens[1:], *[0] * (steps - 1)]  # rows beyond the text do not count
        embedded = unpack_rows(self._runner.decoder.matrix("embed"), tokens)
        return self._head.drafts(hidden, torch.from_numpy(embedded), steps)

    def _states(self, text: Text, *, logits: bool = True) -> tuple[torch.Tensor, np.ndarray]:
        """Run a text; return the hidden states [T - 1, H] that rows begin with, and the model's
        logits [T, V] if they are asked for."""
        sequence = self._runner.open("training", len(text.tokens))
        try:
            parts = self._runner.streams(sequence, text.tokens, self.layers, logits=logits)
            found = [(own, hidden.reshape(len(hidden), -1)) for own, hidden in parts]
        finally:
            self._runner.close(sequence)
        hidden = torch.from_numpy(np.concatenate([each for _, each in found])[:-1])
        return hidden, np.concatenate([own for own, _ in found])

    def _first_weights(self) -> dict[str, torch.Tensor]:
        """Return random matrices, norms of ones, and the model's own head for what is drafted.

        The last norm begins so small that logits do: with ones, SmolLM2's loss began at 22, not 11.
        Fused states begin with entries of about 1, as a text shows: SmolLM2's have 20, and what the
        layer adds to them would count for nothing.
        """
        draw = torch.Generator().manual_seed(self._recipe.seed)
        found: dict[str, torch.Tensor] = {}
        for name, shape in shapes(self.config).items():
            if len(shape) == 1:
                found[name] = torch.ones(shape)
            else:
                found[name] = torch.randn(shape, generator=draw) * shape[1] ** -0.5
        decoder = self._runner.decoder
        matrix = decoder.matrix("embed" if decoder.config.tied else "head")
        found[_HEAD] = torch.from_numpy(unpack_rows(matrix, self.tokens.tolist()))
        found[_NORM] /= found[_HEAD].square().sum(-1).mean().sqrt()
        hidden, _ = self._states(self._texts[self._training[0]], logits=False)
        fused = functional.linear(hidden[1:], found[_FUSE])  # a first token's are far larger
        found[_FUSE] /= fused.square().mean().sqrt()
        return found

    def _keep(self) -> None:
        arrays: dict[str, np.ndarray] = {}
        for name, weight in self._weights.items():
            state = self._optimizer.state[weight]
            moments = {f"{name}.{each}": state[each].numpy() for each in _MOMENTS}
            arrays |= {name: weight.detach().numpy(), **moments}
        facts = {"job": self._job, "done": self.done, "loss": self._loss}
        write_part(self._state_path, arrays, facts)

    def _take_up(self) -> None:
        """Go on where an earlier run of the same job stored its state, if one did."""
        if not self._state_path.is_file():
            return
        facts, arrays = read_part(self._state_path)
        if facts.get("job") != self._job:
            raise InputError(
                f"{self._state_path.parent} is of another training: remove it, or give another -o"
            )
        self.done, self._loss = facts["done"], facts["loss"]
        with torch.no_grad():
            for name, weight in self._weights.items():
                weight.copy_(_tensor(arrays[name]))
                moments = {each: _tensor(arrays[f"{name}.{each}"]) for each in _MOMENTS}
                self._optimizer.state[weight] = {
                    "step": torch.tensor(float(self.done)),
                    **moments,
                }

    def write(self, dtype: str) -> None:
        """Write the head's folder with weights in a type.

        Raises:
            InputError: It cannot be written.
        """
        count = len(self._runner.decoder.config.layers)
        described_ = described(self.config, self.layers, count, dtype)
        stored = {
            name: weight.detach().to(getattr(torch, dtype))
            for name, weight in self._weights.items()
        }
        tokens = torch.from_numpy(self.tokens)
        stored["d2t"] = tokens - torch.arange(len(tokens))
        drafted = torch.zeros(len(self._by_token), dtype=torch.bool)
        drafted[tokens] = True
        stored["t2d"] = drafted
        try:
            self._output.mkdir(exist_ok=True)
            with write_whole(self._output / "model.safetensors") as part:
                save_file(stored, part, metadata={"format": "pt"})
            with write_whole(self._output / "config.json") as part:
                part.write_text(json.dumps(described_, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{self._output}: cannot be written: {error.strerror}") from None

    def clear(self) -> None:
        """Remove what the run has kept, once its folder is free."""
        folder = self._answers.path.parent
        for path in (self._answers.path, self._state_path, folder / LOCK):
            for each in (path, *unfinished(path)):
                each.unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


def _rate(done: int, total: int) -> float:
    """Return the share of the largest rate that the update after `done` of `total` has."""
    warm = max(round(_WARM * total), 1)
    if done < warm:
        return (done + 1) / warm
    along = (done - warm) / max(total - warm, 1)
    return _LEAST + (1 - _LEAST) * (1 + math.cos(math.pi * along)) / 2
