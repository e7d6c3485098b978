"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from suffice.serve.dialects.answer import Reply
from suffice.serve.dialects.fields import Fields, Objects, parsed
from suffice.serve.dialects.grammar import Structured, check, of_format
from suffice.serve.dialects.requests import fitted, room, works
from suffice.serve.dialects.tools import Tools, parser_of
from suffice.serve.errors import Problem
from suffice.serve.http.front import Front

MOST_LOGPROBS = 20


class Chat(Fields):
    """The fields of a chat request."""

    messages: Objects = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: Structured | None = None
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True


async def complete(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Answer a chat request.

    Raises:
        Problem: It cannot be answered.
    """
    body = parsed(raw, Chat, allow_unknown=front.settings.allow_unknown_fields)
    reply = await prepared(front, body, key, "chatcmpl")
    return await reply.response(request)


async def prepared(front: Front, body: Chat, key: str, prefix: str) -> Reply:
    """Hand a chat request to the engine; its id begins with the prefix.

    Raises:
        Problem: It cannot be answered.
    """
    model = front.check_model(body.model)
    check_chat(body)
    tools = Tools(body.tools or (), body.tool_choice, body.parallel_tool_calls is not False)
    parser = tool_parser(front, tools)
    facts = dict(body.chat_template_kwargs or {})
    if tools.used:
        facts["tools"] = tools.given
    with front.job(prefix, key, body.request_id) as job:
        prompt = await front.text.run(
            lambda: front.text.chat(
                body.messages,
                room(front, body, "messages"),
                add_generation_prompt=body.add_generation_prompt,
                continue_last=body.continue_final_message,
                facts=facts,
                form=front.tool_form,
            ),
            "messages",
        )
        prompt = fitted(front, prompt, body, "messages")
        calls = tools.grammar(parser) if parser else None
        grammar = None
        if calls or body.response_format is not None or body.structured_outputs is not None:
            grammar, job.mailbox.form = await front.text.elsewhere(lambda: structure(body, calls))
        if grammar is not None:
            await check(grammar, front.text.elsewhere, str(job.mailbox.form))
        top = (body.top_logprobs or 0) if body.logprobs else None
        most = body.max_completion_tokens
        most = body.max_tokens if most is None else most
        front.submit(
            job, works(front, job, [prompt], body, max_tokens=most, logprobs=top, grammar=grammar)
        )
        reader = tools.reader(parser) if parser else None
        return Reply(front, job, body, model=model, chat=True, top=top, reader=reader)


def tool_parser(front: Front, tools: Tools) -> str | None:
    """Return the form of tool calls that the model knows; None if it is to make none.

    Raises:
        Problem: There are tools, but the model's chat template knows of none.
    """
    if not tools.used:
        return None
    parser = parser_of(front.text.tokenizer.tool_template, front.settings.tool_parser)
    if parser is None:
        message = (
            "the model's chat template takes no tools; a server with --tool-call-parser hermes, or "
            "llama3, describes them in the system message"
        )
        raise Problem("unsupported", message, param="tools")
    return parser


def structure(body: Chat, calls: str | None) -> tuple[str | None, str | None]:
    """Return the grammar that the answer must follow and the field that asks for it, if any.

    `calls` is that of tool calls which must be made.

    Raises:
        Problem: It is bad, or there are two.
    """
    found, param = of_format(body.response_format), "response_format"
    if body.structured_outputs is not None:
        if found is not None:
            message = "response_format and structured_outputs contradict each other: give one"
            raise Problem("invalid_schema", message, param="structured_outputs")
        found, param = body.structured_outputs.text(), "structured_outputs"
    if calls is not None:
        if found is not None:
            message = "tool_choice asks for a call and another field for a form: give one"
            raise Problem("invalid_schema", message, param="tool_choice")
        found, param = calls, "tools"
    return found, None if found is None else param


def check_chat(body: Chat) -> None:
    """Refuse fields that contradict each other.

    Raises:
        Problem: They do.
    """
    if body.top_logprobs and not body.logprobs:
        raise Problem("invalid_value", "top_logprobs needs logprobs=true", param="top_logprobs")
    if body.continue_final_message and body.add_generation_prompt:
        if "add_generation_prompt" in body.model_fields_set:
            message = "continue_final_message and add_generation_prompt contradict each other"
            raise Problem("invalid_value", message, param="continue_final_message")
        body.add_generation_prompt = False
    if body.stream_options is not None and not body.stream:
        raise Problem("invalid_value", "stream_options needs stream=true", param="stream_options")
