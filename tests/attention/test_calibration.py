"""Calibrations as files: what is read back, and what is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from suffice.attention.calibration import Thresholds, plain_level, read, write
from suffice.attention.exaq import EXAQ
from suffice.attention.exaq_km import EXAQKM
from suffice.attention.levels import Levels
from suffice.errors import InputError

LEVELS = {
    bits: {
        "borders": [-3 + 2 * i / 2**bits for i in range(1, 2**bits)],
        "weights": [(i + 1) / 2**bits for i in range(2**bits)],
    }
    for bits in (2, 3, 4)
}
GOOD: dict[str, Any] = {
    "model": {"name": "m", "hash": "ab12", "heads": 2},
    "softmax": {
        "layers": [{"sigma": 2.0, "least": -20.0}, {"sigma": 3.0, "least": -4.0}],
        "codebooks": {str(bits): [[levels] * 2] * 2 for bits, levels in LEVELS.items()},
        "clips": {
            tail: {str(bits): [[-clip, -4.0]] * 2 for bits in LEVELS}
            for tail, clip in (("clip", 8.0), ("flush", 6.0))
        },
    },
    "attention": {
        "aet": {"options": {"values": 0.01}, "thresholds": [[0.9], [None]]},
        "tiers": {"options": {}, "thresholds": [[[0.5, 0.001]], [[0.75, 0.0]]]},
    },
    "policy": {"of": "a later version"},
}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    write(path, GOOD)
    assert [each.name for each in tmp_path.iterdir()] == ["m.json"]
    found = read(path)
    assert (found.name, found.model, found.heads) == ("m.json", "m", 2)
    levels = EXAQ(2).levels(found)
    assert [len(layer) for layer in levels] == [2, 2]
    assert levels[0][0] == EXAQ(2).layer_levels(2.0, -20.0)
    assert levels[1][0].weights[0] == pytest.approx(2.718281828**-4), "clipped at the least"
    assert EXAQKM(2).levels(found)[1][1] == Levels((-2.5, -2.0, -1.5), (0.25, 0.5, 0.75, 1.0))
    for tail, clip in (("clip", -8.0), ("flush", -6.0)):
        fit = EXAQ(3, clip="fit", tail=tail)
        assert fit.levels(found)[1][0] == fit.levels_of_clip(clip)
    assert EXAQKM(2, tail="flush").levels(found)[0][0].weights == (0, 0.5, 0.75, 1)
    assert found.attention["aet"] == Thresholds({"values": 0.01}, (((0.9,),), (None,)))
    assert found.attention["tiers"] == Thresholds({}, (((0.5, 0.001),), ((0.75, 0.0),)))
    plain = [[plain_level(each) for each in layer] for layer in found.attention["aet"].by_head]
    assert plain == GOOD["attention"]["aet"]["thresholds"]
    found.check("m", "ab12")
    with pytest.raises(InputError) as error:
        found.check("other", "cd34")
    assert str(error.value) == (
        "calibration m.json: is of m with hash ab12, but other has hash cd34: calibrate it with "
        "`suffice calibrate -m other`"
    )
    with pytest.raises(InputError, match=r"`suffice calibrate -m other --merge-adapter own`$"):
        found.check("other", "cd34", "own")


def without(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(stored: dict[str, Any]) -> None:
        *parents, last = path
        for each in parents:
            stored = stored[each]
        del stored[last]

    return change


def put(value: Any, *path: Any) -> Callable[[dict[str, Any]], None]:
    def change(stored: dict[str, Any]) -> None:
        *parents, last = path
        for each in parents:
            stored = stored[each]
        stored[last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        without("model"),
        without("softmax", "layers"),
        without("softmax", "codebooks", "3"),
        put([], "softmax", "layers"),
        put(0.0, "softmax", "layers", 0, "sigma"),
        put(float("nan"), "softmax", "layers", 0, "sigma"),
        put(1.0, "softmax", "layers", 0, "least"),
        without("softmax", "clips"),
        without("softmax", "clips", "flush"),
        put([[-8.0] * 3] * 2, "softmax", "clips", "clip", "2"),
        put([[0.5, -8.0]] * 2, "softmax", "clips", "clip", "3"),
        put([[LEVELS[2]] * 2] * 2, "softmax", "codebooks", "3"),
        put([[LEVELS[2]] * 2], "softmax", "codebooks", "2"),
        put([-1.0, -2.0, -3.0], "softmax", "codebooks", "2", 0, 0, "borders"),
        put([-0.1, 0.2, 0.3, 1.0], "softmax", "codebooks", "2", 0, 0, "weights"),
        put([0.0, 0.0, 0.0, 0.0], "softmax", "codebooks", "2", 0, 0, "weights"),
        put([0.1, 0.2, float("nan"), 1.0], "softmax", "codebooks", "2", 0, 0, "weights"),
        put("x", "model", "heads"),
        put([[0.9], [0.9, 0.8]], "attention", "aet", "thresholds"),
        put([[float("nan")]], "attention", "aet", "thresholds"),
        put([], "attention", "aet", "thresholds"),
        put([[[0.5, 0.001]], [[0.5]]], "attention", "tiers", "thresholds"),
        put([[[], []]], "attention", "tiers", "thresholds"),
        put([[[0.5, float("inf")]]], "attention", "tiers", "thresholds"),
        without("attention", "aet", "options"),
        put(float("inf"), "model", "heads"),
        put({"window": float("inf")}, "softmax", "text"),
        put([[10**400]], "attention", "aet", "thresholds"),
    ],
)
def test_what_is_no_calibration(change: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    stored = copy.deepcopy(GOOD)
    change(stored)
    write(tmp_path / "m.json", stored)
    with pytest.raises(InputError, match=r"m\.json: is no JSON of `suffice calibrate`"):
        read(tmp_path / "m.json")


def test_whoever_may_read_files_may_read_it(tmp_path: Path) -> None:
    write(tmp_path / "m.json", GOOD)
    (tmp_path / "usual").touch()
    assert (tmp_path / "m.json").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    with pytest.raises(InputError, match=r"m\.json: cannot be read: No such file"):
        read(path)
    for content in (b"{", b"[]", b"\xff\xfe", b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(InputError, match="is no JSON of"):
            read(path)
    path.write_text(json.dumps(GOOD | {"schema": 7}))
    with pytest.raises(InputError, match="has schema 7; 2 is known: calibrate again"):
        read(path)
    with pytest.raises(InputError, match="cannot be written: No such file"):
        write(tmp_path / "missing" / "m.json", GOOD)
