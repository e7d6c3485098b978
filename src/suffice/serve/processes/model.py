"""The engine of a real model, made in the engine's process."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from suffice.cache import BLOCK
from suffice.decoder.shelf import Shelf
from suffice.engine.config import Config
from suffice.engine.llm import LLM
from suffice.engine.load import load
from suffice.engine.options import ON_DISK, EngineOptions
from suffice.engine.runner import Runner
from suffice.engine.service import Engine
from suffice.errors import OptionError
from suffice.serve.processes import wire
from suffice.serve.processes.hosted import Opened

# Options that change no text: the fingerprint is the same whatever they are.
SAME_TEXT = ("threads", "max_num_seqs", "kv_cache_bytes", *ON_DISK)
MOST_WAITING = 8192  # the server limits requests; one may have many prompts


def opened(
    options: Mapping[str, Any], limits: Mapping[str, Any], memory: int | None = None
) -> Opened:
    """Load a model; return its engine and what the server has to know of it.

    `memory` is the descriptor of the memory that engines share; see `decoder.shelf`.

    Raises:
        InputError: The model or an option cannot be used.
    """
    config = Config.built(EngineOptions(**options))
    shelf = Shelf(memory)
    config, runner, tokenizer = load(config, shelf)
    shelf.close()
    _check_memory(config, runner)
    assert config.max_model_len is not None, "the config is resolved"
    llm = LLM.from_parts(config, runner, tokenizer)
    engine = Engine(llm, max_queue=MOST_WAITING, **limits)
    facts = wire.Facts(
        max_model_len=config.max_model_len,
        vocabulary=runner.vocabulary,
        max_num_seqs=config.max_num_seqs,
        fingerprint=fingerprint(options, runner.stamp),
        stamp=runner.stamp,
        weight_bytes=runner.weight_bytes,
        attentions=tuple(engine.attentions),
        pooling=runner.pooling.plain,
    )
    return Opened(engine, facts, llm.maker.grammars.compiled)


def fingerprint(options: Mapping[str, Any], stamp: str) -> str:
    """Return what tells apart answers of different models and options, without loading a model.

    `stamp` is of the model's files; see `checkpoints.files.fingerprint`.
    """
    named = {name: value for name, value in options.items() if name not in SAME_TEXT}
    asked = Config.built(EngineOptions(**named))
    digest = hashlib.blake2b(f"{stamp} {asked}".encode(), digest_size=6)
    return f"fp_{digest.hexdigest()}"


def _check_memory(config: Config, runner: Runner) -> None:
    """Refuse a limit of memory in which no request could ever run: caches have whole blocks."""
    probe = runner.open("", runner.context)
    least = min(BLOCK, runner.context) * probe.cache.row_bytes
    runner.close(probe)
    if config.kv_cache_bytes is not None and config.kv_cache_bytes < least:
        must = f"must be at least {least}, the bytes of the shortest request's keys and values"
        raise OptionError("kv_cache_bytes", config.kv_cache_bytes, must)
