"""Prompts that a chat model makes up itself, so that none need to be collected.

Source: Xu et al. 2024, "Magpie: Alignment Data Synthesis from Scratch by Prompting Aligned LLMs
with Nothing": after the start of a user's turn, a model that was trained on conversations says what
users ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from suffice.errors import InputError
from suffice.sampling_params import SamplingParams

if TYPE_CHECKING:
    from suffice.engine.llm import LLM

_PLACE = "3b1f9c"  # stands for the user's text in the template
_LENGTH = 160  # tokens of a prompt, at most
_TOP_P = 0.98


def own_prompts(llm: LLM, seeds: Sequence[int]) -> list[list[int]]:
    """Return the tokens of a conversation that begins with a prompt of the model's, for each seed.

    Raises:
        InputError: The model has no chat template that `opening` takes.
    """
    params = [
        SamplingParams(temperature=1.0, top_p=_TOP_P, max_tokens=_LENGTH, seed=seed % 2**31)
        for seed in seeds
    ]
    found = llm.generate([opening(llm)] * len(seeds), params, use_tqdm=False)
    for output in found:
        if output.error is not None:
            raise InputError(output.error)
    asked = [output.outputs[0].text.strip() for output in found]
    return [llm.chat_tokens([{"role": "user", "content": text}]) for text in asked]


def opening(llm: LLM) -> list[int]:
    """Return the tokens of a conversation up to where a user's text begins.

    Raises:
        InputError: The model has no chat template, or one that does not show that text as it is
            after something else.
    """
    if not llm.tokenizer.has_chat_template:
        raise InputError("own prompts: the model has no chat template")
    before, place, _ = llm.chat_text([{"role": "user", "content": _PLACE}]).partition(_PLACE)
    if not before or not place:
        raise InputError(
            "own prompts: the model's chat template must show a user's text as it is, after "
            "something else"
        )
    return llm.tokenizer.encode(before, special=False)
