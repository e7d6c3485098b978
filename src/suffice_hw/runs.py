"""The files of a run: written completely or not at all, and checked against a schema when read."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import hashlib
import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any

from suffice.errors import InputError
from suffice.paths import write_whole

SUMMARY = "summary.json"
Row = dict[str, Any]
Fields = Mapping[str, str]  # required fields and their kinds; see `_check_kind`


def provenance(schema: str, settings: Mapping[str, Any], **more: Any) -> Row:
    """Return the settings that determine a run, dataclasses or plain values, and their hash.

    `more` is recorded too, but is not part of the hash.
    """
    plain = {
        name: dataclasses.asdict(each)
        if is_dataclass(each) and not isinstance(each, type)
        else each
        for name, each in settings.items()
    }
    text = json.dumps(plain, sort_keys=True)
    return {
        "schema": schema,
        "suffice": version("suffice"),
        "settings_sha256": hashlib.sha256(text.encode()).hexdigest(),
        **more,
        **plain,
    }


def file_sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal.

    Raises:
        InputError: The file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    return digest.hexdigest()


def check_folder(folder: Path, schema: str) -> None:
    """Refuse a folder in which a run of a schema cannot be written.

    Raises:
        InputError: It is a file, holds a run of another schema, or cannot be written to.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"-o {folder}: is a file: give a folder")
    if (folder / SUMMARY).exists():
        try:
            there = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))["schema"]
        except (OSError, ValueError, KeyError, TypeError):
            there = "something else"
        if there != schema:
            raise InputError(
                f"-o {folder}: has a summary of '{there}', not of '{schema}': give another folder"
            )
    nearest = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    try:
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        raise InputError(f"-o {folder}: {nearest}: {error.strerror}") from None


def write(folder: Path, files: Mapping[str, Row | Sequence[Row]]) -> None:
    """Write objects as .json and rows as .csv; a folder without the summary holds no run.

    Files are renamed to their final names after all are written, the summary last. So an
    interrupted write leaves no mixture of two runs.

    Raises:
        InputError: The folder cannot be written to.
    """
    texts = {
        name: _as_csv(value)
        if isinstance(value, Sequence)
        else json.dumps(value, indent=1, allow_nan=False)
        for name, value in files.items()
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as parts:  # which get their names in the opposite order
            for name in sorted(files, key=SUMMARY.__ne__):
                part = parts.enter_context(write_whole(folder / name))
                part.write_text(texts[name].rstrip("\n") + "\n", encoding="utf-8")
            (folder / SUMMARY).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}") from None


def labels(folders: Sequence[Path]) -> list[str]:
    """Return a unique name for each folder: the shortest end of its path that no other has.

    Raises:
        InputError: A folder is given twice.
    """
    paths = [folder.resolve().parts for folder in folders]
    found = []
    for i, path in enumerate(paths):
        others = [*paths[:i], *paths[i + 1 :]]
        if path in others:
            raise InputError(f"{folders[i]}: is given twice")
        unique = (n for n in range(1, len(path)) if all(each[-n:] != path[-n:] for each in others))
        found.append("/".join(path[-next(unique, len(path)) :]))
    return found


def _as_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _check_kind(where: str, value: object, kind: str) -> None:
    """Require a value of a kind: "text", "number", "positive"; " or nothing" makes it optional."""
    if kind.endswith(" or nothing") and value in (None, ""):
        return
    kind = kind.removesuffix(" or nothing")
    if kind == "text":
        if not isinstance(value, str):
            raise InputError(f"{where}: is {value!r}: must be text")
        return
    number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    least = "above 0" if kind == "positive" else "finite"
    if not number or (kind == "positive" and not value > 0):  # type: ignore[operator]
        raise InputError(f"{where}: is {value!r}: must be a number, {least}")


def read_summary(folder: Path, schemas: Mapping[str, Fields]) -> Row:
    """Return the summary of the run in a folder.

    Args:
        folder: The folder.
        schemas: The allowed schemas, each with its required fields and their kinds.

    Raises:
        InputError: There is no summary, its schema is not allowed, or a field is missing or bad.
    """
    path = folder / SUMMARY
    try:
        summary: Row = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise InputError(f"{path}: is not JSON") from None
    if not isinstance(summary, dict) or summary.get("schema") not in schemas:
        named = " or ".join(f"'{schema}'" for schema in schemas)
        raise InputError(f"{path}: must be of the schema {named}")
    for name, kind in schemas[summary["schema"]].items():
        _check_kind(f"{path}: '{name}'", summary.get(name), kind)
    return summary


def read_rows(folder: Path, name: str, columns: Fields) -> list[dict[str, Any]]:
    """Return the rows of a table of the run in a folder; numeric values are converted.

    Raises:
        InputError: There are no rows, or one of `columns` is missing or of another kind.
    """
    path = folder / name
    try:
        rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    if not rows or any(None in row or None in row.values() for row in rows):
        raise InputError(f"{path}: must be a table with a header and rows of equal length")
    found = [{key: _number(value) for key, value in row.items()} for row in rows]
    for i, row in enumerate(found, 2):
        for column, kind in columns.items():
            _check_kind(f"{path}: line {i}: '{column}'", row.get(column, "missing"), kind)
    return found


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
