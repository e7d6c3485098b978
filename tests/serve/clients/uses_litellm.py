"""LiteLLM by the server's address: chats, streams, tools, forms, and Anthropic's API."""

from __future__ import annotations

import json
import sys

import litellm

SCHEMA = {
    "type": "object",
    "properties": {"zone": {"enum": ["utc", "cet"]}},
    "required": ["zone"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "time", "parameters": SCHEMA, "strict": True}}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
TALK = [{"role": "user", "content": "hi"}]


def main(real: str, says: str) -> None:
    """Try it against a model's server, and one whose answers are given."""
    openai = {"model": "openai/tiny", "api_base": f"{real}/v1", "api_key": "none"}
    asked = {**openai, "messages": TALK, "max_tokens": 300, "num_retries": 0}
    whole = litellm.completion(**{**asked, "max_tokens": 5, "seed": 1})
    assert whole.usage.completion_tokens == 5
    parts = list(litellm.completion(stream=True, **{**asked, "max_tokens": 5, "seed": 1}))
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content
    called = litellm.completion(tools=[TOOL], tool_choice="required", **asked)
    (call, *_) = called.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["zone"] in ("utc", "cet")
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    formed = litellm.completion(response_format=form, **asked)
    assert json.loads(formed.choices[0].message.content)["zone"] in ("utc", "cet")
    plain = litellm.text_completion(
        model="text-completion-openai/tiny",
        prompt="a",
        max_tokens=3,
        api_base=f"{real}/v1",
        api_key="none",
    )
    assert plain.choices[0].text
    claude = {**asked, "model": "anthropic/tiny", "api_base": real}
    assert litellm.completion(**{**claude, "max_tokens": 5}).choices[0].message.content
    used = litellm.completion(tools=[TOOL], tool_choice="required", **claude)
    (call, *_) = used.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["zone"] in ("utc", "cet")
    answer = litellm.responses(
        model="openai/tiny", input="hi", max_output_tokens=5, api_base=f"{real}/v1", api_key="none"
    )
    assert answer.output[0].content[0].text

    spoken = {**asked, "api_base": f"{says}/v1", "tools": [WEATHER]}
    message = litellm.completion(**spoken).choices[0].message
    assert message.reasoning_content == "Hm." and message.content == "Now."
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    parts = list(litellm.completion(stream=True, **spoken))
    rebuilt = litellm.stream_chunk_builder(parts, messages=TALK).choices[0].message
    assert rebuilt.reasoning_content == "Hm." and rebuilt.content == "Now."
    assert json.loads(rebuilt.tool_calls[0].function.arguments) == {"city": "Oslo"}


if __name__ == "__main__":
    main(*sys.argv[1:])
