"""Runs transformers for speed.py: the model's own forward in a bare greedy loop.

`generate` would add its own work to every token; this loop is the library's best speed.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import transformers

from benchmarks.peers.worker import counts, serve


class Told(transformers.generation.streamers.BaseStreamer):
    """Records the times of tokens; the first piece is the prompt."""

    def __init__(self) -> None:
        self.pieces: list[tuple[float, list[int]]] = []

    def put(self, value: torch.Tensor) -> None:
        self.pieces.append((time.perf_counter(), value.flatten().tolist()))

    def end(self) -> None:
        pass


class Transformers:
    """A model of transformers with its default cache, which grows by a row per token."""

    def __init__(self, options: dict[str, Any]) -> None:
        torch.set_num_threads(options["threads"])
        self.model = self._load(options)
        self._assistant = self._load(options) if options.get("assisted") else None
        self._kept: dict[int, tuple[list[list[int]], Any, torch.Tensor]] = {}

    @staticmethod
    def _load(options: dict[str, Any]) -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(
            options["model"],
            dtype=getattr(torch, options["dtype"]),
            attn_implementation=options["attention"],
        ).eval()

    def about(self) -> dict[str, Any]:
        return {"transformers": transformers.__version__, "torch": torch.__version__}

    @torch.inference_mode()
    def prefill(self, tokens: list[int]) -> dict[str, Any]:
        began = time.perf_counter()
        self._run(torch.tensor([tokens]), transformers.DynamicCache())
        return {"seconds": time.perf_counter() - began}

    @torch.inference_mode()
    def decode(self, prompts: list[list[int]], count: int) -> dict[str, Any]:
        cache, token = self._prompt(prompts)
        chosen = [int(token[0, 0])]
        began = time.perf_counter()
        for _ in range(count):
            token = self._run(token, cache)
            chosen.append(int(token[0, 0]))
        seconds = time.perf_counter() - began
        cache.crop(-count)
        return {"seconds": seconds, "tokens": chosen}

    @torch.inference_mode()
    def generate(
        self, prompts: list[list[int]], count: int | list[int], sampling: dict[str, Any]
    ) -> dict[str, Any]:
        """Time greedy tokens after some prompts, which are padded on the left to one length.

        All rows run until the last has its `count`, as in `model.generate`.
        """
        assert sampling == {"temperature": 0.0}
        began, longest = time.perf_counter(), max(map(len, prompts))
        cache = transformers.DynamicCache()
        more: dict[str, torch.Tensor] = {}
        if min(map(len, prompts)) < longest:
            padding = torch.tensor([longest - len(prompt) for prompt in prompts])
            mask = (torch.arange(longest) >= padding[:, None]).long()
            places = (torch.arange(longest) - padding[:, None]).clamp(min=0)
            more = {"attention_mask": mask, "position_ids": places}
            prompts = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
        token = self._run(torch.tensor(prompts), cache, **more)
        for _ in range(max(counts(count, prompts)) - 1):
            if more:
                ones = torch.ones(len(prompts), 1, dtype=torch.long)
                more = {
                    "attention_mask": torch.cat([more["attention_mask"], ones], 1),
                    "position_ids": more["position_ids"][:, -1:] + 1,
                }
            token = self._run(token, cache, **more)
        return {"seconds": time.perf_counter() - began}

    @torch.inference_mode()
    def look_up(self, tokens: list[int], count: int, drafts: int) -> dict[str, Any]:
        """Generate up to `count` tokens greedily by prompt look-up of `drafts` tokens at a time, or
        of an assistant's.

        `seconds` begin with the first token, as in `decode`; `timed` are the tokens after it.
        """
        told, how = Told(), {"prompt_lookup_num_tokens": drafts}
        if self._assistant is not None:
            self._assistant.generation_config.num_assistant_tokens = drafts
            how = {"assistant_model": self._assistant}
        prompt = torch.tensor([tokens])
        self.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=count,
            do_sample=False,
            streamer=told,
            **how,
        )
        _, first, *others = told.pieces
        chosen = [token for _, piece in (first, *others) for token in piece]
        timed, last = len(chosen) - len(first[1]), told.pieces[-1][0]
        return {"seconds": last - first[0], "tokens": chosen, "timed": timed}

    def _prompt(self, prompts: list[list[int]]) -> tuple[Any, torch.Tensor]:
        """Return the prompts' cache and next tokens [B, 1]; the last of each length is kept."""
        kept = self._kept.get(len(prompts[0]))
        if kept is None or kept[0] != prompts:
            cache = transformers.DynamicCache()
            kept = (prompts, cache, self._run(torch.tensor(prompts), cache))
            self._kept[len(prompts[0])] = kept
        return kept[1], kept[2]

    def _run(self, tokens: torch.Tensor, cache: Any, **more: torch.Tensor) -> torch.Tensor:
        """Append tokens [B, T] to the cache and return the next ones [B, 1]."""
        result = self.model(tokens, cache=cache, use_cache=True, logits_to_keep=1, **more)
        next_token: torch.Tensor = result.logits[:, -1].argmax(-1, keepdim=True)
        return next_token


if __name__ == "__main__":
    serve(Transformers)
