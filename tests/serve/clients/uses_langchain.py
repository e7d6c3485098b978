"""LangChain's ChatOpenAI by the server's address: streams, tools, structured answers, an agent."""

from __future__ import annotations

import sys

from asked import Place, weather
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

told = tool(weather)


def main(real: str, says: str) -> None:
    """Try it against a model's server, and one whose answers are given."""
    given = {"base_url": f"{real}/v1", "api_key": "none", "model": "tiny", "max_retries": 0}
    chat = ChatOpenAI(**given, max_tokens=400, seed=1)
    short = ChatOpenAI(**given, max_tokens=5, seed=1)
    whole = short.invoke("hi")
    assert whole.usage_metadata["output_tokens"] == 5
    assert "".join(part.text for part in short.stream("hi")) == whole.text
    assert OpenAI(**given, max_tokens=3).invoke("a")
    for method in ("function_calling", "json_schema"):
        for strict in (None, True):
            found = chat.with_structured_output(Place, method=method, strict=strict).invoke("hi")
            assert isinstance(found, Place), (method, strict)
    bound = chat.bind_tools([told], tool_choice="any", strict=True, parallel_tool_calls=False)
    (call,) = bound.invoke("hi").tool_calls
    assert call["name"] == "weather" and set(call["args"]) == {"city"}
    responses = ChatOpenAI(**given, max_tokens=5, use_responses_api=True)
    assert responses.invoke("hi").text
    assert "".join(part.text for part in responses.stream("hi"))
    assert isinstance(
        ChatOpenAI(**given, max_tokens=400, use_responses_api=True)
        .with_structured_output(Place)
        .invoke("hi"),
        Place,
    )

    speaker = ChatOpenAI(base_url=f"{says}/v1", api_key="none", model="tiny").bind_tools([told])
    answer = speaker.invoke("hi")
    assert answer.text == "Now." and answer.tool_calls[0]["args"] == {"city": "Oslo"}
    merged = None
    for part in speaker.stream("hi"):
        merged = part if merged is None else merged + part
    assert merged is not None and merged.tool_calls[0]["args"] == {"city": "Oslo"}
    result = told.invoke(answer.tool_calls[0])
    assert isinstance(result, ToolMessage) and result.content == "Rain in Oslo."
    again = speaker.invoke([HumanMessage("hi"), answer, result])
    assert isinstance(again, AIMessage) and again.text == "Now."


if __name__ == "__main__":
    main(*sys.argv[1:])
