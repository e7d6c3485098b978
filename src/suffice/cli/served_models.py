"""The flags that say which models a server has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from suffice.checkpoints.files import weight_files
from suffice.cli.flags import engine_flags, flag
from suffice.cli.options import ModelFlags
from suffice.engine.options import EngineOptions
from suffice.errors import InputError
from suffice.pull import DEFAULT_MODEL
from suffice.pull.parts import stem_of


@dataclass(frozen=True)
class ServedModels:
    """The models of a server."""

    model: list[str] | None = flag(
        None,
        "-m --model",
        "A name that `pull` knows, a folder, a hub id or a .gguf file; may be repeated: then each "
        "is loaded when a request asks for it.",
        panel="Model",
    )
    models_dir: list[Path] | None = flag(
        None,
        "--models-dir",
        "A folder whose models are served: its .gguf files, and its folders with a config.json; "
        "may be repeated.",
        panel="Model",
    )

    def found(self, given: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
        """Return models and the names that requests give for each; without any, its usual ones.

        `given` are those that were given without a flag, which replace those of a variable.

        Raises:
            InputError: They were given in both ways, or the folder has no models.
        """
        import click
        from click.core import ParameterSource

        source = click.get_current_context().get_parameter_source("model")
        flagged = self.model if source is ParameterSource.COMMANDLINE else None
        if given and flagged and list(given) != flagged:
            raise InputError(
                f"the model {given[0]} and -m {flagged[0]} contradict each other: give models in "
                "one way"
            )
        chosen = [(each, ()) for each in given or self.model or ()]
        found: list[tuple[str, tuple[str, ...]]] = [*chosen]
        for folder in self.models_dir or ():
            found += [(str(path), (name,)) for name, path in models_in(folder).items()]
        return found or [(DEFAULT_MODEL, ())]


@dataclass(frozen=True)
class EachModelFlags(ModelFlags):
    """The flags of a model, which hold for each that is served."""

    options: EngineOptions = engine_flags(without=("model",))


def models_in(folder: Path) -> dict[str, Path]:
    """Return the models of a folder by their names, those of files without .gguf.

    Hidden ones, as downloads leave them, and files whose parts are missing are left out.

    Raises:
        InputError: It cannot be read, has none, or two of one name.
    """
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"--models-dir {folder}: {error.strerror}") from None
    files = {
        stem_of(each.name): each
        for each in reversed(entries)  # of a file's parts, the first
        if each.suffix == ".gguf" and _is_whole(each)
    }
    folders = {
        each.name: each
        for each in entries
        if (each / "config.json").is_file() and not each.name.startswith(".")
    }
    if twice := files.keys() & folders.keys():
        name = min(twice)
        raise InputError(
            f"--models-dir {folder}: {files[name].name} and the folder {name} have the name "
            f"'{name}' in common: rename one"
        )
    if not (found := {**files, **folders}):
        raise InputError(
            f"--models-dir {folder}: has no .gguf file, and no folder with a config.json"
        )
    return dict(sorted(found.items()))


def _is_whole(file: Path) -> bool:
    """Whether a file is no rest of a download, and all its parts are there."""
    return not file.name.startswith(".") and all(part.is_file() for part in weight_files(file))
