"""`--prefix-dir` of commands, and `suffice cache`, which looks after such a folder.

Also tests prefixes.py, prompt_cache.py and chat_rows.py.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from pathlib import Path

import pytest

from commands import Cli
from suffice import LLM
from suffice.cache.block_folder import files
from suffice.engine.disk_prefixes import DiskPrefixes
from suffice.engine.loop import Loop
from suffice.engine.saved_rows import tokens_of

PROMPT = "To be, or not to be, that is the question. " * 8


@pytest.fixture(autouse=True)
def always_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiskPrefixes, "pays", lambda self, cache, rows: True)


def run(cli: Cli, model: Path, kept: Path, *more: str) -> str:
    found = cli(
        *("run", "-m", str(model), "--raw", "-n", "4", "--temp", "0", "-t", "1"),
        *("--prefix-dir", str(kept), *more, PROMPT),
    )
    assert found.code == 0, found.err
    return found.err


@pytest.fixture
def kept(cli: Cli, checkpoint: Path, tmp_path: Path) -> Path:
    """A folder in which a run has left something."""
    from suffice.engine.write_behind import _open

    assert "cached)" not in run(cli, checkpoint, tmp_path / "kept")
    for each in list(_open):
        each.flush(60)
    return tmp_path / "kept"


def test_a_second_run_reads_what_the_first_left(cli: Cli, checkpoint: Path, kept: Path) -> None:
    assert " cached)" in run(cli, checkpoint, kept)
    assert "cached)" not in run(cli, checkpoint, kept, "-ctk", "int8")


def test_list_rm_and_prune(cli: Cli, checkpoint: Path, kept: Path) -> None:
    listed = cli("cache", "list", "--prefix-dir", str(kept))
    (line,) = [line for line in listed.out.splitlines() if str(checkpoint) in line]
    _, name, label, tokens, size, *_ = (part.strip() for part in line.split("|"))
    assert label == f"{checkpoint}, float32" and int(tokens) == 64 * len(list(files(kept))) > 0
    assert 0 < float(size.removesuffix(" KiB")) < 1024, "a tiny model's blocks"
    wrong = cli("cache", "rm", "nobody", "--prefix-dir", str(kept))
    assert wrong.code == 2 and "unknown name 'nobody'" in wrong.err
    first = next(files(kept)).path
    first.write_bytes(b"damaged")
    assert "| damaged" in cli("cache", "list", "--prefix-dir", str(kept)).out
    os.utime(first, (1, 1))
    pruned = cli("cache", "prune", "--prefix-dir", str(kept), "--prefix-max-age", "1d")
    assert pruned.code == 0 and "removed 1," in pruned.err and not first.exists()
    assert cli("cache", "rm", name, "--prefix-dir", str(kept)).code == 0
    assert not list(files(kept))
    assert "nothing is kept" in cli("cache", "list", "--prefix-dir", str(kept)).err
    assert cli("cache", "rm", "all", "--prefix-dir", str(kept)).code == 0


def test_prune_keeps_to_the_limit(cli: Cli, kept: Path) -> None:
    before = sum(each.size for each in files(kept))
    cli("cache", "prune", "--prefix-dir", str(kept), "--prefix-disk-bytes", str(before - 1))
    assert 0 < sum(each.size for each in files(kept)) < before


@pytest.mark.parametrize(
    "words", [("rm", "all"), ("prune", "--prefix-disk-bytes", "1"), ("prune", "--prefix-max-age=0")]
)
def test_what_cannot_be_removed_is_said(
    cli: Cli, kept: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    stuck, *others = sorted(each.path for each in files(kept))
    genuine = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path == stuck:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        genuine(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    found = cli("cache", *words, "--prefix-dir", str(kept))
    assert found.code == 2 and others
    assert found.err == f"suffice: error: {stuck} cannot be removed: Read-only file system\n"
    assert [each.path for each in files(kept)] == [stuck], "all others are"


def test_what_is_no_file_of_ours_stays(cli: Cli, kept: Path) -> None:
    first = next(files(kept)).path
    folder, pipe = first.with_name("0" * 40 + ".block"), first.with_name("1" * 40 + ".block")
    folder.mkdir()
    os.mkfifo(pipe)
    assert "| damaged" not in cli("cache", "list", "--prefix-dir", str(kept)).out
    assert cli("cache", "rm", "all", "--prefix-dir", str(kept)).code == 0
    assert folder.exists() and pipe.exists() and not list(files(kept))


@pytest.mark.parametrize("action", ["list", "prune", ("rm", "all")])
def test_a_folder_of_something_else_is_left_alone(
    cli: Cli, tmp_path: Path, action: str | tuple[str, ...]
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "notes").touch()
    words = (action,) if isinstance(action, str) else action
    found = cli("cache", *words, "--prefix-dir", str(tmp_path / "work"))
    assert found.code == 2 and "nothing has been kept there" in found.err


def test_a_folder_that_others_can_open_is_refused(
    cli: Cli, checkpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir(0o755)
    (tmp_path / "work" / "notes").touch()
    folder = str(tmp_path / "work")
    found = cli("run", "-m", str(checkpoint), "--prefix-dir", folder, "hello")
    assert found.code == 2 and found.err.startswith(f"suffice: error: --prefix-dir {folder}")


def test_flags_of_a_folder_that_there_is_not_are_refused(cli: Cli, checkpoint: Path) -> None:
    found = cli("run", "-m", str(checkpoint), "--prefix-max-age", "1d", "hello")
    assert found.code == 2 and found.err.startswith(
        "suffice: error: --prefix-max-age 1d: needs prefix_dir (--prefix-dir), the folder"
    )


def test_a_prompt_is_kept_in_a_file(cli: Cli, checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows"
    arguments = ("run", "-m", str(checkpoint), "--raw", "-n", "4", "--temp", "0", "-t", "1")
    plain = cli(*arguments, PROMPT)
    first = cli(*arguments, "--prompt-cache", str(file), PROMPT)
    size = file.stat().st_size
    again = cli(*arguments, "--prompt-cache", str(file), PROMPT)
    assert plain.out == first.out == again.out
    assert "cached)" not in first.err and " cached)" in again.err
    longer = PROMPT + "And by opposing end them. " * 3
    further = cli(*arguments, "--prompt-cache", str(file), longer)
    assert further.out == cli(*arguments, longer).out and " cached)" in further.err
    assert file.stat().st_size > size, "it has the longer prompt now"
    size = file.stat().st_size
    begins = cli(*arguments, "--prompt-cache", str(file), PROMPT.partition(".")[0])
    assert "replaced" not in begins.err + further.err
    assert file.stat().st_size == size, "the file has the prompt and more"
    other = cli(*arguments, "--prompt-cache", str(file), "-ctk", "int8", PROMPT)
    assert other.code == 2 and "saved with kv_cache_dtype float32 (here int8)" in other.err
    file.write_bytes(file.read_bytes()[:-7])
    cut = cli(*arguments, "--prompt-cache", str(file), PROMPT)
    assert cut.code == 2 and "is damaged" in cut.err


def test_a_shorter_prompt_says_what_it_replaces(cli: Cli, checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows"
    arguments = ("run", "-m", str(checkpoint), "--raw", "-n", "1", "-t", "1", "--prompt-cache")
    cli(*arguments, str(file), PROMPT)
    before = tokens_of(file)
    found = cli(*arguments, str(file), "Whether 'tis nobler in the mind")
    after = tokens_of(file)
    common = next(at for at in range(len(after) + 1) if before[: at + 1] != after[: at + 1])
    line = f"{len(before) - common} tokens of another text were replaced in {file}\n"
    assert line in found.err and len(after) < len(before), found.err


def test_a_file_that_cannot_be_written_is_refused_before_the_prompt_is_run(
    cli: Cli, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, file = tmp_path / "gone" / "rows", tmp_path / "rows"
    found = cli("run", "-m", str(tmp_path / "no model"), "--prompt-cache", str(gone), PROMPT)
    assert (found.code, found.out) == (2, "")
    assert found.err == f"suffice: error: {gone} cannot be written: No such file or directory\n"
    monkeypatch.setattr(Loop, "step", lambda self: pytest.fail("it is run"))
    arguments = ("run", "-m", str(checkpoint), "--raw", "-t", "1", "--prompt-cache", str(file))
    found = cli(*arguments, "--attention", "tiers:prompt=0.01", PROMPT)
    assert (found.code, found.out) == (2, "")
    assert found.err.splitlines()[-1].startswith("suffice: error: rows serve no later prompt")


def _interrupt_second_step(patch: pytest.MonkeyPatch) -> None:
    steps, genuine = list[int](), Loop.step

    def interrupted(self: Loop) -> None:
        genuine(self)
        steps.append(1)
        if len(steps) == 2:
            signal.raise_signal(signal.SIGINT)

    patch.setattr(Loop, "step", interrupted)


def test_after_ctrl_c_a_file_has_what_was_computed(
    cli: Cli, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows"
    arguments = ("run", "-m", str(checkpoint), "--raw", "-n", "4", "--temp", "0", "-t", "1")
    wanted = cli(*arguments, PROMPT * 2)
    _interrupt_second_step(monkeypatch)
    first = cli(*arguments, "--prompt-cache", str(file), PROMPT * 2)
    assert first.code == 130 and first.out == ""
    (count,) = re.findall(r"^(\d+) tokens are kept in .*: the same command goes on", first.err)
    assert int(count) >= 128
    again = cli(*arguments, "--prompt-cache", str(file), PROMPT * 2)
    assert again.out == wanted.out and f"({count} cached)" in again.err


def test_after_ctrl_c_a_line_says_that_the_folder_has_the_prompt(
    cli: Cli, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("run", "-m", str(checkpoint), "--raw", "-n", "4", "--temp", "0", "-t", "1")
    wanted = cli(*arguments, PROMPT * 2)
    arguments = (*arguments, "--prefix-dir", str(tmp_path / "kept"))
    with monkeypatch.context() as patch:
        _interrupt_second_step(patch)
        first = cli(*arguments, PROMPT * 2)
    assert first.code == 130 and first.out == ""
    kept = f"what was computed is kept in {tmp_path / 'kept'}: the same command goes on with it\n"
    assert first.err == kept
    again = cli(*arguments, PROMPT * 2)
    assert again.out == wanted.out and " cached)" in again.err


def test_what_a_chat_has_dropped_is_not_saved(cli: Cli, checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    rows = tmp_path / "talk.json.rows"
    arguments = ("chat", "-m", str(checkpoint), "-n", "8", "--temp", "0", "-t", "1")
    llm = LLM(str(checkpoint), threads=1)

    def kept() -> str:
        with llm.load_prefix(rows) as session:
            return llm.tokenizer.decode(session.tokens)

    cli(*arguments, stdin=f"{PROMPT}\nswordfish\n/save {file}\n")
    assert "swordfish" in kept()
    cli(*arguments, stdin=f"{PROMPT}\nswordfish\n/undo\n/save {file}\n")
    assert "swordfish" not in kept() and PROMPT[:40] in kept()
    cli(*arguments, stdin=f"{PROMPT}\nswordfish\n/reset\n/save {file}\n")
    assert not rows.exists(), "an empty conversation has none"


def test_a_chat_goes_on_with_its_rows(cli: Cli, checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    arguments = ("chat", "-m", str(checkpoint), "-n", "8", "--temp", "0", "-t", "1")
    first = cli(*arguments, stdin=f"{PROMPT}\n/save {file}\nAnd then?\n")
    assert f"tokens of keys and values in {file.name}.rows" in first.err, first.err
    second = cli(*arguments, stdin=f"/load {file}\nAnd then?\n")
    assert "tokens of keys and values\n" in second.err
    assert second.out and first.out.endswith(second.out)
    assert " cached)" in second.err
    other = cli(*arguments, "-ctk", "int8", stdin=f"/load {file}\nAnd then?\n")
    assert "are computed again:" in other.err and other.code == 0
    lossy = cli(
        *arguments, "--policy", "h2o:rank_only=true", stdin=f"hello\n/save {tmp_path / 'b'}\n"
    )
    assert "are not saved: rows serve no later prompt" in lossy.err and (tmp_path / "b").exists()
