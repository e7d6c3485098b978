"""Thresholds of a calibration: each head does what its own says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffice import LLM, SamplingParams
from suffice.attention import ATTENTIONS
from suffice.attention.aet import AET
from suffice.attention.by_head import applied, check, rules
from suffice.attention.calibration import Calibration, Thresholds, default_path, write
from suffice.checkpoints.files import fingerprint
from suffice.errors import InputError

PROMPT = {"prompt_token_ids": list(range(3, 203))}
SAMPLING = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def thresholds(level: float) -> list[list[float | None]]:
    """Return a level for some heads of the tiny model, which has 3 layers of 2."""
    return [[None, level], [level, None], [level, level]]


THRESHOLDS = thresholds(0.2)


def stored(model: Path, technique: str, options: dict[str, Any], thresholds: Any) -> dict[str, Any]:
    part = {"options": options, "thresholds": thresholds}
    return {
        "model": {"name": "m", "hash": fingerprint(model), "heads": 4},
        "attention": {technique: part},
    }


@pytest.mark.parametrize(
    ("technique", "options", "level"),
    [
        ("aet", {"values": 0.0, "globals": 0}, 0.2),
        ("art", {"angle": 2, "patience": 1, "block": 16}, 0.2),
        ("certified", {}, 0.2),
        ("skip_softmax", {"block": 16}, 190.0),
        ("tiers", {"skip": 0.001}, 0.2),
    ],
)
def test_protected_heads_read_everything_and_others_do_not(
    technique: str, options: dict[str, Any], level: float, checkpoint: Path, tmp_path: Path
) -> None:
    path = tmp_path / "found.json"
    write(path, stored(checkpoint, technique, options, thresholds(level)))
    llm = LLM(
        checkpoint,
        dtype="float32",
        max_model_len=512,
        attention=f"{technique}:calibrated",
        calibration=path,
    )
    llm.generate([PROMPT], SAMPLING)
    keys, values, held, *_ = llm.runner.trace.rows
    exact = np.array([[each is None for each in layer] for layer in THRESHOLDS])
    assert (keys == held)[exact].all() and (values == held)[exact].all()
    assert (values < held)[~exact].all()
    assert (keys < held)[~exact].all() or technique == "skip_softmax"


def test_heads_skip_rows_by_their_own_share(checkpoint: Path, tmp_path: Path) -> None:
    path, read = tmp_path / "found.json", {}
    for name, skips in {"none": (0.0, 0.0), "one": (0.0, 0.02), "both": (0.02, 0.02)}.items():
        write(path, stored(checkpoint, "tiers", {}, [[[0.9, skip] for skip in skips]] * 3))
        asked = {"attention": "tiers:calibrated", "calibration": path, "max_model_len": 512}
        llm = LLM(checkpoint, dtype="float32", **asked)
        llm.generate([PROMPT], SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
        read[name] = llm.runner.trace.rows[4, 0].tolist()  # a step; later layers' queries differ
    assert read["one"] == [read["none"][0], read["both"][1]]
    assert read["both"][0] < read["none"][0] and read["both"][1] < read["none"][1]


def test_a_calibration_sets_all_options(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    options = {"skip": 0.001, "sample": 4, "delta": 0.1, "prompt": 0.25}
    write(path, stored(checkpoint, "tiers", options, THRESHOLDS))
    asked = {"attention": "tiers:calibrated", "calibration": path, "max_model_len": 512}
    llm = LLM(checkpoint, dtype="float32", **asked)
    assert llm.runner.trace.confidence == 0.9
    assert llm.runner.tiled and llm.config.technique.unread_in_prompts == 0.25
    write(path, stored(checkpoint, "art", {"order": "sketch", "block": 16}, THRESHOLDS))
    llm = LLM(checkpoint, dtype="float32", **asked | {"attention": "art:calibrated"})
    (output,) = llm.generate([PROMPT], SAMPLING)
    assert len(output.outputs[0].token_ids) == SAMPLING.max_tokens
    assert llm.runner.trace.sketch_bytes_read > 0


def test_it_is_found_next_to_the_model(checkpoint: Path) -> None:
    path = default_path(checkpoint)
    assert path == checkpoint / "suffice-calibration.json"
    assert default_path(Path("a/b.Q4_1.gguf")) == Path("a/b.Q4_1.calibration.json")
    write(path, stored(checkpoint, "aet", {}, [[0.9] * 2] * 3))
    try:
        llm = LLM(checkpoint, dtype="float32", max_model_len=512, attention="aet:calibrated")
        assert llm.config.calibration is not None
        assert llm.config.calibration.name == path.name
        assert LLM(checkpoint, max_model_len=512).config.calibration is None
    finally:
        path.unlink()


def calibration(thresholds: Any) -> Calibration:
    return Calibration("c.json", "m", "ab", 4, (), {}, {}, {"aet": Thresholds({}, thresholds)})


@pytest.mark.parametrize(
    ("spec", "found", "message"),
    [
        (
            "aet:calibrated",
            None,
            "attention=aet:calibrated: needs a calibration of the model: make one with `suffice "
            "calibrate --text FILE --budget 0.5% --attention aet`",
        ),
        (
            "certified:calibrated",
            calibration(((0.9,),)),
            "calibration c.json: has no thresholds of attention 'certified': make one with "
            "`suffice calibrate --text FILE --budget 0.5% --attention certified`",
        ),
        (
            "aet:calibrated,values=0.5",
            calibration(((0.9,),)),
            "aet: values=0.5 contradicts calibrated: the calibration sets all options",
        ),
        (  # as without it, but asked for
            "tiers:skip=0.0002,calibrated",
            calibration(((0.9,),)),
            "tiers: skip=0.0002 contradicts calibrated: the calibration sets all options",
        ),
    ],
)
def test_what_a_calibration_lacks(spec: str, found: Calibration | None, message: str) -> None:
    with pytest.raises(InputError) as error:
        check(ATTENTIONS.build(spec), found)
    assert str(error.value) == message


def test_objects_have_the_options_of_their_calibration() -> None:
    with pytest.raises(InputError, match=r"^aet: values=0\.5 contradicts calibrated"):
        check(AET(values=0.5, calibrated=True), calibration(((0.9,),)))


def test_thresholds_of_another_shape_or_out_of_range() -> None:
    technique = ATTENTIONS.build("aet:calibrated")
    with pytest.raises(InputError) as error:
        rules(technique, calibration(((0.9, 0.9),)), 3, 2)
    assert str(error.value) == (
        "calibration c.json: has 1 layers of 2 key/value heads: the model has 3 of 2"
    )
    with pytest.raises(InputError, match=r"^calibration c\.json: aet: keys=3: must be above 0"):
        rules(technique, calibration((((3,),),)), 1, 1)
    of_later = Calibration(
        "c.json", "m", "ab", 4, (), {}, {}, {"aet": Thresholds({"colour": 1}, ((None,),))}
    )
    with pytest.raises(InputError, match=r"^calibration c\.json: attention 'aet' has no option"):
        applied(technique, of_later)
    with pytest.raises(InputError) as error:
        rules(technique, calibration((((0.9, 0.5),),)), 1, 1)
    assert str(error.value) == (
        "calibration c.json: a head has 2 thresholds of aet, and its options leave open: keys"
    )


def test_an_allowed_technique_has_a_calibration_of_the_model(checkpoint: Path) -> None:
    """Requests cannot choose thresholds of another model, which the engine itself would refuse."""
    path = default_path(checkpoint)
    llm = LLM(checkpoint, dtype="float32", max_model_len=512)
    own = stored(checkpoint, "aet", {}, [[0.9] * 2] * 3)
    try:
        write(path, own)
        assert llm.runner.allow(llm.config.with_attention("aet:calibrated")) == 1
        write(path, own | {"model": own["model"] | {"hash": "deadbeef"}})
        with pytest.raises(InputError, match="with hash deadbeef, but"):
            llm.runner.allow(llm.config.with_attention("aet:calibrated"))
    finally:
        path.unlink()


def test_a_calibration_that_nothing_needs(checkpoint: Path, tmp_path: Path) -> None:
    write(tmp_path / "c.json", stored(checkpoint, "aet", {}, THRESHOLDS))
    with pytest.raises(InputError) as error:
        LLM(checkpoint, attention="aet", calibration=tmp_path / "c.json")
    assert str(error.value) == "calibration=c.json: softmax=exact and attention=aet need none"
    with pytest.raises(InputError) as error:
        LLM(checkpoint, softmax="exaq", calibration=tmp_path / "c.json")
    assert str(error.value) == (
        "calibration c.json: has no codebooks of a softmax: make one with `suffice calibrate`, "
        "without --budget"
    )
