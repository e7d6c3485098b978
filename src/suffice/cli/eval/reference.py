"""What `--against` names: the model that another, or a lossy setting of it, is compared with."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suffice.errors import InputError, unknown
from suffice.pull import MODELS, resolve

if TYPE_CHECKING:
    from suffice.cli.options import ModelFlags
    from suffice.engine.llm import LLM

EXACT = "exact"
NO_ADAPTER: dict[str, Any] = {"adapters": (), "adapter": None, "merge_adapter": None}


def reference_flags(against: str, model: ModelFlags) -> ModelFlags:
    """Return the flags of the reference, as it is stored: `exact` is the model itself.

    A model that is named has no adapters, though it may be the one that is measured.

    Raises:
        InputError: There is no such model, or it is the same one under the same settings.
    """
    word = "/" not in against and not against.endswith(".gguf")
    if word and against not in (EXACT, *MODELS) and not (against and Path(against).exists()):
        raise unknown("reference (--against)", against, (EXACT, *MODELS))
    name = model.model if against == EXACT else against
    same = Path(resolve(name)) == Path(resolve(model.model))
    bare = model.options if against == EXACT else dataclasses.replace(model.options, **NO_ADAPTER)
    if same and not model.inexact() and bare == model.options:
        raise InputError(
            f"--against {against}: would compare {model.model} with itself: add what is to be "
            "measured, such as --quant int8, or name another model"
        )
    exact = dataclasses.replace(model, options=bare).exact()
    own: dict[str, Any] = {"model": name} | ({} if same else {"tokenizer": None})
    options = dataclasses.replace(exact.options, **own)
    return dataclasses.replace(exact, options=options)


def check_comparable(llm: LLM, reference: LLM, window: int) -> None:
    """Require that two models have the same tokens under the same ids, and room for a window.

    Raises:
        InputError: They have not.
    """
    context = reference.config.max_model_len or 0
    if window > context:
        raise InputError(
            f"--window={window}: must not be more than {context}, the context length of the "
            f"reference, {reference.config.model}"
        )
    own, other = _hash(llm), _hash(reference)
    sizes = llm.runner.vocabulary, reference.runner.vocabulary
    if own != other or sizes[0] != sizes[1]:
        raise InputError(
            f"--against {reference.config.model}: has another vocabulary ({sizes[1]} tokens, hash "
            f"{other}) than {llm.config.model} ({sizes[0]}, {own}): predictions can only be "
            "compared token by token"
        )


def _hash(llm: LLM) -> str:
    """Return a hash of a model's tokens and their ids."""
    tokens = json.dumps(sorted(llm.tokenizer.vocabulary().items()))
    return hashlib.sha256(tokens.encode()).hexdigest()[:16]
