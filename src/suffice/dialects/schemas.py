"""What a tool's schema says of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMED = ("$defs", "definitions")  # the parts of a schema that others refer to


def properties_of(schema: Any) -> Mapping[str, Any]:
    """Return the schemas of an object's properties; one that refers to another is that one."""
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {name: _meant(each, schema) for name, each in found.items()}


def _meant(schema: Any, root: Mapping[str, Any]) -> Any:
    """Return the named part of `root` that a schema refers to; itself if it refers to none."""
    if not isinstance(schema, Mapping):
        return schema
    for several in ("anyOf", "oneOf"):
        if isinstance(schema.get(several), list):
            return {**schema, several: [_meant(each, root) for each in schema[several]]}
    where = str(schema.get("$ref", "")).split("/")
    if len(where) != 3 or where[0] != "#" or where[1] not in NAMED:
        return schema
    known = root.get(where[1])
    found = known.get(where[2]) if isinstance(known, Mapping) else None
    return found if isinstance(found, Mapping) else schema


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
