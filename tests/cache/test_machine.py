"""The measurement: kept, found again, refused when it is not one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_growth import capacities

from suffice.cache import machine
from suffice.cache.bmc import BMC
from suffice.errors import InputError

HERE = replace(machine.DEFAULT, cpu=machine.cpu_name(), threads=2, measured="2026-01-31")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SUFFICE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "suffice"


def test_never_measured() -> None:
    assert machine.load() is None
    assert machine.load_or_default() is machine.DEFAULT
    assert machine.DEFAULT.measured is None
    assert machine.DEFAULT.ratio == pytest.approx(0.1)


def test_what_is_saved_is_loaded(folder: Path) -> None:
    machine.save(HERE)
    assert machine.load() == HERE == machine.load_or_default()
    assert [file.name for file in folder.iterdir()] == ["machine.json"]
    machine.save(replace(HERE, threads=1))
    assert machine.load() == replace(HERE, threads=1)


def test_another_processor_or_schema_counts_as_never_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine.save(HERE)
    stored = json.loads(machine.path().read_text())
    machine.path().write_text(json.dumps(stored | {"schema": 0}))
    assert machine.load() is None
    machine.save(HERE)
    monkeypatch.setattr(machine, "cpu_name", lambda: "another processor")
    assert machine.load() is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"schema": 2, "machine": 3}',
        json.dumps({"schema": 2, "machine": {"cpu": machine.cpu_name()}}),
    ],
)
def test_a_damaged_file_is_refused_by_name(text: str) -> None:
    machine.path().parent.mkdir()
    machine.path().write_text(text)
    with pytest.raises(InputError) as error:
        machine.load()
    assert str(error.value) == (
        f"'{machine.path()}' is not a machine measurement: measure again with "
        "'suffice info --measure' or delete the file"
    )


def test_a_cache_that_is_no_folder_was_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUFFICE_CACHE", "/dev/null")
    assert machine.load() is None
    with pytest.raises(InputError) as error:
        machine.save(HERE)
    assert str(error.value) == (
        "'/dev/null/machine.json' cannot be written: File exists; "
        "SUFFICE_CACHE names another folder"
    )


def test_a_file_that_cannot_be_read_is_refused(folder: Path) -> None:
    machine.path().mkdir(parents=True)
    with pytest.raises(InputError) as error:
        machine.load()
    assert str(error.value) == f"'{machine.path()}' cannot be read: Is a directory"
    machine.path().rmdir()
    machine.path().write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is not a machine measurement"):
        machine.load()


def test_a_rate_that_is_not_positive_is_refused() -> None:
    with pytest.raises(InputError, match=r"products_per_second=0 must be positive"):
        replace(HERE, products_per_second=0)


def test_a_failed_write_leaves_the_old_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.save(HERE)

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match="No space left on device; SUFFICE_CACHE names another"):
        machine.save(replace(HERE, threads=1))
    monkeypatch.undo()
    assert [file.name for file in folder.iterdir()] == ["machine.json"]
    assert json.loads((folder / "machine.json").read_text())["machine"]["threads"] == 2


def test_bmc_uses_the_measurement() -> None:
    assert BMC().allocations(2048) == 16  # sqrt(0.1 * 2048) = 14.3
    machine.save(replace(HERE, copy_bytes_per_second=HERE.copy_bytes_per_second * 16))
    assert BMC().allocations(2048) == 64
    assert BMC(ratio=0.1).allocations(2048) == 16


def test_the_engine_weighs_copies_against_memory_unless_told_the_papers_ratio() -> None:
    assert machine.DEFAULT.copy_cost == 5  # 2 * 20 GB/s / 8 GB/s
    own = machine.fitted_to_kernel(BMC())
    assert isinstance(own, BMC) and own.copy_cost == 5 and own.spare(2048) == 256
    assert own.spare(128) == 128 and own.spare(131072) == 1024  # sqrt(5 * 131072) = 810
    assert capacities(own, 2048)[:6] == [64, 128, 256, 512, 768, 1024]
    assert own.next_capacity(101, 0, 2048) == 128 and own.next_capacity(1, 0, 40) == 40
    assert BMC().spare(2048) == 128  # the paper's
    for given in (BMC(ratio=0.1), BMC(rows=8)):
        assert machine.fitted_to_kernel(given).next_capacity(1, 0, 2048) == given.spare(2048)


def test_the_table_lists_allocations_and_rows() -> None:
    table = machine.allocation_table(machine.DEFAULT)
    assert [line.limit for line in table] == [2**p for p in range(7, 18)]
    assert (table[2].limit, table[2].allocations, table[2].rows) == (512, 8, 64)
    assert (table[2].kernel_rows, table[-1].kernel_rows) == (256, 1024)
    assert table[2].exact == pytest.approx(51.2**0.5)
    grouped = machine.allocation_table(machine.DEFAULT, [1024], group=4)
    assert (grouped[0].allocations, grouped[0].rows) == (16, 64)


def test_measuring_reports_progress_and_positive_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, small in [("_HEADS", 2), ("_ROWS", 32), ("_SIZE", 16), ("_READ_BYTES", 1 << 16)]:
        monkeypatch.setattr(machine, name, small)
    seen: list[tuple[str, int, int]] = []
    measured = machine.measure(lambda *step: seen.append(step), threads=1)
    assert [done for _, done, _ in seen] == list(range(5))
    assert {total for _, _, total in seen} == {4}
    assert measured.cpu == machine.cpu_name()
    assert measured.threads == 1
    assert measured.measured is not None
    assert measured.ratio > 0
