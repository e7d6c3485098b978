"""Runs prompts once for several techniques that differ only in decoding.

Most techniques do not change prompts, and one that does runs its own; a policy observes a prompt's
queries and then selects from its tokens. One run of a prompt, observed by all policies, serves
every engine on the same weights: its keys and values are copied into each engine's own cache, where
its policy selects. The engine runs it, or PyTorch on a device: a GPU does in a second what takes a
core half a minute.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.harness import record, torch_device
from benchmarks.harness.settings import accepted, with_techniques
from benchmarks.harness.tables import Cell, CellStore
from suffice.attention import ATTENTIONS, calibration
from suffice.cache.kv import KVCache
from suffice.checkpoints.files import locate
from suffice.engine.config import Config
from suffice.engine.llm import LLM
from suffice.engine.load import load
from suffice.engine.protocol import Rows
from suffice.engine.runner import Runner, shown_to
from suffice.engine.runner import Sequence as Running
from suffice.errors import InputError
from suffice.eval.record import settings as settings_of
from suffice.policy import Policy, QueryObserver, Windows
from suffice.policy.choice import Budgeted, KeepAll
from suffice.quantize.torch_decoder import Logits, TorchDecoder

CALIBRATED_ON = "calibrated_on"  # of a cell
TORCH_ROWS = 2048  # of a prompt that PyTorch runs at a time


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


class InTorch(Runner):
    """A runner whose prompts PyTorch runs on a device, in float32; its cache rounds as ever."""

    def __init__(self, config: Config, base: Runner, device: torch.device) -> None:
        super().__init__(config, base.decoder, base.sample, stamp=base.stamp)
        weights = base.decoder.weights
        self._torch = TorchDecoder(base.decoder.config, weights, device=device)

    def prefill(self, sequence: Running, tokens: list[int]) -> np.ndarray:
        """Run a prompt; return the last token's logits, float32 [V]."""
        self.begin(sequence, len(tokens))
        logits = None
        for start in range(0, len(tokens), TORCH_ROWS):
            chunk = tokens[start : start + TORCH_ROWS]
            asked: Logits = "last" if start + len(chunk) == len(tokens) else "none"
            watch, cache = shown_to(sequence.watch, start + len(chunk)), sequence.cache
            logits = self._torch.forward(torch.tensor(chunk), cache, logits=asked, watch=watch)
        assert logits is not None, "the last chunk's were asked for"
        self.end(sequence)
        return logits.cpu().numpy()


class Prompts:
    """The prompts of several engines; each is run at its first use and kept until `forget`.

    By the engine, or by PyTorch on a device.
    """

    def __init__(
        self, base: Runner, policies: Sequence[Policy], device: torch.device | None = None
    ) -> None:
        self._shown = Shown(policies)
        config = dataclasses.replace(base.config, policy=self._shown)
        if device is None:
            self._runner = Runner(config, base.decoder, base.sample, stamp=base.stamp)
        else:
            self._runner = InTorch(config, base, device)
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
    """A runner that copies prompts which were run already.

    A prompt comes in parts. Rows of all but the last are zeros, until the last one tells which
    prompt it is. A technique that leaves out parts of prompts runs its own, and so does a head that
    drafts from their hidden states.
    """

    shares_prompts = False  # a prompt is known by all of its tokens

    def __init__(self, config: Config, base: Runner, prompts: Prompts) -> None:
        super().__init__(config, base.decoder, base.sample, stamp=base.stamp)
        self._prompts = prompts
        self._parts: dict[int, list[int]] = {}  # tokens of prompts so far, by cache

    @property
    def _runs_own(self) -> bool:
        return self.tiled or self.head is not None

    def begin(self, sequence: Running, rows: int) -> None:
        """Expect a prompt; see `Runner`."""
        super().begin(sequence, rows)
        self._parts[id(sequence.cache)] = []

    def run(self, batch: Sequence[Rows]) -> list[np.ndarray]:
        """Copy rows of prompts, and run others; see `Runner`."""
        if self._runs_own or not any(rows.prompt for rows in batch):
            return super().run(batch)
        others = [rows for rows in batch if not rows.prompt]
        found = iter(super().run(others) if others else ())
        self.maxima = None  # of the copied ones they are not known
        return [self._copied(rows) if rows.prompt else next(found) for rows in batch]

    def _copied(self, rows: Rows) -> np.ndarray:
        """Append a part of a prompt; return the logits that it asks for, [outputs, V]."""
        cache, tokens = rows.sequence.cache, self._parts[id(rows.sequence.cache)]
        tokens += rows.tokens
        if rows.outputs == 0:
            shape = cache.heads(0), len(rows.tokens), cache.size(0)
            part = np.zeros(shape, np.float32)
            _append(cache, [(part, part)] * cache.layers, len(rows.tokens))
            return np.empty((0, self.vocabulary), np.float32)
        prompt = self._prompts.run(tokens)
        whole = prompt.cache
        cache.truncate(0)
        pairs = ((whole.keys(layer), whole.values(layer)) for layer in range(cache.layers))
        _append(cache, pairs, len(tokens))
        return prompt.logits[None]

    def end(self, sequence: Running) -> None:
        """Let the policy select; see `Runner`."""
        tokens = self._parts.pop(id(sequence.cache))
        if self._runs_own:
            super().end(sequence)
            return
        watch = self._prompts.run(tokens).observers[watching(self.config.policy)]
        sequence.watch = None
        self.config.policy.after_prompt(sequence.cache, self.windows, watch)


def _append(cache: KVCache, pairs: Iterable[tuple[np.ndarray, np.ndarray]], rows: int) -> None:
    cache.reserve(rows)
    for layer, (keys, values) in enumerate(pairs):
        cache.append(layer, keys, values)
    cache.advance(rows)


def runners(
    config: Config,
    base: Runner,
    settings: dict[str, dict[str, Any]],
    device: torch.device | None = None,
) -> tuple[dict[str, Runner], Prompts]:
    """Return a runner for each setting, on one runner's weights, and the prompts they share.

    A setting has the options that differ from `config`, such as `attention` and `policy`. `config`
    must be resolved. `device`: where PyTorch runs prompts; None: the engine runs them.

    Raises:
        InputError: A calibration of another model, or a setting that changes prompts, when PyTorch
            is to run them.
    """
    prompts = Prompts(base, [setting["policy"] for setting in settings.values()], device)
    found: dict[str, Runner] = {
        name: Sharing(with_techniques(config, setting, base.stamp), base, prompts)
        for name, setting in settings.items()
    }
    tiled = [name for name, runner in found.items() if runner.tiled]
    if tiled and device is not None:
        raise InputError(f"{tiled[0]}: the engine runs its prompts, so PyTorch cannot: no --device")
    return found, prompts


def sentence(store: CellStore) -> str:
    """Return what a table says of who ran the prompts, and of what settings were calibrated on."""
    said = f" Prompts were run by {store.config['prompts']}." if "prompts" in store.config else ""
    return said + of_calibrations(store)


def of_calibrations(store: CellStore, *, by_row: bool = False) -> str:
    """Return what a table says of the texts that settings, its columns or rows, are made on."""
    texts: dict[str, dict[str, None]] = {}
    for row, cells in store.cells.items():
        for column, cell in cells.items():
            if text := cell.get(CALIBRATED_ON):
                about = "{name}, {windows} windows of {window} tokens".format(**text)
                name = row if by_row else column
                texts.setdefault(about, {})[f"`{name}`" if ":" in name else name] = None
    return "".join(
        f" Calibrated on a text ({about}): {', '.join(settings)}."
        for about, settings in texts.items()
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `opened`: the device of prompts, and a calibration."""
    torch_device.add_option(parser, None)
    parser.add_argument(
        "--calibration", help="of the model, for techniques that need one; default: next to it"
    )


def calibrated_on(config: Config, path: str | None) -> Cell:
    """Return what a setting was calibrated on, for its cells: a text, a digest, a budget if any.

    The digest is of the parts of the calibration that the setting uses. `path`: the calibration's
    file; None: next to the model. Nothing without a calibration.

    Raises:
        InputError: The calibration does not say which text it is of.
    """
    if config.calibration is None:
        return {}
    where = path or calibration.default_path(locate(config.model))
    stored, used = calibration.parts(where), list[dict[str, Any]]()
    if config.attention.calibrated:
        used.append(stored["attention"][ATTENTIONS.name_of(config.attention)])
    if config.softmax.coded:
        used.append(stored["softmax"])
    if not all("text" in part for part in used):
        raise InputError(f"calibration {where}: does not say which text it is of: calibrate again")
    plain = [{name: part[name] for name in part if name != "made"} for part in used]
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]
    own = {name: part[name] for part in used for name in part if name == "budget"}
    return {CALIBRATED_ON: used[0]["text"] | own | {"digest": digest}}


def set_calibrations(store: CellStore, configs: dict[str, Config], path: str | None) -> None:
    """Let new cells of settings, which are rows or columns, say what these were calibrated on.

    Raises:
        InputError: A stored cell of a setting has another calibration, or none says its text.
    """
    for setting, config in configs.items():
        own = store.of_settings[setting] = calibrated_on(config, path)
        for row, cells in store.cells.items():
            for column, cell in cells.items():
                if setting in (row, column) and not _alike(own, cell):
                    raise InputError(
                        f"{setting}: results are of another calibration, "
                        f"{cell.get(CALIBRATED_ON)}: give another folder with --out"
                    )


def _alike(own: Cell, cell: Cell) -> bool:
    """Whether a cell has this calibration, as far as it says; the first ones had no digest."""
    found, before = own.get(CALIBRATED_ON), cell.get(CALIBRATED_ON)
    if found is None or before is None:
        return found == before
    return {name: found[name] for name in found if name in before or name != "digest"} == before


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

    `flags.device`: where PyTorch runs prompts; None: the engine runs them.

    `context`: tokens of the longest prompt and its answer. `more`: what figures depend on, next to
    the model's own settings.

    Raises:
        InputError: A model, a setting or results that cannot be used.
    """
    device = None if flags.device is None else torch_device.chosen(flags.device)
    if device is not None:
        where = torch_device.of_cell(device).get("gpu", "the host")
        more["prompts"] = f"PyTorch in float32 on {where}"
        torch_device.use_threads(flags.threads)
    refused: dict[str, str] = {}
    asked = list(dict.fromkeys(("exact", *flags.settings)))
    if flags.calibration is not None:
        calibration.read(flags.calibration)  # refuses a file that is none for any setting
    techniques = accepted(flags.model, asked, refused, calibration=flags.calibration)
    config = Config.create(flags.model, max_model_len=context, threads=flags.threads)
    config, base, tokenizer = load(config)
    whole = settings_of(config)
    shown = {each: whole[each] for each in ("model", "dtype", "kv_cache_dtype", "quant")}
    facts = record.facts()
    store = CellStore(flags.out, f"{name}_{Path(flags.model).name}", shown | more, facts, table)
    store.read()
    measured = {setting for cells in store.cells.values() for setting in cells}
    store.refused |= {each: why for each, why in refused.items() if each not in measured}
    for setting in techniques:
        store.refused.pop(setting, None)
    found, prompts = runners(config, base, techniques, device)
    configs = {setting: own.config for setting, own in found.items()}
    set_calibrations(store, configs, flags.calibration)
    llms = {each: LLM.from_parts(own.config, own, tokenizer) for each, own in found.items()}
    return Opened(store, llms, prompts)
