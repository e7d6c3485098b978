"""GGUF files that are split into parts: gguf_file.py, parts.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

import tiny
from suffice.checkpoints.files import family_named, fingerprint, weight_files
from suffice.checkpoints.formats.gguf_file import GGUF
from suffice.checkpoints.open import open_checkpoint
from suffice.cli.served_models import models_in
from suffice.errors import InputError
from suffice.pull.parts import parts_of, stem_of


def split(source: Path, stem: Path, count: int = 3, *, twice: bool = False) -> list[Path]:
    """Split a file as `gguf-split` does: all metadata in the first part.

    `twice`: a tensor is also in the last part.
    """
    whole = GGUF.open(source)
    names, paths = list(whole.tensors), []
    for at in range(count):
        path = stem.with_name(f"{stem.name}-{at + 1:05}-of-{count:05}.gguf")
        writer = gguf.GGUFWriter(path, "llama")
        for key, value in whole.metadata.items() if at == 0 else ():
            if key.startswith("llama."):
                add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
                add(key, value)
        writer.add_uint16("split.no", at)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(names))
        again = names[:1] if twice and at == count - 1 else []
        for name in [*names[at::count], *again]:
            writer.add_tensor(name, np.ascontiguousarray(whole.load(name)))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(path)
    return paths


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return tiny.write_gguf(tiny.make(tmp_path / "tiny"), tmp_path / "whole.gguf")


@pytest.fixture
def parts(whole: Path, tmp_path: Path) -> list[Path]:
    folder = tmp_path / "split"
    folder.mkdir()
    return split(whole, folder / "big-F32")


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_checkpoint(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_parts_are_the_model(whole: Path, parts: list[Path]) -> None:
    one, other = open_checkpoint(whole), open_checkpoint(parts[0])
    assert one.config == other.config and one.names.keys() == other.names.keys()
    found = dict(other.tensors())
    for name, tensor in one.tensors():
        assert np.array_equal(found[name], tensor), name


def test_a_part_that_is_not_the_first_names_it(parts: list[Path]) -> None:
    assert refusal(parts[1]) == (
        f"{parts[1]} is a part of a split GGUF file: give its first, {parts[0].name}"
    )


def test_what_is_no_split_is_refused(parts: list[Path], whole: Path, tmp_path: Path) -> None:
    renamed = shutil.copy(parts[0], tmp_path / "other.gguf")
    assert "whose names must end with -00001-of-3.gguf" in refusal(Path(renamed))
    kept = parts[2].read_bytes()
    shutil.copy(parts[1], parts[2])
    assert refusal(parts[0]) == (
        f"{parts[2]} says that it is part 1 of 3, counted from 0; it must be 2 of 3"
    )
    shutil.copy(whole, parts[2])
    assert "says that it is part None of None" in refusal(parts[0])
    parts[2].unlink()
    assert refusal(parts[0]) == f"{parts[0]} is split into 3 parts; missing: {parts[2].name}"
    parts[2].write_bytes(kept)
    assert open_checkpoint(parts[0]).config.vocab == tiny.VOCABULARY


def test_a_tensor_of_two_parts_is_refused(whole: Path, tmp_path: Path) -> None:
    paths = split(whole, tmp_path / "twice", 2, twice=True)
    name = next(iter(GGUF.open(whole).tensors))
    assert refusal(paths[0]) == f"{paths[1]}: '{name}' is in an earlier part, too"


def test_all_parts_tell_models_apart(parts: list[Path]) -> None:
    assert weight_files(parts[0]) == parts
    assert family_named(parts[0]) == "llama" and family_named(parts[0].parent) == ""
    before = fingerprint(parts[0])
    data = bytearray(parts[2].read_bytes())
    data[-1] ^= 1
    parts[2].write_bytes(data)
    assert fingerprint(parts[0]) != before


def test_a_folder_shows_a_split_file_once(parts: list[Path]) -> None:
    assert models_in(parts[0].parent) == {"big-F32": parts[0]}


def test_names() -> None:
    assert parts_of("a.gguf") == ("a.gguf",)
    assert parts_of("x/a-00002-of-00002.gguf") == (
        "x/a-00001-of-00002.gguf",
        "x/a-00002-of-00002.gguf",
    )
    assert parts_of("a-00001-of-99999.gguf") == ("a-00001-of-99999.gguf",), "no such number"
    assert stem_of("a-00002-of-00002.gguf") == "a" and stem_of("a.gguf") == "a"
