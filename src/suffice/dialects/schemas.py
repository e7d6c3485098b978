"""What a tool's schema says of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def properties_of(schema: Any) -> Mapping[str, Any]:
    """Return the schemas of an object's properties."""
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def kinds_of(schema: Any) -> set[str]:
    """Return the JSON types that a schema allows; none if it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {each for each in kind if isinstance(each, str)}
    found: set[str] = set()
    for name in ("anyOf", "oneOf"):
        several = schema.get(name)
        for each in several if isinstance(several, list) else ():
            found |= kinds_of(each)
    values = schema.get("enum")
    if not found and isinstance(values, list) and all(isinstance(each, str) for each in values):
        return {"string"}
    return found
