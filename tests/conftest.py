"""Fixtures that several folders of tests share."""

from __future__ import annotations

import functools
import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import Cli, Ran
from suffice import native

# OpenMP's threads wait for each other in loops, which takes the cores from tests that run side by
# side: a second of PyTorch becomes ten. So they sleep while they wait, and each process has one of
# its own, until a model that is loaded sets their number. Read when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Kernels for GPUs run in Triton's interpreter where there is no GPU. Read when Triton is imported.
if not Path("/dev/nvidiactl").exists() and not Path("/dev/kfd").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts what runs in its background, and what a test starts would be deaf as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from going through thousands of tests again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let Python free all of it at its end, or the extension tells of leaks."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def roundings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the roundings, packed weights and hashes of tests' models among themselves."""
    folder = tmp_path_factory.getbasetemp()
    monkeypatch.setattr("suffice.decoder.stored_rounding.folder", lambda: folder / "key-roundings")
    monkeypatch.setattr("suffice.checkpoints.packed_store.folder", lambda: folder / "packed")
    monkeypatch.setattr("suffice.checkpoints.contents.folder", lambda: folder / "contents")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> Cli:
    """Run `main` in this process, with an empty cache folder and no SUFFICE_ variables."""
    for name in [name for name in os.environ if name.startswith("SUFFICE_")]:
        if name != "SUFFICE_ISA":
            monkeypatch.delenv(name)
    monkeypatch.setenv("SUFFICE_CACHE", str(tmp_path / "empty-cache"))

    monkeypatch.setattr("suffice.cli.bench._ROOF_BYTES", 1 << 20)  # of reads that are timed

    from suffice.cli import main

    def run(*arguments: str, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "argv", ["suffice", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as left:
            main()
        return Ran(left.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Make the command line use an engine without a model."""

    def use(*arguments: Any, template: bool = True) -> Any:
        from fake_engine import fake_llm
        from suffice.cli.options import ModelFlags
        from suffice.trace import Trace

        llm = fake_llm(*arguments)
        monkeypatch.setattr(llm.runner, "trace", Trace(1, 1), raising=False)
        monkeypatch.setattr(llm.runner, "weight_bytes", 3 << 20, raising=False)
        monkeypatch.setattr(llm.tokenizer, "has_chat_template", template, raising=False)
        monkeypatch.setattr(ModelFlags, "load", lambda self, seed=None: llm)
        return llm

    return use


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer and room for many tokens."""
    import tiny

    folder = tmp_path_factory.mktemp("checkpoint")
    return tiny.make(folder, "llama", tokenizer=True, max_position_embeddings=200_000)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Tiny checkpoints by variant, each made once; nobody changes them."""
    import tiny

    return functools.cache(lambda variant: tiny.make(tmp_path_factory.mktemp(variant), variant))


@pytest.fixture(params=os.environ.get("SUFFICE_TEST_ISAS", "").split() or native.isas())
def each_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test under every instruction set that can run, or those of SUFFICE_TEST_ISAS;
    `test_isas.py` shows the others."""
    before = native.isa()
    native.use_isa(request.param)
    yield request.param
    native.use_isa(before)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Runs a test of many small native calls on one thread: others would only be waited for."""
    before = native.threads()
    native.set_threads(1)
    yield
    native.set_threads(before)
