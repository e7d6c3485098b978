"""Prompts of models that fill in what stands between two texts, by the tokens they have for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Infill:
    """The tokens before the text that precedes, before the one that follows, and before the answer.

    Attributes:
        middle: None where the answer follows what precedes it, which then stands last.
    """

    prefix: int
    suffix: int
    middle: int | None

    @classmethod
    def of(cls, tokens: Mapping[str, int]) -> Infill | None:
        """Return those of a model, from its tokens that are kept whole; None if it has none."""
        for prefix, suffix, middle in _FAMILIES:
            if prefix in tokens and suffix in tokens and (middle is None or middle in tokens):
                last = None if middle is None else tokens[middle]
                return cls(tokens[prefix], tokens[suffix], last)
        return None

    def prompt(self, before: str, after: str, encode: Callable[[str], list[int]]) -> list[int]:
        """Return the prompt for what stands between two texts."""
        start, end = [self.prefix, *encode(before)], [self.suffix, *encode(after)]
        return [*end, *start] if self.middle is None else [*start, *end, self.middle]


_FAMILIES: tuple[tuple[str, str, str | None], ...] = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("[PREFIX]", "[SUFFIX]", None),  # Codestral
)
