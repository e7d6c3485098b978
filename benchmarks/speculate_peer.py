"""transformers' prompt look-up for speculate.py, in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import peer_install
from peer_client import Worker
from peer_install import BUILD
from speculate_cells import Question
from suffice.models.locate import locate
from suffice.speculate.stats import DraftStats

PEER = "transformers prompt look-up"
DRAFTS = 10  # transformers' own default for `prompt_lookup_num_tokens`


class LookUp:
    """Answers by `generate` with `prompt_lookup_num_tokens`, greedily, on the same weights.

    The model is written as a Hugging Face folder first; products are float32, which is what
    PyTorch is fastest in on CPUs without products of bfloat16.

    Raises:
        EngineError: transformers cannot run it.
    """

    def __init__(self, model: str, most: int, threads: int | None) -> None:
        self._most = most
        folder = BUILD / f"model-{Path(model).name}"
        peer_install.export(locate(model), folder)
        options: dict[str, Any] = {"model": str(folder), "threads": threads}
        options |= {"dtype": "float32", "attention": "sdpa"}
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        script = Path(__file__).parent / "peer_transformers.py"
        log = BUILD / "log" / "look_up.log"
        self._worker = Worker(Path(sys.executable), script, options, environment, log)
        self.about = {key: options[key] for key in ("dtype", "attention")} | self._worker.about

    def __call__(self, question: Question) -> tuple[list[int], int, float, DraftStats]:
        """Return all tokens, how many of them were timed, their seconds, and no counts."""
        answer = self._worker.ask(
            "look_up", tokens=question.tokens, count=self._most, drafts=DRAFTS
        )
        return answer["tokens"], answer["timed"], answer["seconds"], DraftStats()

    def close(self) -> None:
        """End the process."""
        self._worker.close()
