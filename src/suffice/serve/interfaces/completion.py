"""`POST /v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from suffice.serve.errors import Problem
from suffice.serve.http.front import Front
from suffice.serve.interfaces.answer import Reply
from suffice.serve.interfaces.fields import FIRST_FAULT, Fields, Texts, Tokens, parsed
from suffice.serve.interfaces.grammar import Structured
from suffice.serve.interfaces.grammar import check as check_grammar
from suffice.serve.interfaces.logprobs import Echo
from suffice.serve.interfaces.requests import check_whole, fitted, room, works
from suffice.text.infill import Infill

DEFAULT_TOKENS = 16  # as OpenAI's
MOST_LOGPROBS = 20
MOST_PROMPTS = 128


class Completion(Fields):
    """The fields of a completion request."""

    prompt: str | Tokens | Texts | Annotated[list[Tokens], FIRST_FAULT]
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    prompt_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    echo: bool | None = False
    suffix: str | None = None
    add_special_tokens: bool = True
    structured_outputs: Structured | None = None


def split(
    prompt: str | list[int] | list[str] | list[list[int]],
    param: str = "prompt",
    most: int = MOST_PROMPTS,
) -> list[str | list[int]]:
    """Return the prompts of a request, each a text or tokens; `param` is their field.

    Raises:
        Problem: There are none, or too many.
    """
    if isinstance(prompt, str):
        return [prompt]
    found: list[str | list[int]] = []
    if prompt and isinstance(prompt[0], int):
        found = [[each for each in prompt if isinstance(each, int)]]
    else:
        found = [each for each in prompt if not isinstance(each, int)]
    if not 1 <= len(found) <= most:
        message = f"{param}: {len(found)} prompts given; 1 to {most} are allowed"
        raise Problem("invalid_value", message, param=param)
    return found


async def complete(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Answer a completion request.

    Raises:
        Problem: It cannot be answered.
    """
    body = parsed(raw, Completion, allow_unknown=front.settings.allow_unknown_fields)
    reply = await prepared(front, body, key, "cmpl")
    return await reply.response(request)


def check(body: Completion) -> list[str | list[int]]:
    """Return the prompts of a request.

    Raises:
        Problem: There are none, or fields contradict each other.
    """
    if body.stream_options is not None and not body.stream:
        raise Problem("invalid_value", "stream_options needs stream=true", param="stream_options")
    check_whole(body, body.prompt_logprobs)
    return split(body.prompt)


async def prepared(front: Front, body: Completion, key: str, prefix: str) -> Reply:
    """Hand a completion request to the engine; its id begins with the prefix.

    Raises:
        Problem: It cannot be answered.
    """
    model = front.check_model(body.model)
    prompts = check(body)
    size = sum(len(each) for each in prompts if isinstance(each, str)) + len(body.suffix or "")
    with front.job(prefix, key, body.request_id) as job:
        encoded = await front.text.run(lambda: _tokens(front, body, prompts), "prompt", size)
        fitting = [fitted(front, each, body, "prompt") for each in encoded]
        most = body.max_tokens if "max_tokens" in body.model_fields_set else DEFAULT_TOKENS
        grammar = None
        if body.structured_outputs is not None:
            grammar = await front.text.elsewhere(body.structured_outputs.text)
            job.mailbox.form = "structured_outputs"
            await check_grammar(grammar, front.text.elsewhere, job.mailbox.form)
        scored = [body.prompt_logprobs, body.logprobs if body.echo else None]
        most_scores = max((each for each in scored if each is not None), default=None)
        own: dict[str, Any] = {"logprobs": body.logprobs, "prompt_logprobs": most_scores}
        asked = works(front, job, fitting, body, max_tokens=most, grammar=grammar, **own)
        before: tuple[Echo, ...] = ()
        if body.echo:
            pairs = list(zip(prompts, fitting, strict=True))
            size += sum(map(len, fitting))
            before = await front.text.run(
                lambda: tuple(Echo.of(front.text.tokenizer, *pair) for pair in pairs),
                "prompt",
                size,
            )
        front.submit(job, asked)
        shown: dict[str, Any] = {"top": body.logprobs, "scores": body.prompt_logprobs}
        return Reply(front, job, body, model=model, chat=False, before=before, **shown)


def _tokens(front: Front, body: Completion, prompts: list[str | list[int]]) -> list[list[int]]:
    """Return the tokens of prompts; with a suffix they are to be filled in before it.

    Raises:
        Problem: A prompt is too long, or the model has no tokens for a suffix.
    """
    most, text = room(front, body, "prompt"), front.text
    if not body.suffix:
        return [
            text.encode(each, most, special=body.add_special_tokens)
            if isinstance(each, str)
            else each
            for each in prompts
        ]
    form = Infill.of(text.tokenizer.whole())
    if form is None or body.echo or not all(isinstance(each, str) for each in prompts):
        why = "the model has no tokens for it"
        if form is not None:
            why = "it needs prompts that are texts, without echo"
        raise Problem("unsupported", f"suffix: {why}", param="suffix")
    start = text.tokenizer.encode("") if body.add_special_tokens else []
    suffix = body.suffix

    def encode(part: str) -> list[int]:
        return text.encode(part, most, special=False)

    return [[*start, *form.prompt(str(each), suffix, encode)] for each in prompts]
