"""OpenAI's client, of an earlier major version than other tests have: forms, strict tools."""

from __future__ import annotations

import sys

import openai
from asked import Place


def main(real: str, says: str) -> None:
    """Try it against a model's server, and one whose answers are given."""
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    with openai.OpenAI(base_url=f"{real}/v1", api_key="none", max_retries=0) as client:
        found = client.chat.completions.parse(response_format=Place, max_tokens=400, **asked)
        assert isinstance(found.choices[0].message.parsed, Place)
        tool = openai.pydantic_function_tool(Place)
        assert tool["function"]["strict"] is True
        called = client.chat.completions.parse(
            tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=400, **asked
        )
        (call,) = called.choices[0].message.tool_calls or ()
        assert isinstance(call.function.parsed_arguments, Place)
        either = client.chat.completions.parse(
            tools=[tool],
            response_format=Place,
            parallel_tool_calls=False,
            max_tokens=400,
            **asked,
        )
        assert either.choices[0].message.parsed or either.choices[0].message.tool_calls
        answer = client.responses.parse(
            model="tiny", input="hi", text_format=Place, max_output_tokens=400
        )
        assert isinstance(answer.output_parsed, Place)
        with client.chat.completions.stream(
            response_format=Place, max_tokens=400, **asked
        ) as stream:
            kinds = {event.type for event in stream}
            assert {"content.delta", "content.done"} <= kinds
            assert isinstance(stream.get_final_completion().choices[0].message.parsed, Place)
    with openai.OpenAI(base_url=f"{says}/v1", api_key="none", max_retries=0) as client:
        weather = {"type": "function", "function": {"name": "weather", "parameters": {}}}
        with client.chat.completions.stream(tools=[weather], **asked) as stream:
            (call,) = stream.get_final_completion().choices[0].message.tool_calls or ()
        assert call.function.name == "weather" and "Oslo" in call.function.arguments


if __name__ == "__main__":
    main(*sys.argv[1:])
