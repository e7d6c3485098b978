"""From the fields of a request to the works that the engine gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from suffice.attention import ATTENTIONS
from suffice.engine.reading import Reading
from suffice.engine.thinking import Thinking
from suffice.errors import InputError
from suffice.serve.errors import Problem
from suffice.serve.http.chance import drawn
from suffice.serve.http.front import Front, Job
from suffice.serve.http.text import Room
from suffice.serve.interfaces.fields import Fields, Shared, sampling
from suffice.serve.processes import wire

Ask = tuple[list[int], Reading]  # a prompt, and what is read off it


def room(front: Front, body: Shared, param: str) -> Room:
    """Return how much text a request may have."""
    return Room(front.facts.max_model_len, param, apart=body.truncate_prompt_tokens is not None)


def fitted(front: Front, prompt: list[int], body: Shared, param: str) -> list[int]:
    """Return a prompt, cut if asked for, that leaves room for what must be generated.

    Raises:
        Problem: It is empty or too long.
    """
    most = front.facts.max_model_len - body.least_tokens
    if most < 1:
        must = f"must be less than {front.facts.max_model_len}, the context"
        raise Problem(
            "invalid_value", f"min_tokens={body.least_tokens}: {must}", param="min_tokens"
        )
    if (cut := kept(body, most)) is not None:
        prompt = prompt[-cut:]
    if not prompt:
        raise Problem("invalid_value", f"{param}: the prompt is empty", param=param)
    if len(prompt) > most:
        end = ", so that the answer fits it" if isinstance(body, Fields) else ""
        message = (
            f"the prompt has {len(prompt)} tokens: must be at most {most}; the context has "
            f"{front.facts.max_model_len}{end}"
        )
        raise Problem("context_length_exceeded", message, param=param)
    return prompt


def kept(body: Shared, most: int) -> int | None:
    """Return how many tokens of each prompt stay, where `most` fit; None if all must.

    Raises:
        Problem: None would.
    """
    if (cut := body.truncate_prompt_tokens) == 0:
        message = "truncate_prompt_tokens=0: must be at least 1, or -1 for as many as fit"
        raise Problem("invalid_value", message, param="truncate_prompt_tokens")
    return most if cut == -1 else cut


def check_whole(body: Fields, prompt_logprobs: int | None) -> None:
    """Refuse log probabilities of the prompt in a stream, which has no place for them.

    Raises:
        Problem: They are asked for.
    """
    if body.stream and prompt_logprobs is not None:
        message = "prompt_logprobs needs stream=false"
        raise Problem("invalid_value", message, param="prompt_logprobs")


def works(
    front: Front,
    job: Job,
    prompts: list[list[int]],
    body: Fields,
    *,
    max_tokens: int | None,
    grammar: str | None = None,
    thinking: Thinking | None = None,
    keeps: bool = False,
    **own: Any,
) -> list[wire.Submit]:
    """Return the engine's requests, one for each prompt; set the job's copies.

    A request without a seed gets one here, so that another engine can go on with it.

    Raises:
        Problem: A parameter is out of range, or a technique is not allowed.
    """
    if body.id_slot >= front.places:
        must = f"must be less than {front.places}, the places of this server, or -1 for any"
        raise Problem("invalid_value", f"id_slot={body.id_slot}: {must}", param="id_slot")
    job.place = body.id_slot
    seed = int.from_bytes(drawn(8), "little")
    params, job.copies = sampling(
        body, front.settings.default_sampling, max_tokens=max_tokens, seed=seed, **own
    )
    progress = bool(body.stream and body.return_progress)
    traits: dict[str, Any] = {"grammar": grammar, "thinking": thinking, "progress": progress}
    return _works(front, job, prompts, body, params=params, keeps=keeps, **traits)


def readings(
    front: Front, job: Job, asks: Sequence[Ask], body: Shared, param: str
) -> list[wire.Submit]:
    """Return the engine's requests that read something off prompts, and generate nothing.

    Raises:
        Problem: A prompt is too long, or a technique is not allowed.
    """
    prompts = [fitted(front, prompt, body, param) for prompt, _ in asks]
    pairs = zip(_works(front, job, prompts, body, params={}), asks, strict=True)
    return [msgspec.structs.replace(work, reading=reading) for work, (_, reading) in pairs]


def _works(
    front: Front, job: Job, prompts: list[list[int]], body: Shared, **traits: Any
) -> list[wire.Submit]:
    attention = _attention(front, body)
    many = len(prompts) > 1
    return [
        wire.Submit(
            id=f"{job.id}-{at}" if many else job.id,
            prompt=prompt,
            priority=body.priority,
            key=job.key,
            attention=attention,
            adapter=body.model if body.model in front.settings.adapters else None,
            reuse=body.cache_prompt,
            group=group(front, job.key, body.cache_salt),
            **traits,
        )
        for at, prompt in enumerate(prompts)
    ]


def _attention(front: Front, body: Shared) -> str:
    """Return the technique that a request asks for, as the engine calls it."""
    asked, own = body.suffice.attention, front.facts.attentions[0]
    if asked is None:
        return own
    allowed = {ATTENTIONS.build(each): each for each in front.facts.attentions}
    why = f"suffice.attention='{asked[:60]}'"
    try:
        found = allowed.get(ATTENTIONS.build(asked, imports=False))
    except InputError as error:
        found, why = None, f"suffice.attention: {error}"
    if found is None:
        message = f"{why}: this server allows {', '.join(allowed.values())}"
        raise Problem("invalid_value", message, param="suffice.attention")
    return found


def group(front: Front, key: str, salt: str | None) -> str:
    """Return whose kept keys and values a request may use: those of its API key and salt."""
    own = "" if front.settings.share_prefixes else key
    return f"{own}\n{salt or ''}"
