"""Pydantic AI by the server's address: its kinds of output, tools, streams, and three APIs."""

from __future__ import annotations

import asyncio
import sys

from asked import Place, weather
from pydantic_ai import Agent, NativeOutput, Tool, ToolOutput, UsageLimitExceeded
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits


async def main(real: str, says: str) -> None:
    """Try it against a model's server, and one whose answers are given."""
    provider = OpenAIProvider(base_url=f"{real}/v1", api_key="none")
    claude = AnthropicProvider(base_url=real, api_key="none")
    models = (
        OpenAIChatModel("tiny", provider=provider),
        OpenAIResponsesModel("tiny", provider=provider),
        AnthropicModel("tiny", provider=claude),
    )
    for model in models:
        short = Agent(model, model_settings={"max_tokens": 5})
        assert (await short.run("hi")).output
        async with short.run_stream("hi") as stream:
            assert "".join([part async for part in stream.stream_text(delta=True)])
        native = [] if isinstance(model, AnthropicModel) else [NativeOutput(Place)]
        for output in (Place, ToolOutput(Place, strict=True), *native):
            own = {"max_tokens": 400, "parallel_tool_calls": False}
            agent = Agent(model, output_type=output, model_settings=own, retries=0)
            found = (await agent.run("hi")).output
            assert isinstance(found, Place), (model, output)
            async with agent.run_stream("hi") as stream:
                assert isinstance(await stream.get_output(), Place), (model, output)

    speaker = OpenAIChatModel(
        "tiny", provider=OpenAIProvider(base_url=f"{says}/v1", api_key="none")
    )
    agent = Agent(speaker, tools=[Tool(weather, strict=False)])  # it follows no grammar
    seen = []
    try:
        async with agent.iter("hi", usage_limits=UsageLimits(request_limit=2)) as run:
            async for node in run:
                seen.append(repr(node))
    except UsageLimitExceeded:  # the answers are all the same: each calls again
        pass
    assert any("Rain in Oslo." in each for each in seen) and any("Hm." in each for each in seen)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
