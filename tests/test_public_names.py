"""The package's public names, which load nothing until they are used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import suffice
from benchmarks.harness import shaped_file
from suffice import LLM
from suffice.checkpoints.formats import gguf_file, gguf_header
from suffice.checkpoints.stored_file import StoredFile


def loaded(code: str) -> set[str]:
    """Return the modules a fresh interpreter has loaded after running some code."""
    report = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", report], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_every_public_name_exists() -> None:
    names = "LLM AsyncLLM CompletionOutput Config EmbeddingRequestOutput RequestOutput"
    names += " SamplingParams __version__"
    assert sorted(suffice.__all__) == sorted(names.split())
    for name in suffice.__all__:
        value = getattr(suffice, name)
        assert getattr(value, "__name__", name) == name
    assert set(suffice.__all__) <= set(dir(suffice))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'suffice' has no attribute 'LLMs'"):
        suffice.LLMs  # noqa: B018


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import suffice", "numpy"),
        ("from suffice import SamplingParams; SamplingParams()", "numpy"),
        ("from suffice import Config; Config.create('model', threads=1)", "tokenizers"),
        ("from suffice import LLM", "jinja2"),
    ],
)
def test_nothing_is_loaded_before_it_is_needed(code: str, absent: str) -> None:
    assert not loaded(code) & {"torch", "transformers", "gguf", absent}


# What other commands and models need, and `suffice run` of a GGUF file does not.
NOT_TO_RUN = {
    *("pydantic", "rich", "typer", "gguf", "safetensors", "huggingface_hub", "torch"),
    *("transformers", "asyncio", "ssl", "http.client", "urllib.request", "subprocess", "zipfile"),
    *("statistics", "importlib.metadata", "unittest", "matplotlib"),
    *("suffice.eval", "suffice.cli.eval", "suffice.cli.hw", "suffice.cli.calibrate"),
    *("suffice.cli.quantize", "suffice.cli.bench", "suffice.cli.chat", "suffice.cli.models"),
    *(
        "suffice.pull.hub",
        "suffice.pull.wheels",
        "suffice.checkpoints.formats.hf_folder",
        "suffice_hw",
    ),
}


def loaded_by_run(*arguments: str) -> set[str]:
    """Return the modules that `suffice run` has loaded when it ends."""
    given = ["suffice", "run", "-q", "-n", "1", *arguments, "a"]
    code = f"import sys\nsys.argv = {given}\nfrom suffice.cli.commands import execute\n"
    return loaded(f"{code}assert execute(sys.argv[1:]) == 0")


def test_a_run_loads_only_what_it_uses(tmp_path: Path) -> None:
    file = shaped_file.write(tmp_path / "tiny.gguf", shaped_file.TINY, "Q8_0")
    found = loaded_by_run("-m", str(file))
    assert found & NOT_TO_RUN <= loaded("pass"), "the interpreter itself may load some"
    assert "jinja2" not in found, "the file has no chat template"
    assert {"tokenizers", "numpy", "click", "suffice.checkpoints.formats.gguf_model"} <= found


def test_the_header_of_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = shaped_file.write(tmp_path / "tiny.gguf", shaped_file.TINY, "Q8_0")
    read, paths = gguf_file.read_header, []

    def counted(stored: StoredFile) -> gguf_header.Header:
        paths.append(stored.path)
        return read(stored)

    monkeypatch.setattr(gguf_file, "read_header", counted)
    LLM(str(file), threads=1)
    assert paths == [file]


def test_the_loaded_modules_are_seen() -> None:
    assert "numpy" in loaded("from suffice import LLM")
