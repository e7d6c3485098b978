"""A folder of blocks: private, shared by processes, within its limit, and never in the way."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffice.cache import block_folder
from suffice.cache.block_file import HEAD, NAME, Block, Place, owner_of
from suffice.cache.block_folder import SECRET, BlockFolder, files, label_of
from suffice.cache.stored_rows import Taken, checksum
from suffice.errors import InputError

SIZE = 1000  # bytes of a block's rows


def block(at: int, size: int = SIZE) -> Block:
    data = np.full(size, at, np.uint8)
    name = at.to_bytes(2, "little") + bytes(NAME - 2)
    return Block(Place(name, 0, 16, b"owner  1"), Taken(data, checksum(data)))


def modes(folder: Path) -> set[str]:
    """The modes of a folder and of all that is in it."""
    return {
        ("d" if each.is_dir() else "f") + oct(stat.S_IMODE(each.stat().st_mode))
        for each in (folder, *folder.rglob("*"))
    }


def test_everything_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = BlockFolder(tmp_path / "a" / "kept")
        folder.write(block(1))
        folder.label(b"owner  1", "model, int8")
    finally:
        os.umask(before)
    assert modes(folder.path) == {"d0o700", "f0o600"}
    assert label_of(folder.path, b"owner  1") == "model, int8" and not label_of(
        folder.path, b"?" * 8
    )
    (found,) = files(folder.path)
    assert (found.size, found.whole) == (HEAD + SIZE, True)
    assert owner_of(found.path) == (b"owner  1", 16)


def test_an_open_folder_is_closed_if_it_is_ours_and_else_refused(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir(0o755)
    BlockFolder(tmp_path / "new")
    (tmp_path / "new").chmod(0o755)
    BlockFolder(tmp_path / "new")
    assert modes(tmp_path / "new") == {"d0o700", "f0o600"}
    (tmp_path / "others").mkdir(0o755)
    (tmp_path / "others" / "work").touch()
    with pytest.raises(InputError, match="must be a folder that only you can open"):
        BlockFolder(tmp_path / "others")
    with pytest.raises(InputError, match="must be a folder, or the path of a new one"):
        BlockFolder(tmp_path / "others" / "work")
    with pytest.raises(InputError, match="cannot be made or opened"):
        BlockFolder(tmp_path / "others" / "work" / "kept")


def test_the_first_process_makes_the_secret(tmp_path: Path) -> None:
    """Of many at once, too: all have the same one."""
    code = "from suffice.cache.block_folder import BlockFolder as B; from pathlib import Path; "
    code += f"print(B(Path({str(tmp_path / 'kept')!r})).key.hex())"
    every = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(4)
    ]
    keys = {each.communicate()[0].strip() for each in every}
    assert keys == {BlockFolder(tmp_path / "kept").key.hex().encode()}
    assert [each.name for each in (tmp_path / "kept").iterdir()] == [SECRET]
    assert BlockFolder(tmp_path / "other").key != BlockFolder(tmp_path / "kept").key


def test_a_given_secret_makes_the_same_names_everywhere(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("a secret of some length\n")
    keys = {BlockFolder(tmp_path / each, secret=own).key for each in "ab"}
    assert len(keys) == 1 and not list((tmp_path / "a").iterdir())
    own.write_text("short")
    with pytest.raises(InputError, match="at least 16 bytes, not 5"):
        BlockFolder(tmp_path / "c", secret=own)
    with pytest.raises(InputError, match=r"prefix_secret=.*gone: No such file"):
        BlockFolder(tmp_path / "c", secret=tmp_path / "gone")


def used(folder: BlockFolder) -> list[int]:
    found = sorted(files(folder.path), key=lambda each: each.used)
    return [int.from_bytes(bytes.fromhex(each.path.stem)[:2], "little") for each in found]


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    folder = BlockFolder(tmp_path / "kept", limit=10 * (HEAD + SIZE))
    for at in range(10):
        folder.write(block(at))
        os.utime(folder.place(block(at).place.name), (at, at))
    folder.used([block(0).place.name, block(1).place.name])
    assert used(folder)[-2:] == [1, 0], "the end of a text goes before its beginning"
    folder.write(block(10))
    assert used(folder) == [4, 5, 6, 7, 8, 9, 1, 0, 10] or used(folder) == [
        4,
        5,
        6,
        7,
        8,
        9,
        10,
        1,
        0,
    ]
    assert folder.counts.removed == 2 and folder.bytes == 9 * (HEAD + SIZE)
    folder.write(block(99, size=20 * SIZE))
    assert 99 not in used(folder), "a block that is larger than all is not kept"


def test_what_cannot_be_removed_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = BlockFolder(tmp_path / "kept", limit=4 * (HEAD + SIZE))
    for at in range(4):
        folder.write(block(at))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", failing(errno.EROFS))
        folder.write(block(4))
        assert (folder.counts.removed, folder.bytes) == (0, 5 * (HEAD + SIZE))
        folder.write(block(5))
        assert 5 not in used(folder), "a folder that cannot be pruned would grow without end"
    assert folder.prune() == []
    assert (folder.counts.removed, folder.bytes) == (2, 3 * (HEAD + SIZE))


def test_what_nobody_used_for_long_goes(tmp_path: Path) -> None:
    folder = BlockFolder(tmp_path / "kept", max_age=100)
    for at in range(4):
        folder.write(block(at))
    now = time.time()
    for at, age in enumerate((50, 200, -50, -(10**7))):
        os.utime(folder.place(block(at).place.name), (now - age, now - age))
    folder.prune()
    assert set(used(folder)) == {0, 2, 3}
    late = folder.place(block(3).place.name).stat().st_mtime
    assert late < now + 10, "a time of years to come is that of a clock that was wrong"


def test_unfinished_files_go_once_nobody_writes_them(tmp_path: Path) -> None:
    folder = BlockFolder(tmp_path / "kept")
    folder.write(block(1))
    place = folder.place(block(1).place.name)
    for name, age in (("new", 10), ("old", 10_000)):
        part = place.with_name(f"{place.name}-{name}.part")
        part.write_bytes(b"x")
        os.utime(part, (time.time() - age,) * 2)
    (place.parent / "of somebody").touch()
    os.utime(place.parent / "of somebody", (1, 1))
    folder.prune()
    left = {each.name.removeprefix(place.name) for each in place.parent.iterdir()}
    assert left == {"", "-new.part", "of somebody"}


def failing(number: int) -> Any:
    def fail(*given: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
def test_a_disk_that_takes_nothing_is_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    folder = BlockFolder(tmp_path / "kept")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(number))
        folder.write(block(1))
        folder.write(block(2))
    assert folder.counts.failed == 1, "the second was not tried"
    folder.write(block(1))
    assert used(folder) == [] and not list(folder.path.glob("*/*")), "nothing is left of a try"
    folder._paused_until = 0
    folder.write(block(1))
    assert used(folder) == [1]


def test_the_last_of_a_disk_is_left_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = BlockFolder(tmp_path / "kept")
    about = os.statvfs(tmp_path)
    full = os.statvfs_result((*about[:4], 100, *about[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    folder.write(block(1))
    assert used(folder) == [] and folder.counts.failed == 1


def test_a_folder_that_vanished_is_no_error(tmp_path: Path) -> None:
    folder = BlockFolder(tmp_path / "kept")
    folder.write(block(1))
    (tmp_path / "kept").rename(tmp_path / "gone")
    assert not folder.has(block(1).place.name, block(1).size)
    with folder.opened(block(1).place.name) as file:
        assert file is None
    folder.write(block(2))
    folder.discard(block(1).place.name)
    folder.used([block(1).place.name])
    folder.label(b"owner  2", "text")
    folder.prune()
    assert not (tmp_path / "kept").exists() and folder.bytes == 0
    (tmp_path / "gone").rename(tmp_path / "kept")
    folder._paused_until = 0
    folder.write(block(2))
    assert set(used(folder)) == {1, 2} and folder.bytes == 2 * (HEAD + SIZE)


def after_a_pause(folder: BlockFolder, at: int) -> None:
    folder._paused_until = 0
    folder.write(block(at))


@pytest.mark.parametrize("own", [True, False])
def test_a_folder_that_vanished_is_made_again(
    tmp_path: Path, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(block_folder._log, "warning", lambda text, *of: lines.append(text % of))
    (tmp_path / "secret").write_text("a secret of some length\n")
    secret = None if own else tmp_path / "secret"
    folder = BlockFolder(tmp_path / "kept", secret=secret)
    folder.label(b"owner  1", "text")
    folder.write(block(1))
    shutil.rmtree(folder.path)
    folder.write(block(2))
    assert folder.bytes == 0 and not folder.path.exists(), "who removes it may not be ready yet"
    after_a_pause(folder, 2)
    folder.write(block(3))
    folder.label(b"owner  1", "text")
    assert used(folder) == [2, 3] and folder.bytes == 2 * (HEAD + SIZE)
    assert BlockFolder(tmp_path / "kept", secret=secret).key == folder.key, "names are the same"
    assert label_of(folder.path, b"owner  1") and modes(folder.path) == {"d0o700", "f0o600"}
    (line,) = lines
    assert line.startswith(f"prefix_dir={folder.path}: blocks are not written: it has vanished")


def test_a_full_disk_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(block_folder._log, "warning", lambda text, *of: lines.append(text % of))
    folder = BlockFolder(tmp_path / "kept")
    for said in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(block_folder, "_SPARE", 1 << 62)
            for _ in range(3):
                after_a_pause(folder, said)
        assert len(lines) == said, "again only after something was written"
        after_a_pause(folder, said)
    assert set(lines) == {f"prefix_dir={folder.path}: blocks are not written: the disk is full"}
    assert (folder.counts.failed, folder.counts.written) == (6, 2)


def test_where_a_disk_was_no_folder_is_made(tmp_path: Path) -> None:
    folder = BlockFolder(tmp_path / "kept")
    folder._device += 1
    shutil.rmtree(folder.path)
    after_a_pause(folder, 1)
    after_a_pause(folder, 1)
    assert not folder.path.exists() and folder.counts.failed == 2


def test_a_folder_with_another_secret_is_left_alone(tmp_path: Path) -> None:
    """Nobody would find what is written there."""
    folder = BlockFolder(tmp_path / "kept")
    shutil.rmtree(folder.path)
    after_a_pause(folder, 1)
    BlockFolder(tmp_path / "kept")
    after_a_pause(folder, 1)
    assert used(folder) == [] and folder.counts.failed == 2


def test_a_file_that_was_cut_is_removed_and_written_again(tmp_path: Path) -> None:
    """A machine that stops leaves such files; nobody has to read one to find that out."""
    folder = BlockFolder(tmp_path / "kept")
    folder.write(block(1))
    place, size = folder.place(block(1).place.name), block(1).size
    assert folder.has(block(1).place.name, size) and folder.counts.damaged == 0
    os.truncate(place, 100)
    assert not folder.has(block(1).place.name, size)
    assert not place.exists() and folder.counts.damaged == 1
    folder.write(block(1))
    os.truncate(place, 0)
    folder.write(block(1))
    assert place.stat().st_size == size


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    folder = BlockFolder(tmp_path / "kept")
    folder.write(block(1))
    place = folder.place(block(1).place.name)
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    with folder.opened(block(1).place.name) as file:
        assert file is None


def test_a_killed_writer_leaves_no_block(tmp_path: Path) -> None:
    """Whenever it is killed: all blocks that are there are whole."""
    code = (
        "import sys; sys.path[:0] = [{!r}]\n"
        "from test_block_folder import BlockFolder, Path, block\n"
        "folder = BlockFolder(Path({!r}))\n"
        "print('begun', flush=True)\n"
        "for at in range(60000): folder.write(block(at, 300000))\n"
    ).format(str(Path(__file__).parent), str(tmp_path / "kept"))
    seen = 0
    for at in range(6):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"begun\n"
        time.sleep(0.01 * at)
        process.kill()
        process.communicate()
        for each in files(tmp_path / "kept"):
            if each.whole:
                seen += 1
                assert each.size == HEAD + 300000
                data = np.frombuffer(each.path.read_bytes()[HEAD:], np.uint8)
                (value,) = set(data.tolist())
                assert owner_of(each.path) is not None and value < 256
                with contextlib.suppress(OSError):
                    each.path.unlink()
    assert seen


def test_a_prune_that_forgets_the_limit_would_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_folder, "_KEPT", 5.0)
    with pytest.raises(AssertionError):
        test_what_was_used_longest_ago_goes_first(tmp_path)
