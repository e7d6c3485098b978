"""The command line as a process: broken streams, text that is none, and Ctrl-C while it starts.

Also tests interrupt.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-c", "from suffice.cli import main; main()"]
# Ctrl-C comes while a module is imported, in code that loses the exception, as a callback would.
INTERRUPTED = """
import os, signal, sys, time
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.2)
            except KeyboardInterrupt:
                pass
sys.meta_path.insert(0, Finder())
from suffice.cli import main
main()
"""


def shell(redirection: str, *arguments: str, stdin: bytes = b"") -> tuple[int, str]:
    """Run the program under a shell's redirection; return its exit code and standard error."""
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *PROGRAM, *arguments]
    ran = subprocess.run(command, input=stdin, capture_output=True)
    return ran.returncode, ran.stderr.decode()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this machine has no /dev/full")
def test_a_full_disk_is_one_line(checkpoint: Path) -> None:
    error = "suffice: error: the output cannot be written: No space left on device"
    code, errors = shell(">/dev/full", "info")
    assert (code, errors.splitlines()) == (2, [error])
    code, errors = shell(">/dev/full", "run", "a", "--raw", "-m", str(checkpoint), "-n", "3")
    assert (code, errors.splitlines()[-1]) == (2, error)
    assert "Traceback" not in errors and "ignored" not in errors


@pytest.mark.parametrize(
    ("redirection", "arguments", "error"),
    [
        ("<&-", ("run", "-"), "standard input is closed: give the prompt as text"),
        ("<&-", ("run",), 'no prompt: suffice run "your prompt", or - to read standard input'),
        (">&-", ("info",), "standard output is closed: give it somewhere to go"),
    ],
)
def test_a_closed_stream_is_one_line(
    redirection: str, arguments: tuple[str, ...], error: str
) -> None:
    assert shell(redirection, *arguments) == (2, f"suffice: error: {error}\n")


def test_no_talk_without_standard_input(checkpoint: Path) -> None:
    code, errors = shell("<&-", "chat", "-m", str(checkpoint))
    assert (code, len(errors.splitlines())) == (2, 1)
    assert errors.endswith("standard input is closed: there is nobody to talk with\n")


def test_output_that_nobody_reads_is_quiet() -> None:
    assert shell("| true", "info")[1] == ""


@pytest.mark.parametrize("arguments", [("run", "-"), ("run",)])
def test_input_that_is_no_text_is_refused(arguments: tuple[str, ...]) -> None:
    code, errors = shell("", *arguments, stdin=b"caf\xe9 x")
    error = "suffice: error: the prompt is not valid text (UTF-8): byte 0xe9 at character 4\n"
    assert (code, errors) == (2, error)


@pytest.mark.parametrize("module", ["click", "suffice.cli.options", "numpy", "tokenizers"])
def test_ctrl_c_during_an_import_ends_the_process(checkpoint: Path, module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED.format(module=module)]
    ran = subprocess.run(
        [*command, "run", "--raw", "a", "-n", "2", "-m", str(checkpoint)], capture_output=True
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, b"", b"")
