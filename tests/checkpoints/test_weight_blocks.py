"""Weights read a block of rows at a time: the same values, in little memory, without imports."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import gguf_files
import tiny
from suffice import native
from suffice.checkpoints.checkpoint import Checkpoint
from suffice.checkpoints.formats.gguf_file import GGUF
from suffice.checkpoints.open import open_checkpoint
from suffice.checkpoints.source import Weight
from suffice.errors import InputError

Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same model in the stored types that blocks of rows are read from."""
    made = {}
    for dtype in ("float32", "float16", "bfloat16"):
        folder = tiny.make(tmp_path_factory.mktemp(dtype), "llama")
        path = folder / "model.safetensors"
        weights = load_file(path)
        save_file({k: v.to(getattr(torch, dtype)) for k, v in weights.items()}, path)
        made[dtype] = folder
    for kind in ("F32", "F16", "BF16", "Q8_0", "Q4_1"):
        path = tmp_path_factory.mktemp(kind) / "x.gguf"
        made[kind] = tiny.write_gguf(made["float32"], path, kind)
    made["gemma3"] = tiny.make(tmp_path_factory.mktemp("gemma3"), "gemma3")
    return made


def matrices(checkpoint: Checkpoint) -> list[tuple[Weight, np.ndarray]]:
    """Return each matrix, and all of it in float32."""
    weights = [weight for _, weight in checkpoint.weights() if len(weight.shape) == 2]
    return [(weight, weight.load().astype(np.float32)) for weight in weights]


@pytest.mark.parametrize(
    "kind", ["float32", "float16", "bfloat16", "F32", "F16", "BF16", "Q8_0", "Q4_1", "gemma3"]
)
@pytest.mark.parametrize("values", [1, 20 * 64, 1 << 20])
def test_blocks_are_the_rows_of_the_whole(
    kind: str, values: int, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suffice.checkpoints.source._BLOCK_VALUES", values)
    found = matrices(open_checkpoint(models[kind]))
    assert len(found) >= 3 * 7 + 1
    for weight, whole in found:
        sizes, end = [], 0
        for first, block in weight.blocks():
            assert first == end and block.dtype == np.float32
            assert np.array_equal(block, whole[first : first + len(block)])
            sizes.append(len(block))
            end += len(block)
        assert end == len(whole)
        assert all(size == sizes[0] and size % 16 == 0 for size in sizes[:-1])


@pytest.mark.parametrize("kind", ["bfloat16", "Q4_1"])
def test_any_rows_can_be_asked_for(kind: str, models: dict[str, Path]) -> None:
    for weight, whole in matrices(open_checkpoint(models[kind])):
        for first, count in [(0, 1), (3, 17), (len(whole) - 5, 5)]:
            out = np.empty((count, weight.shape[1]), np.float32)
            assert weight.rows(first, out) is out
            assert np.array_equal(out, whole[first : first + count])


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_changes_nothing(threads: int, models: dict[str, Path]) -> None:
    if threads > native.cores():
        pytest.skip(f"{threads} cores are needed")
    before = native.threads()
    expected = {name: array.copy() for name, array in open_checkpoint(models["Q4_1"]).tensors()}
    native.set_threads(threads)
    try:
        for name, array in open_checkpoint(models["Q4_1"]).tensors():
            assert np.array_equal(array, expected[name]), name
    finally:
        native.set_threads(before)


def test_norms_of_gemma_get_their_one_when_they_are_read(models: dict[str, Path]) -> None:
    checkpoint = open_checkpoint(models["gemma3"])
    stored = load_file(models["gemma3"] / "model.safetensors")
    weights = dict(checkpoint.weights())
    assert weights["final_norm"].offset == 1 and weights["embed"].offset == 0
    assert np.array_equal(weights["final_norm"].load(), stored["model.norm.weight"] + 1)
    assert weights["final_norm"].dtype == "float32"


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_blocks_with_nan_are_refused(kind: str, models: dict[str, Path], tmp_path: Path) -> None:
    weights = load_file(models[kind] / "model.safetensors")
    weights[Q][40, 3] = float("nan")
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((models[kind] / "config.json").read_text())
    weight = dict(open_checkpoint(tmp_path).weights())["layers.1.q"]
    weight.rows(0, np.empty((40, 64), np.float32))  # the rows before it
    with pytest.raises(InputError) as caught:
        list(weight.blocks())
    assert str(caught.value) == (
        f"{tmp_path}: weight '{Q}' has NaN or infinite entries; all must be finite"
    )


@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0", "BF16", "IQ2_XXS"])
def test_blocks_of_a_large_matrix_need_little_memory(kind: str, tmp_path: Path) -> None:
    rows, columns = 20_000, 1024  # 80 MB in float32
    path = tmp_path / "x.gguf"
    gguf_files.write_random(path, {}, {"x": ((rows, columns), kind)})
    source = GGUF.open(path)

    class Rows:
        def load_rows(self, name: str, first: int, out: np.ndarray) -> None:
            source.read_rows(name, first, out)

    weight = Weight((rows, columns), "float32", Rows(), "x")  # type: ignore[arg-type]
    tracemalloc.start()
    seen = sum(len(block) for _, block in weight.blocks())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seen == rows
    assert peak < (5 if kind != "IQ2_XXS" else 40) << 20  # the package makes arrays of its own


LIGHT = """
import sys
from pathlib import Path
from suffice.checkpoints.formats.gguf_file import GGUF
from suffice.checkpoints.formats.hf_folder import FolderTensors, Safetensors
import suffice.checkpoints.checkpoint, suffice.checkpoints.formats.gguf_model
file = GGUF.open(Path(sys.argv[1]))
for name in file.tensors:
    file.load(name)
weights = Safetensors(FolderTensors(Path(sys.argv[2])))
for name in weights.shapes():
    weights.load(name)
print([name for name in ("gguf", "safetensors", "torch", "transformers") if name in sys.modules])
"""


@pytest.mark.parametrize("kind", ["Q4_1", "BF16"])
def test_readers_import_no_package_for_common_types(kind: str, models: dict[str, Path]) -> None:
    command = [sys.executable, "-c", LIGHT, str(models[kind]), str(models["bfloat16"])]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
