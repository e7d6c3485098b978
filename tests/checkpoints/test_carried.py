"""A calibration in a model's config.json: nothing else changes, and runs of the model find it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_reference import load
from suffice import LLM
from suffice.attention.calibration import FIELD, Calibration, default_path, write
from suffice.checkpoints.carried import carried, carry, without
from suffice.checkpoints.files import configured, fingerprint
from suffice.engine.config import Config
from suffice.errors import InputError

THRESHOLDS = [[None, 0.2], [0.2, None], [0.2, 0.2]]  # of the tiny model: 3 layers, 2 heads


def calibration(hash: str, threshold: float = 0.2) -> dict[str, Any]:
    thresholds = [[each and threshold for each in layer] for layer in THRESHOLDS]
    part = {"options": {"globals": 0}, "thresholds": thresholds, "made": {"machine": "mine"}}
    return {
        "schema": 2,
        "model": {"name": "m", "hash": hash, "heads": 4},
        "softmax": {"codebooks": "large"},
        "attention": {"aet": part},
    }


@pytest.mark.parametrize(
    "text",
    [
        '{\n  "model_type": "llama",\n  "rope": {"a": [1, 2]}\n}\n',
        '{"model_type":"llama","x":null}',
        '\r\n{\r\n\t"a" : "},{\\"",\r\n\t"b":\t-1.5e3 }\r\n\r\n',
        '{"é": "ü", "n": {"suffice_calibration": 1}, "s": "suffice_calibration"}',
    ],
)
def test_nothing_else_in_the_configuration_changes(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode())
    for threshold in (0.2, 0.3):
        carry(tmp_path, calibration("ab", threshold))
        assert without(path.read_bytes()) == text.encode()
        plain = json.loads(path.read_bytes())
        stored = plain.pop(FIELD)
        assert plain == json.loads(text)
        assert stored["attention"]["aet"]["thresholds"][0] == [None, threshold]
        assert "made" not in stored["attention"]["aet"] and "softmax" not in stored
    found = carried(tmp_path)
    assert found is not None and (found.name, found.model_hash) == ("config.json", "ab")
    assert [each.name for each in tmp_path.iterdir()] == ["config.json"]


def test_the_field_is_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{\n  "a": 1,\n  "b": 2\n}\n')
    carry(tmp_path, calibration("ab"))
    lines = path.read_text().split("\n")
    assert lines[:3] == ["{", '  "a": 1,', '  "b": 2,'] and lines[4:] == ["}", ""]
    assert lines[3].startswith('  "suffice_calibration": {"schema": 2, "model": ')


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f'{{"{FIELD}": [1], "a": 2}}', {"a": 2}),
        (f'{{"a": 2, "{FIELD}": {{"b": 1}}, "c": 3}}', {"a": 2, "c": 3}),
        (f'{{"{FIELD}": 1}}', {}),
    ],
)
def test_a_field_that_others_have_moved(text: str, left: dict[str, Any]) -> None:
    assert json.loads(without(text.encode())) == left


@pytest.mark.parametrize("raw", [b"", b"suffice_calibration", b'{"suffice_calibration": ', b"\xff"])
def test_what_is_no_configuration_stays(raw: bytes) -> None:
    assert without(raw) == raw


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": 1}')

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match=r"config.json: cannot be written: No space left"):
        carry(tmp_path, calibration("ab"))
    assert path.read_text() == '{"a": 1}' and len([*tmp_path.iterdir()]) == 1


@pytest.fixture
def model(checkpoint: Path, tmp_path: Path) -> Path:
    """A model that carries thresholds."""
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    before = fingerprint(folder)
    carry(folder, calibration(before))
    assert fingerprint(folder) == before
    return folder


ASKED: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "attention": "aet:calibrated"}


def used(llm: LLM) -> Calibration:
    assert llm.config.calibration is not None
    return llm.config.calibration


def test_the_engine_takes_it(model: Path) -> None:
    own = used(LLM(model, **ASKED))
    assert own.name == "config.json" and own.attention["aet"].by_head[0] == (None, (0.2,))
    assert LLM(model, **{**ASKED, "attention": "aet"}).config.calibration is None
    with pytest.raises(InputError, match=r"config.json: has no thresholds of attention 'art'"):
        LLM(model, **{**ASKED, "attention": "art:calibrated"})


def test_a_file_comes_first(model: Path, tmp_path: Path) -> None:
    stored = calibration(fingerprint(model), 0.4)
    del stored["softmax"]
    given = tmp_path / "given.json"
    write(given, stored)
    assert used(LLM(model, **ASKED, calibration=given)).name == "given.json"
    write(default_path(model), stored)
    assert used(LLM(model, **ASKED)).name == "suffice-calibration.json"


def test_one_of_another_model_is_refused(model: Path) -> None:
    path = model / "config.json"
    path.write_text(path.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))
    with pytest.raises(InputError, match=r"^calibration config.json: is of m with hash .* but "):
        LLM(model, **ASKED)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"schema": 1}, "has schema 1; 2 is known: calibrate again"),
        ({"schema": 2}, "is no JSON of `suffice calibrate`"),
        ([], "is no JSON of `suffice calibrate`"),
    ],
)
def test_a_damaged_one_is_refused(field: Any, message: str, model: Path) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {FIELD: field}))
    with pytest.raises(InputError, match=f"config.json: {message}"):
        LLM(model, **ASKED)


def test_a_model_of_transformers_takes_it(model: Path, checkpoint: Path) -> None:
    import suffice.integrations.transformers as st

    small, options = load(model, torch.float32), {"attention": "aet:calibrated"}
    with st.enable(small, **options) as enabled:
        assert enabled._settings.config.calibration.name == "config.json"
    assert small.config.suffice_calibration["model"]["name"] == "m", "which it would save again"
    small.config._name_or_path = small.name_or_path = ""
    with pytest.raises(InputError, match="aet:calibrated: needs a calibration of the model"):
        st.enable(small, **options)
    with st.enable(small, **options, checkpoint=model) as enabled:
        assert enabled._settings.config.calibration.name == "config.json"
    with pytest.raises(InputError, match="aet:calibrated: needs a calibration of the model"):
        st.enable(small, **options, checkpoint=checkpoint)


def test_a_repository_in_the_hub_s_cache(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert configured("some/model") is None
    assert Config.create("some/model", attention="aet").calibration is None
    kept = tmp_path / "hub" / "models--some--model"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("c0ffee")
    shutil.copytree(model, kept / "snapshots" / "c0ffee")
    assert configured("some/model") == kept / "snapshots" / "c0ffee"
    found = Config.create("some/model", attention="aet:calibrated").calibration
    assert found is not None and found.name == "config.json"
