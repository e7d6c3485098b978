"""Rows of multiple-choice data sets: from a hub, or from JSON lines in a folder.

For a task such as `arc_easy`, the folder has a file `arc_easy.jsonl` with one row per line, with
the fields of the hub's rows. If there is also a file `arc_easy-labels.lst`, its lines are the field
`label` of the rows. PIQA is distributed this way; its files may also be named `piqa-valid.jsonl`
and `piqa-valid-labels.lst`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suffice.errors import InputError
from suffice.eval.texts import fetch, json_value, read

Hub = tuple[str, str | None, str]  # path, configuration, split


@dataclass(frozen=True)
class Row:
    """A row of a data set and its place, for errors; a dot in a name separates nested fields.

    The methods raise InputError for a field that is missing or has another type.
    """

    place: str
    fields: Mapping[str, Any]

    def text(self, name: str) -> str:
        """Return a text field."""
        value = self._field(name)
        if not isinstance(value, str):
            raise self.wrong(name, "must be a text")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a field that is a list of texts."""
        value = self._field(name)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.wrong(name, "must be a list of texts")
        return value

    def index(self, name: str, among: Sequence[str]) -> int:
        """Return the index of a field's value among some labels; it may be text or a number."""
        field, labels = self._field(name), list(among)
        value = str(int(field) if isinstance(field, bool) else field).strip()
        if value not in labels:
            raise self.wrong(name, f"is '{value}', but must be one of {', '.join(labels)}")
        return labels.index(value)

    def wrong(self, name: str, what: str) -> InputError:
        """Build the error for a field."""
        return InputError(f"{self.place}: the field '{name}' {what}")

    def _field(self, name: str) -> Any:
        value: Any = self.fields
        for part in name.split("."):
            if not isinstance(value, Mapping) or part not in value:
                raise self.wrong(name, "is missing")
            value = value[part]
        return value


def load_rows(name: str, hub: Hub, files: Sequence[str], data_dir: str | None) -> list[Row]:
    """Return the rows of a data set; `files` are its possible names in a folder.

    Raises:
        InputError: The data set is not available, or is damaged.
    """
    if data_dir is None:
        rows = fetch(name, hub, files[0])
        return [Row(f"{name}, row {number}", row) for number, row in enumerate(rows, 1)]
    for file in files:
        if (path := Path(data_dir) / file).is_file():
            return _labelled(path, _json_lines(path))
    raise InputError(f"--data-dir {data_dir} has no {' or '.join(files)}: put the rows there")


def _json_lines(path: Path) -> list[Row]:
    lines = read(path).split("\n")
    numbered = ((f"{path}, line {number}", line) for number, line in enumerate(lines, 1))
    return [_row(place, line) for place, line in numbered if line.strip()]


def _row(place: str, line: str) -> Row:
    fields = json_value(place, line)
    if not isinstance(fields, dict):
        raise InputError(f"{place}: is not a JSON object")
    return Row(place, fields)


def _labelled(path: Path, rows: list[Row]) -> list[Row]:
    """Return rows with labels from the file of labels in the same folder, if there is one."""
    labels_path = path.with_name(f"{path.stem}-labels.lst")
    if not labels_path.is_file():
        return rows
    labels = read(labels_path).split()
    if len(labels) != len(rows):
        raise InputError(
            f"{labels_path} has {len(labels)} labels, but {path.name} has {len(rows)} rows: there "
            "must be one per row"
        )
    for row in rows:
        if "label" in row.fields:
            raise row.wrong("label", f"is given twice: {labels_path.name} has labels too")
    return [
        Row(row.place, {**row.fields, "label": label})
        for row, label in zip(rows, labels, strict=True)
    ]
