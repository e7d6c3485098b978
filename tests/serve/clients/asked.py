"""What the programs of this folder ask for."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Place(BaseModel):
    """A place, whose fields a random model fills in a few tokens."""

    model_config = ConfigDict(extra="forbid")
    zone: Literal["utc", "cet"]
    hour: Literal[1, 2]


def weather(city: Annotated[str, Field(max_length=8)]) -> str:
    """Tell the weather."""
    return f"Rain in {city}."
