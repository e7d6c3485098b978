"""LlamaIndex's OpenAILike by the server's address: chats, streams, tools, structured answers."""

from __future__ import annotations

import sys

from asked import Place, weather
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def model(url: str, tokens: int) -> OpenAILike:
    """Return the model of a server."""
    return OpenAILike(
        model="tiny",
        api_base=f"{url}/v1",
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        max_tokens=tokens,
        max_retries=0,
    )


def main(real: str, says: str) -> None:
    """Try it against a model's server, and one whose answers are given."""
    talk, tool = [ChatMessage(role="user", content="hi")], FunctionTool.from_defaults(weather)
    short, long = model(real, 5), model(real, 400)
    assert short.chat(talk).message.content
    assert "".join(part.delta or "" for part in short.stream_chat(talk))
    assert short.complete("a").text
    assert isinstance(long.as_structured_llm(Place).chat(talk).raw, Place)
    called = long.chat_with_tools([tool], user_msg="hi", tool_required=True)
    (call, *_) = long.get_tool_calls_from_response(called)
    assert call.tool_name == "weather" and set(call.tool_kwargs) == {"city"}

    speaker = model(says, 400)
    answer = speaker.chat_with_tools([tool], user_msg="hi")
    (call,) = speaker.get_tool_calls_from_response(answer)
    assert call.tool_kwargs == {"city": "Oslo"} and answer.message.content == "Now."
    *_, last = speaker.stream_chat_with_tools([tool], user_msg="hi")
    (call,) = speaker.get_tool_calls_from_response(last)
    assert call.tool_kwargs == {"city": "Oslo"}
    done = speaker.predict_and_call([tool], user_msg="hi")
    assert str(done) == "Rain in Oslo."


if __name__ == "__main__":
    main(*sys.argv[1:])
