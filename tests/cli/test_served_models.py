"""Which models a server has: served_models.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import Cli, complaint
from suffice.cli.served_models import models_in
from suffice.errors import InputError
from suffice.serve import run
from suffice.serve.settings import Settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small.gguf").write_bytes(b"GGUF")
    (tmp_path / "notes.txt").write_text("x")
    for name in ("big", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "big/config.json").write_text("{}")
    return tmp_path


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings with which a server would start."""
    found: list[Settings] = []

    def serve(several: list[Settings]) -> int:
        found.extend(several)
        return 0

    monkeypatch.setattr(run, "serve", serve)
    return found


def test_the_models_of_a_folder(folder: Path) -> None:
    assert models_in(folder) == {"big": folder / "big", "small": folder / "small.gguf"}
    with pytest.raises(InputError, match=r"has no \.gguf file, and no folder with a config\.json"):
        models_in(folder / "empty")
    with pytest.raises(InputError, match=r"--models-dir .*: No such file"):
        models_in(folder / "none")


def test_what_a_download_left_is_no_model(folder: Path) -> None:
    (folder / ".half.gguf").write_bytes(b"GGUF")
    (folder / ".cache").mkdir()
    (folder / ".cache/config.json").write_text("{}")
    for number in (1, 3):
        (folder / f"split-0000{number}-of-00003.gguf").write_bytes(b"GGUF")
    assert set(models_in(folder)) == {"big", "small"}
    (folder / "split-00002-of-00003.gguf").write_bytes(b"GGUF")
    assert models_in(folder)["split"] == folder / "split-00001-of-00003.gguf"
    (folder / "big.gguf").write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"big\.gguf and the folder big have the name 'big' in"):
        models_in(folder)


def test_a_folder_that_goes_is_no_hub_id(
    cli: Cli, folder: Path, given: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    cli("serve", "-m", f"{folder.name}/big", "--keep-alive", "24h")
    assert given[0].options["model"] == str(folder / "big") and given[0].names[0] == "big"
    assert given[0].kept_seconds == 86400


def test_models_are_given_by_flags_by_place_or_as_a_folder(
    cli: Cli, folder: Path, given: list[Settings]
) -> None:
    one, other = str(folder / "big"), str(folder / "small.gguf")
    for arguments in (("-m", one, "-m", other), (one, other)):
        given.clear()
        cli("serve", *arguments, "--max-loaded", "1", "--keep-alive", "60")
        assert [each.model for each in given] == [one, other]
        assert [each.names for each in given] == [("big", one), ("small", other)]
        assert [each.options["model"] for each in given] == [one, other]
        assert {each.max_loaded for each in given} == {1} and given[0].kept_seconds == 60
    given.clear()
    cli("serve", "-m", one, "--models-dir", str(folder))
    assert [each.names for each in given[1:]] == [("big",), ("small",)]
    given.clear()
    other_folder = folder / "empty"
    (other_folder / "more.gguf").write_bytes(b"GGUF")
    cli("serve", "--models-dir", str(folder), "--models-dir", str(other_folder))
    assert [each.names for each in given] == [("big",), ("small",), ("more",)]
    given.clear()
    cli("serve", "-m", other, "--alias", "mine")
    assert [each.names for each in given] == [("mine",)]


def test_what_is_of_one_model_is_refused_for_several(cli: Cli, folder: Path) -> None:
    models = ("-m", str(folder / "big"), "-m", str(folder / "small.gguf"))
    for flags in (
        ("--alias", "x"),
        ("--adapter", f"x={folder}"),
        ("--tokenizer", str(folder)),
        ("--merge-adapter", str(folder)),
    ):
        said = complaint(cli("serve", *models, *flags))
        assert said == f"{flags[0]}: is for one model, and several are served"


def test_two_models_of_one_name_are_refused(cli: Cli, folder: Path) -> None:
    twice = ("-m", str(folder / "big"), "--models-dir", str(folder))
    said = complaint(cli("serve", *twice, "--port", "0"))
    assert "have the name 'big' in common" in said and said.startswith("-m: the models ")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--max-loaded", "0"), "must be a whole number of at least 1"),
        (("--keep-alive", "5x"), "must be seconds, or a time such as 5m"),
        (("-m", "nothing"), "unknown model 'nothing'"),
    ],
)
def test_bad_values_are_one_line(
    cli: Cli, folder: Path, flags: tuple[str, str], message: str
) -> None:
    assert message in complaint(cli("serve", "-m", str(folder / "big"), *flags))
