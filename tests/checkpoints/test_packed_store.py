"""Packed weights on disk: the same bits, never required, and removed when they are too many.

Tests packed_file.py and packed_store.py.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import quantized_folders
import tiny
from benchmarks.harness import shaped_file
from quantized_folders import Program, gptq_said
from suffice import native
from suffice.checkpoints import leased, packed_file, packed_store
from suffice.checkpoints.files import fingerprint
from suffice.decoder.weights import DecoderWeights
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.engine.runner import Runner
from suffice.errors import InputError
from suffice.quant import QUANTS, PackedLinear, Quant
from suffice.quant.file import AsStored
from suffice.quant.int8 import Int8
from suffice_hw.kllm.design import Shape

# `kllm` needs a calibration of its inputs, and comes in files of `suffice quantize`.
METHODS = [name for name in QUANTS.names() if name != "kllm"]
SHAPE = Shape("t", layers=2, width=256, hidden=256, heads=4, kv_heads=2, vocabulary=320)
FOLDERS = {
    "gptq": Program(gptq_said(desc_act=True), {"act_order": True}),
    "fp8": Program({"quant_method": "fp8", "weight_block_size": [128, 128]}),
}
CASES = [("floats", name) for name in METHODS]
CASES += [(kind, None) for kind in (*shaped_file.TYPES, *FOLDERS)]
PROMPT = [5, 9, 77, 3, 120, 64, 7]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, into which weights of any size are kept."""
    found = tmp_path / "kept"
    monkeypatch.setattr(packed_store, "folder", lambda: found)
    monkeypatch.setattr(packed_store, "LEAST", 0)
    monkeypatch.setattr(packed_store, "LEAST_ROUNDED", 0)
    monkeypatch.setattr(packed_store, "LOWEST", 0)  # other tests run, too
    monkeypatch.setattr(leased, "AFTER", 0)
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def model(kind: str) -> Path:
        if kind not in made:
            path = tmp_path_factory.mktemp("model") / f"{kind}.gguf"
            if kind in shaped_file.TYPES:
                shaped_file.write(path, SHAPE, kind)
            else:
                path = tiny.make(path.parent, "llama-bias", tokenizer=True)
            if kind in FOLDERS:
                quantized_folders.write(path, FOLDERS[kind])
            for file in path.iterdir() if path.is_dir() else [path]:
                os.utime(file, (1e9, 1e9))  # before any change of what is packed
            made[kind] = path
        return made[kind]

    return model


def config_of(model: Path, **options: Any) -> Config:
    return Config.create(str(model), threads=2, **options)


def started(config: Config) -> Runner:
    """A model that was loaded, when all that is written has been written and settled."""
    runner = load(config)[1]
    for thread in threading.enumerate():
        if thread.name.startswith("packed"):
            thread.join()
    return runner


def without_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("weights are packed")

    monkeypatch.setattr(DecoderWeights, "from_checkpoint", refuse)


def logits(runner: Runner) -> np.ndarray:
    sequence = runner.open("x", 32)
    found = runner.prefill(sequence, PROMPT)
    runner.close(sequence)
    return found


def parts(runner: Runner) -> dict[str, Any]:
    """Each weight's fields, or its array."""
    return {
        name: {**vars(each), "class": type(each)} if isinstance(each, PackedLinear) else each
        for name, each in runner.decoder.weights.items()
    }


def same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            same(one[name], other[name])
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))
    else:
        assert one == other


@pytest.mark.parametrize("lease", [True, False])
@pytest.mark.parametrize(("kind", "method"), CASES)
def test_the_second_start_has_the_same_bits_and_packs_nothing(
    kind: str,
    method: str | None,
    lease: bool,
    models: Callable[[str], Path],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = config_of(models(kind), quantization=method)
    first = started(config)
    assert len(list(folder.iterdir())) == 1
    if not lease:
        monkeypatch.setattr(leased, "mapped", lambda descriptor, size: os.close(descriptor))
    without_packing(monkeypatch)
    second = started(config)
    same(parts(first), parts(second))
    np.testing.assert_array_equal(logits(first), logits(second))
    (path,) = folder.iterdir()
    os.truncate(path, 0)  # nobody needs it any more
    np.testing.assert_array_equal(logits(first), logits(second))


def cut(path: Path) -> None:
    keep_time(path, path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    keep_time(path, path.read_bytes() + b"\0")


def change_a_weight(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x55")


def change_the_description(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    keep_time(path, data)


def be_foreign(path: Path) -> None:
    keep_time(path, b"GGUF" + path.read_bytes()[4:])


def be_of_another_model(path: Path) -> None:
    """Leave a sound file whose weights are others."""
    origin = packed_file.Origin("another", int(path.stat().st_mtime))
    path.unlink()
    write(path, {"embed": np.zeros((3, 4), np.float32)}, origin)


def write(path: Path, weights: packed_file.Weights, origin: packed_file.Origin) -> None:
    with contextlib.closing(packed_file.Unfinished(path, weights, origin)) as file:
        file.finish()


def keep_time(path: Path, data: bytes) -> None:
    time = path.stat().st_mtime
    path.write_bytes(data)
    os.utime(path, (time, time))


@pytest.mark.parametrize(
    "damage",
    [cut, lengthen, change_a_weight, change_the_description, be_foreign, be_of_another_model],
)
def test_a_file_that_is_not_sound_is_replaced(
    damage: Callable[[Path], None], models: Callable[[str], Path], folder: Path
) -> None:
    config = config_of(models("Q4_0"))
    first = started(config)
    (path,) = folder.iterdir()
    sound = path.read_bytes()
    damage(path)
    assert path.read_bytes() != sound
    again = started(config)
    same(parts(first), parts(again))
    assert [each.read_bytes() for each in folder.iterdir()] == [sound]


def test_a_file_that_ends_while_it_is_read_is_no_weight(tmp_path: Path) -> None:
    path, origin = tmp_path / "x", packed_file.Origin("k", 1000)
    weights = {"embed": np.arange(40_000, dtype=np.float32)}
    write(path, weights, origin)

    def cutting(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        os.truncate(path, 5000)
        return np.empty(shape, dtype)

    with pytest.raises(InputError, match="was cut short"):
        packed_file.read(path, origin, cutting)


def no_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write_text("a file")


def no_space(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=100_000)
    monkeypatch.setattr(packed_store.shutil, "disk_usage", lambda path: usage)


def full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a piece be written, and half of the next one."""
    monkeypatch.setattr(packed_file, "WRITTEN", 100_000)
    pwrite = os.pwrite

    def fill(descriptor: int, data: memoryview, at: int) -> int:
        if at > 200_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, data[: len(data) // 2 + 1], at)

    monkeypatch.setattr(packed_file.os, "pwrite", fill)


def no_unnamed_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the file system be one of those, or the folder one for reading."""
    opened = os.open

    def open_(path: Any, flags: int, *mode: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return opened(path, flags, *mode)

    monkeypatch.setattr(packed_file.os, "open", open_)


def another_writer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(
    "trouble", [no_folder, no_space, full_disk, no_unnamed_files, another_writer]
)
def test_a_disk_that_takes_nothing_is_no_error(
    trouble: Callable[..., None],
    models: Callable[[str], Path],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    config = config_of(models("Q4_0"))
    trouble(folder, monkeypatch)
    before = open_files()
    runner = started(config)
    assert logits(runner).any() and capfd.readouterr() == ("", "")
    assert not folder.is_dir() or not list(folder.iterdir())
    assert open_files() == before


def test_a_write_that_does_less_is_gone_on_with(
    models: Callable[[str], Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, pwrite = config_of(models("Q4_0")), os.pwrite
    started(config)
    (path,) = folder.iterdir()
    sound = path.read_bytes()
    path.unlink()
    monkeypatch.setattr(packed_file.os, "pwrite", lambda to, data, at: pwrite(to, data[:9999], at))
    started(config)
    assert path.read_bytes() == sound


@pytest.mark.parametrize("options", [{"packed": False}, {"packed_bytes": 1000}])
def test_what_is_not_wanted_or_too_large_is_not_kept(
    options: dict[str, Any], models: Callable[[str], Path], folder: Path
) -> None:
    started(config_of(models("Q4_0"), **options))
    assert not folder.exists()


def test_small_weights_are_not_kept(
    models: Callable[[str], Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_store, "LEAST", 1 << 30)
    started(config_of(models("Q4_0")))
    assert not folder.exists()
    started(config_of(models("Q4_0"), quantization="int8"))  # rounding takes longer
    assert len(list(folder.iterdir())) == 1


def test_what_was_used_longest_ago_goes_first(
    models: Callable[[str], Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(time=itertools.count(4_000_000_000).__next__)
    for module in (packed_file, packed_store):
        monkeypatch.setattr(module, "time", clock)
    written: list[Path] = []
    for kind in ("Q4_0", "Q8_0", "Q4_K_M"):
        started(config_of(models(kind)))
        written += [path for path in folder.iterdir() if path not in written]
    started(config_of(models("Q4_0")))  # the first one is used again
    sizes = [path.stat().st_size for path in written]
    packed_store.make_room(sum(sizes) - 1)
    assert set(folder.iterdir()) == {written[0], written[2]}
    packed_store.make_room(sizes[0])
    assert set(folder.iterdir()) == {written[0]}


def test_a_name_depends_on_what_the_weights_do(
    models: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shutil.copy(models("Q4_0"), tmp_path / "a.gguf")

    def name(method: Quant | None = None) -> str:
        found = packed_store.place_of(path, fingerprint(path), method or AsStored(), None)
        assert found is not None
        return found.path.name

    plain, rounded = name(), name(Int8())
    assert len({plain, rounded, name(AsStored(dtype="float32"))}) == 3
    monkeypatch.setattr(native, "isa", lambda: "other")
    assert name() == plain and name(Int8()) != rounded
    os.utime(path, (1000, 1000))
    changed = name()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x55")
    os.utime(path, (1000, 1000))
    assert len({plain, changed, name()}) == 3
    monkeypatch.setattr(packed_store, "_code", list)
    assert name() != changed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"packed": "no"}, "packed='no': must be True or False"),
        (
            {"packed_bytes": "much"},
            "packed_bytes='much': must be a positive number of bytes, such as 4GiB",
        ),
    ],
)
def test_bad_options_are_one_line(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        Config.create(str(tmp_path), **options)
    assert str(error.value).startswith(message)
