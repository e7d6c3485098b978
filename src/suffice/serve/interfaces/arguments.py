"""The arguments of a call as values, for interfaces that have them so."""

from __future__ import annotations

import json
from typing import Any

import msgspec


def arguments_of(text: str) -> Any:
    """Return what arguments say; an empty object if they are cut, or nothing that JSON can hold."""
    try:
        found = json.loads(text or "{}", strict=False)
        msgspec.json.encode(found)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
