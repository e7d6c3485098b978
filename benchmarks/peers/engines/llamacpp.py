"""Runs llama.cpp for speed.py, through llama-cpp-python's binding of its C interface.

The high-level class holds one sequence only and copies logits; this loop is `llama-bench`'s with
llama.cpp's own greedy sampler.
"""

from __future__ import annotations

import ctypes
import time
from importlib.metadata import version
from typing import Any

import llama_cpp as lib
import numpy as np
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from benchmarks.peers.worker import serve

FLASH = {"auto": -1, "off": 0, "on": 1}  # llama_flash_attn_type
BATCH = 4096
CACHES = {"f16": 1, "q8_0": 8}  # ggml_type


class LlamaCpp:
    """A GGUF file with a cache of a type, by default llama.cpp's: float16.

    A context holds `rows` tokens of each sequence; with several, `batch_rows` if that is given.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        lib.llama_backend_init()
        path = options["gguf"].encode()
        self.model = lib.llama_model_load_from_file(path, lib.llama_model_default_params())
        if not self.model:
            raise SystemExit("llama.cpp cannot load the model")
        self.greedy = lib.llama_sampler_init_greedy()
        self._contexts: dict[tuple[int, str], Any] = {}
        self._kept: dict[tuple[int, str], list[list[int]]] = {}
        self._states: dict[tuple[int, str], tuple[int, list[Any]]] = {}  # and their rows

    def about(self) -> dict[str, Any]:
        return {
            "llama-cpp-python": version("llama-cpp-python"),
            "system": lib.llama_print_system_info().decode().strip(),
        }

    def prefill(self, tokens: list[int], cache: str = "f16") -> dict[str, Any]:
        context = self._context(1, cache)
        self._kept.pop((1, cache), None)
        self._forget(context, 1, 0)
        began = time.perf_counter()
        self._run(context, [tokens], 0)
        lib.llama_sampler_sample(self.greedy, context, -1)
        return {"seconds": time.perf_counter() - began}

    def decode(self, prompts: list[list[int]], count: int, cache: str = "f16") -> dict[str, Any]:
        sequences, length = len(prompts), len(prompts[0])
        context = self._context(sequences, cache)
        # The prompt's last token is run again to get the first new token.
        kept = self._kept.pop((sequences, cache), [[]] * sequences)
        rows = min(len(kept[0]), length) - 1
        begun = all(old[:rows] == new[:rows] for old, new in zip(kept, prompts, strict=True))
        rows = rows if begun and rows > 0 else 0
        if not self._forget(context, sequences, rows):
            rows = self._restore(context, sequences, cache, rows)
        step = BATCH // sequences
        for first in range(rows, length - 1, step):
            self._run(context, [prompt[:-1][first : first + step] for prompt in prompts], first)
        self._kept[sequences, cache] = prompts
        self._keep_states(context, sequences, cache, length - 1)
        self._run(context, [prompt[-1:] for prompt in prompts], length - 1)
        tokens = self._sample(context, sequences)
        chosen = [tokens[0]]
        began = time.perf_counter()
        for step in range(count):
            self._run(context, [[token] for token in tokens], length + step)
            tokens = self._sample(context, sequences)
            chosen.append(tokens[0])
        return {"seconds": time.perf_counter() - began, "tokens": chosen}

    def look_up(self, tokens: list[int], count: int, drafts: int) -> dict[str, Any]:
        """Decode up to `count` tokens greedily with the binding's own prompt look-up.

        `seconds` begin with the first token, as in `decode`; `timed` are the tokens after it.
        """
        look = LlamaPromptLookupDecoding(num_pred_tokens=drafts)
        context, vocabulary = self._context(1), lib.llama_model_get_vocab(self.model)
        self._kept.clear()
        self._forget(context, 1, 0)
        if len(tokens) > 1:
            self._run(context, [tokens[:-1]], 0)
        self._run(context, [tokens[-1:]], len(tokens) - 1)
        chosen = self._sample(context, 1)
        began = time.perf_counter()
        while len(chosen) < count and not lib.llama_vocab_is_eog(vocabulary, chosen[-1]):
            text = [*tokens, *chosen]
            guess = look(np.array(text, np.intc))[: count - len(chosen) - 1].tolist()
            self._run(context, [[chosen[-1], *guess]], len(text) - 1, every=True)
            for at, token in enumerate([*guess, None]):
                found = lib.llama_sampler_sample(self.greedy, context, at)
                chosen.append(found)
                if found != token or lib.llama_vocab_is_eog(vocabulary, found):
                    break
            memory = lib.llama_get_memory(context)
            lib.llama_memory_seq_rm(memory, 0, len(tokens) + len(chosen) - 1, -1)
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "tokens": chosen, "timed": len(chosen) - 1}

    def score(self, tokens: list[int]) -> dict[str, Any]:
        """Return -ln p of every token but the first, each after those before it."""
        context = self._context(1)
        self._kept.clear()
        self._forget(context, 1, 0)
        self._run(context, [tokens], 0, every=True)
        size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        losses = []
        for place, target in enumerate(tokens[1:]):
            row = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, place), (size,))
            logits = row.astype(np.float64)
            top = logits.max()
            losses.append(float(top + np.log(np.exp(logits - top).sum()) - logits[target]))
        return {"losses": losses}

    def _context(self, sequences: int, cache: str = "f16") -> Any:
        if (sequences, cache) not in self._contexts:
            rows = self.options["rows"]
            if sequences > 1:
                rows = self.options.get("batch_rows", rows)
            params = lib.llama_context_default_params()
            params.n_ctx = rows * sequences
            params.n_batch, params.n_ubatch = BATCH, 512
            params.n_seq_max = sequences
            params.n_threads = params.n_threads_batch = self.options["threads"]
            params.flash_attn_type = FLASH[self.options["flash"]]
            params.type_k = params.type_v = CACHES[cache]
            self._contexts[sequences, cache] = lib.llama_init_from_model(self.model, params)
        return self._contexts[sequences, cache]

    def _forget(self, context: Any, sequences: int, rows: int) -> bool:
        """Keep the first `rows` rows of each sequence; return whether that is possible.

        Layers with states cannot go back to where they were.
        """
        memory = lib.llama_get_memory(context)
        cut = [lib.llama_memory_seq_rm(memory, each, rows, -1) for each in range(sequences)]
        return all(cut)

    def _keep_states(self, context: Any, sequences: int, cache: str, rows: int) -> None:
        """Copy what a context has of `rows` rows, if its model's layers keep states."""
        if lib.llama_model_is_hybrid(self.model):
            states = [_state(context, each) for each in range(sequences)]
            self._states[sequences, cache] = rows, states

    def _restore(self, context: Any, sequences: int, cache: str, most: int) -> int:
        """Go back to what was kept of at most `most` rows; return how many rows are there."""
        self._forget(context, sequences, 0)
        rows, states = self._states.get((sequences, cache), (0, []))
        if rows > most:
            return 0
        for sequence, state in enumerate(states):
            lib.llama_state_seq_set_data(context, state, len(state), sequence)
        return rows

    def _run(self, context: Any, tokens: list[list[int]], first: int, every: bool = False) -> None:
        """Run tokens of each sequence from position `first` on.

        The last token of each sequence gives logits; with `every`, all tokens do.
        """
        count = sum(map(len, tokens))
        batch = lib.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        at = 0
        for sequence, row in enumerate(tokens):
            for offset, token in enumerate(row):
                batch.token[at] = token
                batch.pos[at] = first + offset
                batch.n_seq_id[at] = 1
                batch.seq_id[at][0] = sequence
                batch.logits[at] = every or offset == len(row) - 1
                at += 1
        status = lib.llama_decode(context, batch)
        lib.llama_batch_free(batch)
        if status:
            raise SystemExit(f"llama_decode returned {status}")

    def _sample(self, context: Any, sequences: int) -> list[int]:
        return [lib.llama_sampler_sample(self.greedy, context, at) for at in range(sequences)]


def _state(context: Any, sequence: int) -> Any:
    """Return a copy of all that a context has of a sequence."""
    state = (ctypes.c_uint8 * lib.llama_state_seq_get_size(context, sequence))()
    lib.llama_state_seq_get_data(context, state, len(state), sequence)
    return state


if __name__ == "__main__":
    serve(LlamaCpp)
