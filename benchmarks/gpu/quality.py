"""Perplexity and divergence of SmolLM2 by each technique, on a GPU and on the CPU."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.decode import enabled_with, real_model
from benchmarks.gpu.parts import Cell, Part, Place
from benchmarks.gpu.techniques import SETTINGS
from benchmarks.harness.tables import CellStore, markdown
from suffice.integrations.checks import cache_argument

MODEL, BATCH, PROMPT, TOKENS = "SmolLM2-135M", 8, 1792, 256
COLUMNS = ("exact", *SETTINGS)

_exact: dict[Place, torch.Tensor] = {}  # log-probabilities of exact attention, [B, T, V]


def log_probabilities(place: Place, attention: str) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Return those of the tokens after each prompt [B, T, V], the tokens, and the trace."""
    model, texts = real_model(place, MODEL)
    prompt, tokens = (100, 3) if place.tiny else (PROMPT, TOKENS)
    ids = torch.tensor([text[: prompt + tokens] for text in texts[:BATCH]], device=place.device)
    name, found = cache_argument(model.forward) or "", []
    with enabled_with(place, model, attention=attention, graphs=place.cuda) as enabled:
        cache = enabled.new_cache()
        with torch.no_grad():
            model(ids[:, :prompt], logits_to_keep=1, **{name: cache})
            for at in range(prompt, prompt + tokens - 1):
                logits = model(ids[:, at : at + 1], **{name: cache}).logits[:, -1]
                found.append(logits.float().log_softmax(-1))
        return torch.stack(found, 1), ids[:, prompt + 1 :], enabled.trace


def measured(place: Place, attention: str) -> dict[str, Any]:
    """Return the perplexity, the divergence from exact attention, and the share of rows read."""
    if place not in _exact:
        _exact[place] = log_probabilities(place, "exact")[0]
    found, tokens, trace = log_probabilities(place, attention)
    exact = _exact[place]
    loss = -found.gather(2, tokens[..., None]).mean()
    divergence = (exact.exp() * (exact - found)).sum(-1)
    return {
        "perplexity": math.exp(float(loss)),
        "divergence": float(divergence.mean()),
        "agree": float((exact.argmax(-1) == found.argmax(-1)).float().mean()),
        "share": trace.key_fraction,
        "tokens": tokens.numel(),
    }


def cells(place: Place) -> Iterator[Cell]:
    """Return a cell for each technique."""
    for setting in COLUMNS:
        yield Cell(MODEL, setting, partial(measured, place, setting))


def table(store: CellStore) -> str:
    """Return the figures of each technique, next to those of native code, if they are there."""
    head = ["", "perplexity", "KL divergence", "same first token", "keys read"]
    names = "perplexity", "divergence", "agree", "share"
    native = _native(store)
    head += [f"{name}, CPU" for name in head[1:]] if native else []
    rows = []
    for columns in store.cells.values():
        for setting, own in columns.items():
            theirs = [native.get(setting, {}).get(name, "") for name in names] if native else []
            rows.append([f"`{setting}`", *(own[name] for name in names), *theirs])
    return markdown(head, rows)


def _native(store: CellStore) -> dict[str, Any]:
    """Return the cells of `--cpu`, next to a GPU's."""
    path = store.folder / "quality_cpu.json"
    if store.name == path.stem or not path.is_file():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["cells"][MODEL]
    return found


PART = Part("quality", "perplexity and divergence of SmolLM2-135M", cells, table)
