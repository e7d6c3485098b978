"""`POST /v1/chat/completions`."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from suffice.dialects.grammar import Held
from suffice.dialects.speech import Speech, switch
from suffice.engine.thinking import Thinking
from suffice.errors import InputError
from suffice.serve.errors import Problem
from suffice.serve.http.front import Front
from suffice.serve.http.text import Prompt, Room
from suffice.serve.interfaces.answer import Reply
from suffice.serve.interfaces.fields import Fields, Objects, parsed
from suffice.serve.interfaces.grammar import Structured, check, of_format
from suffice.serve.interfaces.requests import check_whole, fitted, room, works
from suffice.serve.interfaces.tools import Tools

MOST_LOGPROBS = 20


class Chat(Fields):
    """The fields of a chat request."""

    messages: Objects = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    prompt_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: Structured | None = None
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    reasoning_effort: str | None = Field(None, max_length=20)
    verbosity: str | None = Field(None, max_length=20)
    enable_thinking: bool | None = None
    thinking_token_budget: int | None = Field(None, ge=0)
    include_reasoning: bool = True


async def complete(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Answer a chat request.

    Raises:
        Problem: It cannot be answered.
    """
    body = parsed(raw, Chat, allow_unknown=front.settings.allow_unknown_fields)
    reply = await prepared(front, body, key, "chatcmpl")
    return await reply.response(request)


async def prepared(
    front: Front,
    body: Chat,
    key: str,
    prefix: str,
    *,
    budget_if_possible: bool = False,
    keeps: bool = False,
) -> Reply:
    """Hand a chat request to the engine; its id begins with the prefix.

    `budget_if_possible` drops a budget of thinking that cannot be kept; `keeps` is of `Work`.

    Raises:
        Problem: It cannot be answered.
    """
    model = front.check_model(body.model)
    speech = front.text.speech
    check_chat(body)
    check_hidden(body, speech)
    tools = tools_of(body)
    with front.job(prefix, key, body.request_id) as job:
        found = await _prompt(front, body, tools, room(front, body, "messages"))
        prompt = fitted(front, found.tokens, body, "messages")
        bound = Structure()
        asks = body.response_format is not None or body.structured_outputs is not None
        if asks or tools.binding:
            bound = await front.text.elsewhere(
                lambda: structure(body, tools, speech, opened=found.thinking)
            )
        if bound.grammar is not None:
            job.mailbox.form = bound.param
            await check(bound.grammar, front.text.elsewhere, bound.param)
        top = (body.top_logprobs or 0) if body.logprobs else None
        most = body.max_completion_tokens
        most = body.max_tokens if most is None else most
        scores = body.prompt_logprobs
        own: dict[str, Any] = {"logprobs": top, "prompt_logprobs": scores}
        own |= {"grammar": bound.grammar, "keeps": keeps}
        if speech.thinks or tools.used:
            own["marked_token_ids"] = speech.marked(calls=tools.used)
        if budget_if_possible and speech.thinks and not speech.can_limit(opened=found.thinking):
            body.thinking_token_budget = None
        holds = bound.grammar is not None
        thinking = thinking_of(speech, body, opened=found.thinking, grammar=holds)
        given = works(front, job, [prompt], body, max_tokens=most, thinking=thinking, **own)
        front.submit(job, given)
        reader = None
        if speech.thinks or tools.used:
            reader = functools.partial(
                speech.reader,
                opened=found.thinking,
                tools=tools.schemas,
                held=bound.held,
                several=tools.parallel,
            )
        shown: dict[str, Any] = {"reader": reader, "hidden": not body.include_reasoning}
        shown |= {"marks": speech.marks_of_thinking(), "scores": scores}
        return Reply(front, job, body, model=model, chat=True, top=top, **shown)


async def counted(front: Front, body: Chat) -> int:
    """Return the number of tokens of a conversation, which need not fit the context.

    Raises:
        Problem: The template refuses it.
    """
    front.check_model(body.model)
    apart = Room(front.facts.max_model_len, "messages", apart=True)
    return len((await _prompt(front, body, tools_of(body), apart)).tokens)


def tools_of(body: Chat) -> Tools:
    """Return a request's tools.

    Raises:
        Problem: They have another form.
    """
    return Tools(body.tools or (), body.tool_choice, body.parallel_tool_calls is not False)


async def _prompt(front: Front, body: Chat, tools: Tools, room: Room) -> Prompt:
    """Return a conversation's tokens.

    Raises:
        Problem: The template refuses it, or it is longer than its room.
    """
    return await front.text.run(
        lambda: front.text.chat(
            body.messages,
            room,
            add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
            continue_last=body.continue_final_message,
            facts=facts_of(body, tools),
        ),
        "messages",
    )


async def count(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Return the number of tokens of a request."""
    body = parsed(raw, Chat, allow_unknown=front.settings.allow_unknown_fields)
    return JSONResponse(
        {"object": "response.input_tokens", "input_tokens": await counted(front, body)}
    )


def facts_of(body: Chat, tools: Tools) -> dict[str, Any]:
    """Return what the chat template is told, besides the messages."""
    facts: dict[str, Any] = {}
    thinks = body.enable_thinking
    if body.reasoning_effort is not None:
        facts["reasoning_effort"] = body.reasoning_effort
        if body.reasoning_effort == "none":
            thinks = False
    if body.verbosity is not None:
        facts["verbosity"] = body.verbosity
    if thinks is not None:
        facts |= switch(thinks)
    if tools.used:
        facts["tools"] = tools.given
    return {**facts, **(body.chat_template_kwargs or {})}


def thinking_of(speech: Speech, body: Chat, *, opened: bool, grammar: bool) -> Thinking | None:
    """Return what the engine has to know of an answer's thinking; None if it is of no concern.

    A model that does not think keeps every budget.

    Raises:
        Problem: The model's thinking can have no budget.
    """
    budget = body.thinking_token_budget if speech.thinks else None
    try:
        found = speech.limits(opened=opened, budget=budget, grammar=grammar)
    except InputError as error:
        raise Problem("unsupported", str(error), param="thinking_token_budget") from None
    return None if found is None else Thinking(*found)


class Structure(NamedTuple):
    """What an answer must follow.

    Attributes:
        grammar: llguidance's, None if there is none.
        param: The field that asks for it.
        held: The tools that its calls are held to, None if any may be called.
    """

    grammar: str | None = None
    param: str = ""
    held: Held | None = None


def structure(body: Chat, tools: Tools, speech: Speech, *, opened: bool) -> Structure:
    """Return what the answer must follow; `opened` says that the prompt has begun its thinking.

    Raises:
        Problem: It is bad, or two fields contradict each other.
    """
    form, param = of_format(body.response_format), "response_format"
    if body.structured_outputs is not None:
        if form is not None:
            message = "response_format and structured_outputs contradict each other: give one"
            raise Problem("invalid_schema", message, param="structured_outputs")
        form, param = body.structured_outputs.text(), "structured_outputs"
    held = tools.held(form=form is not None)
    if held is not None and held.must:
        form = None  # which is of a text: the answer has none
    grammar = speech.grammar(held, form, opened=opened)
    return Structure(grammar, param if held is None else "tools", held)


def check_hidden(body: Chat, speech: Speech) -> None:
    """Refuse to leave thinking out of what is told of tokens where no token ends it.

    Raises:
        Problem: It is asked for.
    """
    told = body.logprobs or body.return_token_ids
    if told and not body.include_reasoning and speech.thinks and not speech.marks_of_thinking():
        name = "logprobs" if body.logprobs else "return_token_ids"
        message = (
            f"include_reasoning=false with {name} is not supported here: no token tells this "
            "model's thinking from its answer"
        )
        raise Problem("unsupported", message, param="include_reasoning")


def check_chat(body: Chat) -> None:
    """Refuse fields that contradict each other.

    Raises:
        Problem: They do.
    """
    check_whole(body, body.prompt_logprobs)
    if body.top_logprobs and not body.logprobs:
        raise Problem("invalid_value", "top_logprobs needs logprobs=true", param="top_logprobs")
    if body.continue_final_message and body.add_generation_prompt:
        if "add_generation_prompt" in body.model_fields_set:
            message = "continue_final_message and add_generation_prompt contradict each other"
            raise Problem("invalid_value", message, param="continue_final_message")
        body.add_generation_prompt = False
    if body.stream_options is not None and not body.stream:
        raise Problem("invalid_value", "stream_options needs stream=true", param="stream_options")
