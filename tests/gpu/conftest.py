"""Tests of the kernels for GPUs; see tests/conftest.py for how they run without one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="needs pip install 'suffice[gpu]'")


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Return a function that gives a tiny model of a few layers; nobody changes them."""
    import torch

    import tiny
    from gpu.device_rows import DEVICE
    from hf_reference import load

    def made(family: str, layers: int = 2) -> Any:
        folder = tiny.make(tmp_path_factory.mktemp(family), family, num_hidden_layers=layers)
        return load(folder, torch.float32).to(DEVICE)

    return functools.cache(made)


@pytest.fixture(autouse=True, scope="package")
def quick_calls() -> Iterator[None]:
    """Have the interpreter change its language once a kernel, not at each call of a function.

    That takes half of the time. It looks up types once, and integers do not check their sums, which
    compiled kernels do not either: a quarter less. A program rounds many rows at a time.
    """
    if not triton.knobs.runtime.interpret:
        yield
        return
    from triton import language
    from triton.runtime import interpreter

    from suffice.backends.triton import bases

    change = interpreter._patch_lang

    def called(function: Any, *given: Any, **named: Any) -> Any:
        used = (language, language.core)
        own = [each for each in function.fn.__globals__.values() if any(each is x for x in used)]
        if any(language.core.is_builtin(each.load) for each in own):
            change(function.fn)
        return function.rewrite()(*given, **named)

    builder, type_of = interpreter.interpreter_builder, interpreter._get_np_dtype
    types: dict[str, Any] = {}

    def known(own: Any) -> Any:
        if str(own) not in types:
            types[str(own)] = type_of(own)
        return types[str(own)]

    unchecked = dataclasses.replace(builder.options, sanitize_overflow=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.InterpretedFunction, "__call__", called)
        patch.setattr(interpreter, "_get_np_dtype", known)
        patch.setattr(builder, "options", unchecked)
        patch.setattr(bases, "ELEMENTS", 1 << 14)
        yield
