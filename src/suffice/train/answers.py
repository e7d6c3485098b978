"""A model's own answers to prompts, kept in a file while they are made.

An answer depends on its prompt and its seed alone, so a run that was interrupted goes on after the
last whole line and makes the same file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from suffice.errors import InputError
from suffice.sampling_params import SamplingParams
from suffice.train.own_prompts import own_prompts

if TYPE_CHECKING:
    from suffice.engine.llm import LLM

TOGETHER = 64  # prompts that are answered before what they gave is written
_OF_PROMPTS = 2**30  # seeds of own prompts and of answers are apart


class Text(NamedTuple):
    """The tokens of a prompt and its answer; the first `prompt` are the prompt's."""

    tokens: list[int]
    prompt: int


@dataclass(frozen=True)
class Answers:
    """The answers of `llm` to `prompts`, of at most `length` tokens with their prompt, in `path`.

    A prompt of more than half of these keeps its end. After these come `own` prompts that the model
    makes up. What is drawn (own prompts; answers of `temperature` > 0) has seeds from `seed` on.
    """

    llm: LLM
    prompts: Sequence[list[int]]
    path: Path
    length: int
    temperature: float
    seed: int
    own: int = 0

    @property
    def count(self) -> int:
        """The number of prompts, given and own."""
        return len(self.prompts) + self.own

    def run(self) -> Iterator[int]:
        """Answer what is not answered yet; yield how many are, also those of earlier runs.

        Raises:
            InputError: The file cannot be written.
        """
        done = self._whole()
        yield done
        while done < self.count:
            batch = [prompt[-self.length // 2 :] for prompt in self._from(done)]
            params = [
                SamplingParams(
                    temperature=self.temperature,
                    max_tokens=self.length - len(prompt),
                    seed=(self.seed + done + at) % 2**31 if self.temperature else None,
                )
                for at, prompt in enumerate(batch)
            ]
            found = self.llm.generate(list(batch), params, use_tqdm=False)
            lines = []
            for prompt, output in zip(batch, found, strict=True):
                if output.error is not None:
                    raise InputError(output.error)
                text = [*prompt, *output.outputs[0].token_ids]
                lines.append(json.dumps({"prompt": len(prompt), "tokens": text}))
            _append(self.path, "".join(f"{line}\n" for line in lines))
            done += len(batch)
            yield done

    def _from(self, done: int) -> list[list[int]]:
        """Return the prompts to answer after `done`."""
        end = min(done + TOGETHER, self.count)
        drawn = range(max(done, len(self.prompts)), end)
        seeds = [self.seed + at + _OF_PROMPTS for at in drawn]
        own = own_prompts(self.llm, seeds) if seeds else []
        return [*self.prompts[done:end], *own]

    def _whole(self) -> int:
        """Return how many whole lines there are, and drop the rest of one."""
        if not self.path.is_file():
            return 0
        text = self.path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text:
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        return whole.count(b"\n")

    def texts(self) -> list[Text]:
        """Return all prompts with their answers."""
        with self.path.open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        return [Text(row["tokens"], row["prompt"]) for row in rows]


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
