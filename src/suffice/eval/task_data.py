"""Rows of multiple-choice data sets: from a hub, or from JSON lines in a folder.

A folder has, for a task such as `arc_easy`, a file `arc_easy.jsonl` with one row a line, whose
fields are those of the hub. If there is a file of labels beside it, `arc_easy-labels.lst`, its
lines are the rows' field `label`; PIQA is distributed like that, and its files may also be called
`piqa-valid.jsonl` and `piqa-valid-labels.lst`.
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
    """A row of a data set, and where it stands; a dot in a name leads into a field.

    The methods raise InputError for a field that is missing or of another kind.
    """

    place: str
    fields: Mapping[str, Any]

    def text(self, name: str) -> str:
        """Return a field that is a text."""
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
        """Return which of some labels a field is, as a text or a number."""
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
        InputError: The data set is not to be had, or is damaged.
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
    """Return rows with the labels that a file beside theirs has, if there is one."""
    beside = path.with_name(f"{path.stem}-labels.lst")
    if not beside.is_file():
        return rows
    labels = read(beside).split()
    if len(labels) != len(rows):
        raise InputError(
            f"{beside} has {len(labels)} labels, but {path.name} has {len(rows)} rows: they must "
            "be as many"
        )
    for row in rows:
        if "label" in row.fields:
            raise row.wrong("label", f"is given twice: {beside.name} has labels too")
    return [
        Row(row.place, {**row.fields, "label": label})
        for row, label in zip(rows, labels, strict=True)
    ]
