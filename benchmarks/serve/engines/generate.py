"""Runs `LLM.generate` on the requests that a server gets, in a process of its own."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.peers.worker import serve
from suffice import LLM, SamplingParams


class Generate:
    """A model, with the settings of `suffice serve`."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._llm = LLM(options["gguf"], threads=options["threads"], max_num_seqs=16)

    def about(self) -> dict[str, Any]:
        return {"weight_bytes": self._llm.runner.weight_bytes}

    def run(self, prompts: list[list[int]], count: int) -> dict[str, Any]:
        """Generate `count` tokens of each prompt; return the tokens per second."""
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        began = time.perf_counter()
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        tokens = sum(len(each.outputs[0].token_ids) for each in outputs)
        return {"tokens_per_second": tokens / seconds}


if __name__ == "__main__":
    serve(Generate)
