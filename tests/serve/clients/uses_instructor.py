"""Instructor by the server's address, in its modes for tools and forms, whole and as a stream."""

from __future__ import annotations

import sys

import instructor
import openai
from asked import Place
from pydantic import BaseModel, ConfigDict


class Trip(BaseModel):
    """A trip."""

    model_config = ConfigDict(extra="forbid")
    start: Place
    end: Place | None


def main(real: str, says: str) -> None:
    """Try it against a model's server."""
    asked = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 600,
        "max_retries": 0,
    }
    modes = instructor.Mode
    with openai.OpenAI(base_url=f"{real}/v1", api_key="none", max_retries=0) as plain:
        for mode in (modes.TOOLS, modes.TOOLS_STRICT, modes.JSON_SCHEMA):
            client = instructor.from_openai(plain, mode=mode)
            found = client.chat.completions.create(response_model=Trip, **asked)
            assert isinstance(found, Trip) and isinstance(found.start, Place), mode
            *_, last = client.chat.completions.create_partial(response_model=Place, **asked)
            assert last.hour in (1, 2), mode
        client = instructor.from_openai(plain, mode=modes.RESPONSES_TOOLS)
        found = client.responses.create(
            model="tiny", input="hi", response_model=Place, max_output_tokens=600, max_retries=0
        )
        assert isinstance(found, Place)


if __name__ == "__main__":
    main(*sys.argv[1:])
