"""Models of `same_bits.py`: tiny checkpoints, their calibrations and quantized files.

Other processes make them, each when it is first needed, so that PyTorch is never loaded into the
process that is measured.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import bits_settings

MAKE = (
    "import json, pathlib, sys; sys.path.insert(0, sys.argv[1]); import tiny; "
    "tiny.make(pathlib.Path(sys.argv[2]), sys.argv[3], **json.loads(sys.argv[4]))"
)
COMMAND = "from suffice.cli import main; main()"
SIZES = {"tokenizer": True, "max_position_embeddings": 1024}


class NotMadeError(Exception):
    """A file that could not be made before is needed again."""


class Models:
    """The models in a folder; `python` runs `tiny.py` of the folder `tests`."""

    def __init__(self, folder: Path, tests: Path, python: str, text: str) -> None:
        self.folder = folder
        self._python, self._support = python, str(next(tests.rglob("tiny.py")).parent)
        self._book = folder / "book.txt"
        self._book.write_text(text)
        self._failed: set[Path] = set()
        self._makers: dict[Path, Callable[[], None]] = {}
        self.draft = self._model("draft", "llama", seed=1, num_hidden_layers=2)
        for variant in bits_settings.VARIANTS:
            model = self._model(variant, variant)
            self._makers[self.calibration(variant)] = partial(self._calibrate, model)
        for method in bits_settings.LEARNED:
            self._makers[self.quantized(method)] = partial(self._quantize, method)

    def calibration(self, variant: str) -> Path:
        """Return the path of a model's calibration."""
        return self.folder / f"{variant}.calibration.json"

    def quantized(self, method: str) -> Path:
        """Return the path of the first model, quantized by a method."""
        name = method.replace(":", "_").replace(",", "_").replace("=", "")
        return self.folder / f"{name}.safetensors"

    def need(self, path: Path) -> Path:
        """Make a model or a file unless it is there, and return its path.

        Raises:
            RuntimeError: It cannot be made.
            NotMadeError: It could not be made before.
        """
        if path in self._failed:
            raise NotMadeError(path.name)
        if path in self._makers and not path.exists():
            self._failed.add(path)
            self._makers[path]()
            self._failed.remove(path)
        return path

    def _model(self, name: str, variant: str, **changes: Any) -> Path:
        path = self.folder / name
        self._makers[path] = partial(self._make, path, variant, SIZES | changes)
        return path

    def _make(self, path: Path, variant: str, changes: dict[str, Any]) -> None:
        path.mkdir()
        run([self._python, "-c", MAKE, self._support, str(path), variant, json.dumps(changes)])

    def _calibrate(self, model: Path) -> None:
        """Calibrate a model on a text, for softmaxes and for two techniques with thresholds."""
        flags = ["--text", str(self._book), "-m", str(self.need(model)), "--threads", "1"]
        flags += ["-o", str(self.calibration(model.name)), "--window", "256", "--limit", "4"]
        suffice("calibrate", *flags)
        if model.name == bits_settings.VARIANTS[0]:
            for attention in ("certified:bounded=false", "aet:values=0.01"):
                suffice("calibrate", *flags, "--attention", attention, "--budget", "20%")

    def _quantize(self, method: str) -> None:
        """Quantize the first model by a method that calibrates on a text."""
        model = self.need(self.folder / bits_settings.VARIANTS[0])
        flags = ["--text", str(self._book), "-m", str(model), "--method", method]
        flags += ["-o", str(self.quantized(method))]
        suffice("quantize", *flags, "--window", "128", "--limit", "4", "--threads", "1")


def suffice(*arguments: str) -> None:
    """Run the command line of suffice.

    Raises:
        RuntimeError: It fails.
    """
    run([sys.executable, "-c", COMMAND, *arguments])


def run(command: list[str]) -> None:
    """Run a command.

    Raises:
        RuntimeError: It fails; the message is its last line.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"exit code {done.returncode}: {said[-1]}")


def digest(parts: Iterable[bytes]) -> str:
    """Return a short hash."""
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def hashes(path: Path) -> dict[str, Any]:
    """Return hashes of a calibration's or weight file's content, without its origin and date."""
    if path.suffix == ".json":
        stored = json.loads(path.read_text())
        parts = {"softmax": stored["softmax"], **stored.get("attention", {})}
        for part in parts.values():
            part.pop("made", None)
        return {
            name: digest([json.dumps(part, sort_keys=True).encode()])
            for name, part in parts.items()
        }
    from safetensors.numpy import load_file

    arrays = sorted(load_file(path).items())
    return {"weights": digest(bytes(name, "ascii") + a.tobytes() for name, a in arrays)}
