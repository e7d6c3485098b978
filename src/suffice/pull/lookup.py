"""From the name of a model to its file or folder on this machine."""

from __future__ import annotations

from pathlib import Path

from suffice.errors import InputError, unknown
from suffice.pull.catalogue import MODELS, model_path
from suffice.pull.names import HubName


def resolve(model: str) -> str:
    """Return the path of a pulled model; a path or another hub id is returned unchanged.

    Raises:
        InputError: A known model, or a file on a hub, has not been pulled, or `model` is neither a
            known name, an existing path, nor a hub id (owner/name).
    """
    if not model:
        raise InputError("the model's name is empty: give a name, a folder or a .gguf file")
    name = HubName.read(model)
    if (model in MODELS or name is not None) and not Path(model).exists():
        return _pulled(model, name)
    if "/" not in model and not model.endswith(".gguf") and not Path(model).exists():
        raise InputError(f"{unknown('model', model, MODELS)}; or a folder, .gguf file or hub id")
    return model


def _pulled(model: str, name: HubName | None) -> str:
    from suffice.pull.stored import find, mark_used  # most models are given by their path

    if name is None:
        path = model_path(MODELS[model])
        found = path if path.is_file() else None
        folder = path.parent
    else:
        entry = find(name)
        if entry is None and name.whole and str(name) == name.repo:
            return model  # an id that the loader may find in the hub's own cache
        found, folder = (None, Path()) if entry is None else (entry.path, entry.folder)
    if found is None:
        raise InputError(f"model '{model}' is not on this machine: run `suffice pull {model}`")
    mark_used(folder)
    return str(found)
