"""Runs prompts once for several techniques that differ only in decoding.

A technique does not change prompts; a policy observes a prompt's queries and then selects from its
tokens. One run of a prompt, observed by all policies, serves every engine on the same weights: its
keys and values are copied into each engine's own cache, where its policy selects.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import record
from benchmarks.harness.settings import accepted
from benchmarks.harness.tables import CellStore
from suffice.cache.kv import KVCache
from suffice.engine.config import Config
from suffice.engine.llm import LLM
from suffice.engine.load import load
from suffice.engine.runner import Runner
from suffice.engine.runner import Sequence as Running
from suffice.eval.record import settings as settings_of
from suffice.policy import Policy, QueryObserver, Windows
from suffice.policy.choice import Budgeted, KeepAll


@dataclass
class Prompt:
    """A prompt after its run: the cache with all tokens, the logits and the policies' observers."""

    cache: KVCache
    logits: np.ndarray
    observers: dict[Policy, QueryObserver | None]


class Shown(KeepAll):
    """A policy that keeps all tokens, and shows each prompt's queries to other policies."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        self.policies = tuple(dict.fromkeys(map(watching, policies)))
        self.observers: dict[Policy, QueryObserver | None] = {}

    def watch(self, cache: KVCache, windows: Windows, scale: float) -> Any:
        """Return an observer that passes queries on to each policy's observer."""
        self.observers = {each: each.watch(cache, windows, scale) for each in self.policies}
        return self

    def add(self, layer: int, q: np.ndarray, end: int) -> None:
        """Pass queries on; see `QueryObserver`."""
        for watch in self.observers.values():
            if watch is not None:
                watch.add(layer, q, end)


def watching(policy: Policy) -> Policy:
    """Return one setting for all policies that observe a prompt alike, whatever their budget."""
    if not isinstance(policy, Budgeted):
        return policy
    return dataclasses.replace(policy, budget=None, ratio=None, rank_only=False)


class Prompts:
    """The prompts of several engines; each is run at its first use and kept until `forget`."""

    def __init__(self, base: Runner, policies: Sequence[Policy]) -> None:
        self._shown = Shown(policies)
        config = dataclasses.replace(base.config, policy=self._shown)
        self._runner = Runner(config, base.decoder, base.sample, stamp=base.stamp)
        self._found: dict[tuple[int, ...], Prompt] = {}

    def run(self, tokens: Sequence[int]) -> Prompt:
        """Return a prompt after its run."""
        key = tuple(tokens)
        if key not in self._found:
            sequence = self._runner.open("shared", len(tokens))
            logits = self._runner.prefill(sequence, list(tokens))
            self._found[key] = Prompt(sequence.cache, logits, self._shown.observers)
        return self._found[key]

    def forget(self) -> None:
        """Free the memory of all prompts."""
        for prompt in self._found.values():
            prompt.cache.close()
        self._found.clear()


class Sharing(Runner):
    """A runner that copies prompts which were run already."""

    def __init__(self, config: Config, base: Runner, prompts: Prompts) -> None:
        super().__init__(config, base.decoder, base.sample)
        self._prompts = prompts

    def prefill(self, sequence: Running, tokens: list[int]) -> np.ndarray:
        """Copy a prompt's rows, let the policy select, and return the last logits, float32 [V]."""
        prompt, cache, policy = self._prompts.run(tokens), sequence.cache, self.config.policy
        cache.reserve(len(tokens))
        for layer in range(cache.layers):
            cache.append(layer, prompt.cache.keys(layer), prompt.cache.values(layer))
        cache.advance(len(tokens))
        policy.after_prompt(cache, self.windows, prompt.observers[watching(policy)])
        return prompt.logits


def runners(
    config: Config, base: Runner, settings: dict[str, dict[str, Any]]
) -> tuple[dict[str, Runner], Prompts]:
    """Return a runner for each setting, on one runner's weights, and the prompts they share.

    A setting has the options that differ from `config`, such as `attention` and `policy`. `config`
    must be resolved.
    """
    prompts = Prompts(base, [setting["policy"] for setting in settings.values()])
    found: dict[str, Runner] = {
        name: Sharing(dataclasses.replace(config, **setting), base, prompts)
        for name, setting in settings.items()
    }
    return found, prompts


class Opened(NamedTuple):
    """Results so far, and an engine for each setting; their prompts are run once."""

    store: CellStore
    llms: dict[str, LLM]
    prompts: Prompts


def opened(
    flags: argparse.Namespace,
    name: str,
    context: int,
    table: Callable[[CellStore], str],
    **more: Any,
) -> Opened:
    """Open `flags.settings`, exact attention first, and the results `name` in `flags.out`.

    `context`: tokens of the longest prompt and its answer. `more`: what figures depend on, next to
    the model's own settings.

    Raises:
        InputError: A model, a setting or results that cannot be used.
    """
    refused: dict[str, str] = {}
    asked = list(dict.fromkeys(("exact", *flags.settings)))
    techniques = accepted(flags.model, asked, refused)
    config = Config.create(flags.model, max_model_len=context, threads=flags.threads)
    config, base, tokenizer = load(config)
    whole = settings_of(config)
    shown = {each: whole[each] for each in ("model", "dtype", "kv_cache_dtype", "quant")}
    facts = record.facts()
    store = CellStore(flags.out, f"{name}_{Path(flags.model).name}", shown | more, facts, table)
    store.read()
    store.refused |= refused
    found, prompts = runners(config, base, techniques)
    llms = {each: LLM.from_parts(own.config, own, tokenizer) for each, own in found.items()}
    return Opened(store, llms, prompts)
