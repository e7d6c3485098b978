"""The folder for a hub of kernels: transformers loads its attention, and it needs no suffice.

Also tests plain_attention.py, which the folder has.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, modeling_flash_attention_utils
from transformers.integrations import hub_kernels

from batches import GREEDY, PADDING, generate, prompts
from gpu.device_rows import DEVICE
from hf_reference import load
from suffice.integrations import kernels_hub

BACKEND = "cuda" if torch.version.cuda else "rocm" if torch.version.hip else "cpu"
REPOSITORY = "someone/suffice-attention"
TOKENS, LONG = 3, 90  # of a prompt in which LOSSY stops
LOSSY = "art:change=9,angle=2,patience=1,block=16"
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hub") / "attention"
    kernels_hub.write(made, [BACKEND])
    return made


def imported(folder: Path) -> ModuleType:
    """Import a build as the hub's loader does: under its id, from anywhere."""
    build = folder / "build" / f"torch-{BACKEND}"
    name = json.loads((build / "metadata.json").read_text())["id"]
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, build / "__init__.py")
        assert spec and spec.loader
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Let transformers find the folder where it looks for repositories of the hub."""
    asked: list[str] = []

    def get_kernel(name: str, **options: Any) -> ModuleType:
        asked.append(name)
        return imported(folder)

    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda: True)
    monkeypatch.setattr(hub_kernels, "get_kernel", get_kernel)
    monkeypatch.setattr(modeling_flash_attention_utils, "_loaded_implementation", None)
    yield imported(folder)
    assert set(asked) == {REPOSITORY}
    for interface in (AttentionInterface, AttentionMaskInterface):
        interface._global_mapping.pop(REPOSITORY, None)


@pytest.mark.parametrize("family", ["llama", "mistral"])  # mistral has a window
def test_transformers_generates_the_tokens_of_sdpa(
    family: str, hub: ModuleType, checkpoints: Callable[[str], Path]
) -> None:
    model = load(checkpoints(family), torch.float32).to(DEVICE)
    options = {"max_new_tokens": TOKENS}
    expected = generate(model, **options)
    model.set_attn_implementation(REPOSITORY)
    assert AttentionInterface()[REPOSITORY] is hub.flash_attn_forward
    assert torch.equal(generate(model, **options), expected)


def test_a_technique_is_that_of_the_model(
    hub: ModuleType, checkpoints: Callable[[str], Path]
) -> None:
    model = load(checkpoints("llama"), torch.float32).to(DEVICE)
    ids = prompts(1, LONG)["input_ids"].to(DEVICE)
    whole = model(ids, use_cache=False).logits[:, -1]
    model.set_attn_implementation(REPOSITORY)

    def decoded() -> torch.Tensor:
        output = model(ids[:, :-1])
        cache = {
            name: each for name, each in output.items() if name in ("cache", "past_key_values")
        }
        logits: torch.Tensor = model(ids[:, -1:], **cache).logits[:, -1]
        return logits

    assert torch.allclose(decoded(), whole, atol=1e-4)
    model.config.suffice_attention = LOSSY
    assert not torch.allclose(decoded(), whole, atol=1e-2)
    model.config.suffice_attention = "aet"
    with pytest.raises(
        ValueError,
        match="attention 'aet' of decode_attention: must be art, exact, skip",
    ):
        decoded()


def test_a_padded_request_gives_the_tokens_that_it_gives_alone(
    hub: ModuleType, checkpoints: Callable[[str], Path]
) -> None:
    model = load(checkpoints("llama"), torch.float32).to(DEVICE)
    model.set_attn_implementation(REPOSITORY)
    model.config.suffice_attention = LOSSY
    together = generate(model, 2, LONG, max_new_tokens=TOKENS)
    for row, padding in enumerate(PADDING[:2]):
        prompt = prompts(2, LONG)["input_ids"][row : row + 1, padding:].to(DEVICE)
        alone = model.generate(prompt, **{**GREEDY, "max_new_tokens": TOKENS})
        assert torch.equal(together[row, padding:], alone[0])


def test_what_is_refused(folder: Path) -> None:
    attention = imported(folder).flash_attn_forward
    q, k = torch.zeros(1, 2, 1, 16, device=DEVICE), torch.zeros(1, 2, 8, 16, device=DEVICE)
    module = torch.nn.Module()
    hole = torch.ones(1, 1, 1, 8, dtype=torch.bool, device=DEVICE)
    hole[..., 3] = False
    for options, message in (
        ({"attention_mask": hole}, "attention_mask hides tokens between others"),
        ({"attention_mask": hole.float()}, "attention_mask is torch.float32: must be torch.bool"),
        ({"attention_mask": None, "softcap": 30.0}, "Module asks for softcap"),
    ):
        with pytest.raises(ValueError, match=message):
            attention(module, q, k, k, **options)


def test_a_decode_step_is_compiled_without_a_graph_break(folder: Path) -> None:
    attention, module = imported(folder).flash_attn_forward, torch.nn.Module()
    made = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, n, m, 16, generator=made).to(DEVICE) for n, m in ((4, 1), (2, 9), (2, 9))
    )
    mask = torch.ones(2, 1, 1, 9, dtype=torch.bool, device=DEVICE)
    mask[1, ..., :4] = False

    def step(mask: torch.Tensor | None) -> torch.Tensor:
        found: torch.Tensor = attention(module, q, k, v, mask)[0]
        return found

    torch.compiler.reset()
    traced = torch.compile(step, fullgraph=True, backend="eager")
    for each in (None, mask, mask):  # at last with what the eager step keeps
        assert torch.equal(traced(each), step(each))
    torch.compiler.reset()
    for scale in (None, 0.5):
        found = attention(module, q, k, v, mask, scaling=scale)[0]
        options = {"scale": scale, "enable_gqa": True}
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, **options)
        torch.testing.assert_close(found, seen.transpose(1, 2))


def test_a_build_says_what_it_holds(folder: Path) -> None:
    build = folder / "build" / f"torch-{BACKEND}"
    told = json.loads((build / "metadata.json").read_text())
    files = [each for each in build.rglob("*.py") if each.is_file()]
    assert told["digest"]["algorithm"] == "sha256" and told["backend"] == {"type": BACKEND}
    assert told["digest"]["files"] == {
        each.relative_to(build).as_posix(): base64.b64encode(
            hashlib.sha256(each.read_bytes()).digest()
        ).decode()
        for each in files
    }


def test_the_hub_s_own_loader_takes_the_folder(folder: Path) -> None:
    pytest.importorskip("kernels.load", reason="needs pip install kernels")
    import kernels

    loaded = kernels.get_local_kernel(folder)
    assert loaded.__name__ == imported(folder).__name__
    assert loaded.supports_flash_attn and callable(loaded.flash_attn_forward)
    [told] = [each for each in kernels.get_loaded_kernels() if each.module is loaded]
    assert told.metadata.name.python_name == "suffice_attention"
    path = folder / "build" / f"torch-{BACKEND}"
    found = kernels._rust.Digest.hash_variant(kernels._rust.DigestAlgorithm.SHA256, path)
    told.metadata.digest.validate(found)


ALONE = """
import importlib.util, json, sys, torch
from pathlib import Path

class Nothing:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in ("suffice", "ml_dtypes", "transformers"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Nothing())
build = Path(sys.argv[1])
name = json.loads((build / "metadata.json").read_text())["id"]
spec = importlib.util.spec_from_file_location(name, build / "__init__.py")
sys.modules[name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
device = "cuda" if torch.cuda.is_available() else "cpu"
q, k = (torch.ones(1, 2, n, 16, device=device) for n in (1, 20))
out, _ = module.flash_attn_forward(torch.nn.Module(), q, k, k, None)
assert torch.allclose(out, torch.ones_like(out)), out
print(getattr(torch.ops, name).decode_attention)
"""


def test_a_build_works_without_suffice(folder: Path) -> None:
    build = folder / "build" / f"torch-{BACKEND}"
    command = [sys.executable, "-W", "ignore", "-c", ALONE, str(build)]
    ran = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert imported(folder).__name__ in ran.stdout


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["kernels_hub", str(tmp_path / "new")])
    kernels_hub.main()
    made = tmp_path / "new"
    assert capsys.readouterr().out == f"{made}\n"
    assert sorted(each.name for each in (made / "build").iterdir()) == ["torch-cuda", "torch-rocm"]
    assert "Apache License" in (made / "LICENSE").read_text()
    assert "art:change=0.01" in (made / "README.md").read_text()
    with pytest.raises(SystemExit) as left:
        kernels_hub.main()
    assert left.value.code == 2
    assert capsys.readouterr().err.endswith(f"{made}: cannot be made: File exists\n")
