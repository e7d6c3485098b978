"""Runs suffice for speed.py: a bare greedy loop, or the whole engine for peers that are engines."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.harness.roofline import torch_read_bandwidth
from benchmarks.peers.worker import counts, serve
from suffice import LLM, SamplingParams, native
from suffice.trace import Trace

ROOF_BYTES = 512 << 20  # more than any CPU cache


class Suffice:
    """The runner's steps and an argmax in a bare loop, like the other bare loops."""

    def __init__(self, options: dict[str, Any], llm: LLM | None = None) -> None:
        self.options = options
        self.llm = llm or LLM(
            options["gguf"],
            dtype=options["dtype"],
            quantization=options["quantization"],
            kv_cache_dtype=options["kv"],
            threads=options["threads"],
            max_model_len=options["rows"],
            max_num_seqs=options.get("sequences", 8),
            packed=False,  # nothing is written meanwhile, or left of a file that goes
        )
        self.runner = self.llm.runner
        self._kept: dict[int, tuple[list[list[int]], list[Any], list[int]]] = {}

    def about(self) -> dict[str, Any]:
        return {
            "weights": self.options["quantization"] or self.options["dtype"],
            "kv": self.options["kv"],
            "isa": native.isa(),
            "weight_bytes": self.runner.weight_bytes,
            "vocabulary": self.runner.vocabulary,
        }

    def roof(self) -> dict[str, Any]:
        """Measure this machine's streaming read in two ways."""
        size = int(self.options.get("roof_bytes", ROOF_BYTES))
        return {
            "bytes_per_second": native.read_bandwidth(size, self.options["threads"]),
            "torch_bytes_per_second": torch_read_bandwidth(size),
        }

    def chat(self, message: str) -> dict[str, Any]:
        """Return the tokens of a first chat message."""
        talk = [{"role": "user", "content": message}]
        return {"tokens": self.llm.tokenizer.chat(talk, add_generation_prompt=True)}

    def prefill(self, tokens: list[int]) -> dict[str, Any]:
        sequence = self.runner.open("prefill", self.options["rows"])
        began = time.perf_counter()
        int(self.runner.prefill(sequence, tokens).argmax())
        seconds = time.perf_counter() - began
        self.runner.close(sequence)
        return {"seconds": seconds}

    def decode(self, prompts: list[list[int]], count: int) -> dict[str, Any]:
        starts, tokens = self._prompt(prompts)
        sequences = [self.runner.fork(start) for start in starts]
        chosen = [tokens[0]]
        before = self.runner.trace.copy()
        began = time.perf_counter()
        for _ in range(count):
            for sequence in sequences:
                self.runner.reserve(sequence)
            tokens = self.runner.step(sequences, tokens).argmax(-1).tolist()
            chosen.append(tokens[0])
        seconds = time.perf_counter() - began
        for sequence in sequences:
            self.runner.close(sequence)
        return {"seconds": seconds, "tokens": chosen} | self._bytes(before)

    def _prompt(self, prompts: list[list[int]]) -> tuple[list[Any], list[int]]:
        """Return the prompts' sequences and next tokens; the last of each length are kept.

        Prompts that continue kept ones take their sequences.
        """
        kept = self._kept.get(len(prompts[0]))
        if kept is None or kept[0] != prompts:
            for sequence in kept[1] if kept else []:
                self.runner.close(sequence)
            starts = self._begun(prompts)
            tokens = [
                int(self.runner.prefill(start, prompt[start.cache.length :]).argmax())
                for start, prompt in zip(starts, prompts, strict=True)
            ]
            kept = self._kept[len(prompts[0])] = (prompts, starts, tokens)
        return kept[1], kept[2]

    def _begun(self, prompts: list[list[int]]) -> list[Any]:
        """Return sequences with as much of the prompts as is kept."""
        for length in sorted(self._kept, reverse=True):
            if self._kept[length][0] == [prompt[:length] for prompt in prompts]:
                return self._kept.pop(length)[1]
        return [self.runner.open("start", self.options["rows"]) for _ in prompts]

    def _bytes(self, before: Trace) -> dict[str, Any]:
        trace = self.runner.trace.since(before)
        return {
            "steps": trace.steps,
            "kv_bytes": trace.kv_bytes_read,
            "weight_bytes": trace.weight_bytes_read,
        }


class Whole(Suffice):
    """`LLM.generate` with its scheduler, sampler, stops and text."""

    def prefill(self, tokens: list[int]) -> dict[str, Any]:
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        began = time.perf_counter()
        self.llm.generate(tokens, params, use_tqdm=False)
        return {"seconds": time.perf_counter() - began}

    def decode(self, prompts: list[list[int]], count: int) -> dict[str, Any]:
        params = SamplingParams(temperature=0, max_tokens=count + 1, ignore_eos=True)
        before = self.runner.trace.copy()
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        # Prompts run one after the other before the first step: the last one's time is all steps'
        seconds = outputs[-1].metrics.decode_seconds
        tokens = list(outputs[0].outputs[0].token_ids)
        return {"seconds": seconds, "tokens": tokens} | self._bytes(before)

    def generate(
        self, prompts: list[list[int]], count: int | list[int], sampling: dict[str, Any]
    ) -> dict[str, Any]:
        """Time `LLM.generate` of new prompts: `count` tokens of each, or of one each."""
        params = [
            SamplingParams(max_tokens=each, ignore_eos=True, **sampling)
            for each in counts(count, prompts)
        ]
        began = time.perf_counter()
        self.llm.generate(prompts, params, use_tqdm=False)
        return {"seconds": time.perf_counter() - began}


def build(options: dict[str, Any]) -> Suffice:
    return Whole(options) if options["whole"] else Suffice(options)


if __name__ == "__main__":
    serve(build)
