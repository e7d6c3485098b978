"""Engines that share their weights, which are read and packed once, and what runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from suffice import LLM, SamplingParams
from suffice.decoder.shelf import Shelf
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.engine.request import Request, RequestOutput
from suffice.engine.session import Session


def sharing(**usual: Any) -> Callable[..., LLM]:
    """Return what makes an engine of a model and options, in addition to the usual ones.

    It keeps the weights of all models that it has loaded; nothing changes them.
    """
    shelf = Shelf()

    def made(model: Path, **options: Any) -> LLM:
        return LLM.from_parts(*load(Config.create(str(model), **{**usual, **options}), shelf))

    return made


def last_outputs(
    sessions: Iterable[Session], prompt: Any, params: SamplingParams
) -> list[RequestOutput]:
    """Return what each session makes of a prompt."""
    return [list(session.stream(prompt, params))[-1][1] for session in sessions]


def check_turns(drafting: LLM, plain: LLM, prompt: list[int], params: SamplingParams) -> None:
    """Require the same answers in turns that go on, and many drafts in each."""
    with drafting.session() as session, plain.session() as other:
        for _ in range(3):
            one, two = last_outputs((session, other), prompt, params)
            assert one.outputs == two.outputs
            assert one.speculation.num_draft_tokens > 40
            prompt = [*session.tokens, 8]


def run(llm: LLM, requests: list[Request], act: Callable[[int], None] = lambda step: None) -> None:
    """Add requests, a step after each, and step until all have ended; `act` is told each step."""
    for request in requests:
        llm.loop.add(request)
        llm.loop.step()
    steps = 0
    while not all(request.finished for request in requests):
        llm.loop.step()
        act(steps := steps + 1)
