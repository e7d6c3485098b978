"""Reads and checks result files for a report, so that the plots can rely on their fields."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from suffice.errors import InputError, unknown
from suffice.eval.record import SCHEMA

EVALUATIONS = ("longbench", "perplexity", "ruler", "speed", "tasks")
ROWS = ("key_rows_read", "value_rows_read", "rows_held")  # of a trace, lists [L][H]

Fields = Mapping[str, tuple[type, ...]]

_NUMBER = (int, float)
_FACTS: Fields = {
    "date": (str,),
    "command": (str,),
    "commit": (str, type(None)),
    "modified": (bool, type(None)),
    "machine": (dict,),
    "versions": (dict,),
}
_EVALUATION: Fields = {"config": (dict,), "asked": (dict,), "result": (dict,)}
_READS: Fields = {
    "steps": _NUMBER,
    "kv_bytes_read": _NUMBER,
    "kv_bytes_held": _NUMBER,
    "weight_bytes_read": _NUMBER,
}
_BENCH: Fields = {
    "version": (str,),
    "model": (str,),
    "weights": (str,),
    "kv": (str,),
    "threads": (int,),
    "batch": (int,),
    "test": (str,),
    "n_depth": _NUMBER,
    "tokens_per_second": _NUMBER,
    "deviation": _NUMBER,
}
_PEER: Fields = {"label": (str,), "against": (str,)}
_SPEED: Fields = {"tokens_per_second": _NUMBER}


@dataclass(frozen=True)
class Entry:
    """One result file.

    `kind` is one of EVALUATIONS, or `bench` (a list of flat records, under "rows"), `peers`, or
    `benchmark` for the result of any other script.
    """

    number: int  # in the report, from 1
    file: str  # name shown to readers
    kind: str
    data: Mapping[str, Any]

    @property
    def config(self) -> Mapping[str, Any]:
        """The engine's configuration; empty if the file has none."""
        config: Mapping[str, Any] = self.data.get("config", {})
        return config


def read(paths: Sequence[Path]) -> list[Entry]:
    """Return the results in files, and in all .json files of folders, each file once.

    A file with several records, by name under "records", gives one result per record.

    Raises:
        InputError: There is no file, or a file is not a result that this version understands.
    """
    found: dict[Path, str] = {}
    for path in paths:
        for file, name in _files(path):
            found.setdefault(file.resolve(), name)
    results = [each for file, name in found.items() for each in _results(file, name)]
    return [
        _entry(number, file, name, data)
        for number, (file, name, data) in enumerate(results, start=1)
    ]


def _results(file: Path, name: str) -> list[tuple[Path, str, Any]]:
    data = _json(file)
    records = data.get("records") if isinstance(data, dict) else None
    if not isinstance(records, dict):
        return [(file, name, data)]
    return [(file, f"{name}: {each}", record) for each, record in records.items()]


def _files(path: Path) -> list[tuple[Path, str]]:
    if not path.is_dir():
        return [(path, path.name)]
    files = sorted(path.rglob("*.json"))
    if not files:
        raise InputError(f"{path} has no .json file: give result files or folders with some")
    return [(file, file.relative_to(path).as_posix()) for file in files]


def _entry(number: int, file: Path, name: str, data: Any) -> Entry:
    if isinstance(data, list):
        _check_bench(data, file)
        return Entry(number, name, "bench", {"rows": data})
    if not isinstance(data, dict) or "schema" not in data:
        raise InputError(
            f"{file} is no result: it is neither a record with a 'schema' nor a list printed by "
            "`suffice bench -o json`"
        )
    if data["schema"] != SCHEMA:
        raise InputError(
            f"{file} has schema {data['schema']!r:.40}, this version reads {SCHEMA}: make the "
            "result again, or use the version that made it"
        )
    _require(data, _FACTS, str(file))
    kind = data.get("kind", "peers" if "peers" in data else "benchmark")
    if "kind" in data:
        _check_evaluation(data, file)
    elif kind == "peers":
        _check_peers(data, file)
    return Entry(number, name, kind, data)


def _whole(digits: str) -> int:
    if len(digits) > 18:
        raise InputError(f"a number of {len(digits)} digits")
    return int(digits)


def _json(file: Path) -> Any:
    try:
        data = json.loads(file.read_text(encoding="utf-8"), parse_int=_whole)
        json.dumps(data, ensure_ascii=False).encode()  # fails on lone surrogates
        return data
    except InputError as error:
        raise InputError(f"{file}: has {error}, more than any measurement") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"{file} is not JSON, or not all of it: {error.msg} in line {error.lineno}"
        ) from None
    except (UnicodeError, RecursionError):
        raise InputError(
            f"{file} is not JSON: it is not valid text (UTF-8), or is nested too deep"
        ) from None


def _check_bench(rows: list[Any], file: Path) -> None:
    if not rows:
        raise InputError(f"{file} is an empty list: it has no result")
    for at, row in enumerate(rows, start=1):
        _require(row, _BENCH, f"{file}: record {at}")


def _check_evaluation(data: Mapping[str, Any], file: Path) -> None:
    if data["kind"] not in EVALUATIONS:
        raise unknown(f"kind of result in {file},", str(data["kind"])[:40], EVALUATIONS)
    _require(data, _EVALUATION, str(file))
    if data.get("reads") is None:
        return
    _require(data["reads"], _READS, f"{file}: reads")
    shapes = {_shape(data["reads"].get(name)) for name in ROWS}
    if len(shapes) > 1 or None in shapes:
        raise InputError(f"{file}: reads: {', '.join(ROWS)} must be numbers by layer and head")


def _shape(rows: Any) -> tuple[int, ...] | None:
    """Return the shape of lists [L][H] of numbers; None if they are something else."""
    try:
        array = np.asarray(rows)
    except ValueError:  # ragged
        return None
    good = array.ndim == 2 and array.size > 0 and array.dtype.kind in "iuf"
    return array.shape if good and np.isfinite(array).all() else None


def _check_peers(data: Mapping[str, Any], file: Path) -> None:
    _require(data, {"peers": (dict,)}, str(file))
    for peer, section in data["peers"].items():
        where = f"{file}: {peer}"
        _require(section, _PEER, where)
        _require(section, {"cases": (dict,)} if "cases" in section else {}, where)
        for case, rounds in section.get("cases", {}).items():
            _require({"rounds": rounds}, {"rounds": (list,)}, f"{where}: {case}")
            for each in rounds:
                _require(each, {"ours": (dict,), "peer": (dict,)}, f"{where}: {case}")
                _require(each["ours"], _SPEED, f"{where}: {case}: ours")
                _require(each["peer"], _SPEED, f"{where}: {case}: peer")


def _require(data: Any, fields: Fields, where: str) -> None:
    """Require a mapping that has all fields, each of its type."""
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: is no JSON object")
    for name, kinds in fields.items():
        if name not in data:
            raise InputError(f"{where}: '{name}' is missing")
        value = data[name]
        unfit = isinstance(value, bool) and bool not in kinds
        unfit |= isinstance(value, float) and not math.isfinite(value)
        if unfit or not isinstance(value, kinds):
            raise InputError(f"{where}: '{name}' has the invalid value {json.dumps(value):.40}")
