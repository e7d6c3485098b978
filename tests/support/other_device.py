"""A second device for PyTorch that every machine has: tensors there are not those of the host.

Inside `present()`, tensors on `DEVICE` are computed by the host, but an operation that mixes them
with the host's fails, as it would on a GPU, and so does `numpy()`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

DEVICE = torch.device("meta")  # the name of a device without memory is borrowed
MOVES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class There(torch.Tensor):
    """A tensor on the other device; `here` has its values."""

    here: torch.Tensor

    @staticmethod
    def __new__(cls, here: torch.Tensor) -> There:
        found: There = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            here.shape,
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=DEVICE,
        )
        found.here = here
        return found

    def __repr__(self, **_: Any) -> str:
        return f"There({self.here!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    leaves: list[torch.Tensor] = []
    own, named = _here(args, leaves), _here(kwargs, leaves)
    there = any(isinstance(each, There) for each in leaves)
    mixed = there and any(each.dim() for each in leaves if not isinstance(each, There))
    if mixed and func not in MOVES:
        raise RuntimeError(f"{func}: tensors of the host and of another device")
    device = kwargs.get("device")
    stays = there if device is None else torch.device(device) == DEVICE
    if device is not None:
        named["device"] = "cpu"
    found = func(*own, **named)
    if not stays:
        return found.clone() if there and isinstance(found, torch.Tensor) else found
    wrapped = _there(found)
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if _aliases(func) else wrapped


def _here(value: Any, leaves: list[torch.Tensor]) -> Any:
    """Return a value, or a collection of some, with the tensors of the host; note all tensors."""
    if isinstance(value, torch.Tensor):
        leaves.append(value)
        return value.here if isinstance(value, There) else value
    if isinstance(value, (tuple, list)):
        return type(value)(_here(each, leaves) for each in value)
    if isinstance(value, dict):
        return {name: _here(each, leaves) for name, each in value.items()}
    return value


def _there(value: Any) -> Any:
    """Return what an operation returned, with its tensors on the other device."""
    if isinstance(value, torch.Tensor):
        return There(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_there(each) for each in value)
    return value


@functools.cache
def _aliases(func: Any) -> bool:
    """Return whether an operation writes into an argument, or returns a part of one."""
    return any(each.alias_info is not None for each in func._schema.arguments)


@contextmanager
def present() -> Iterator[torch.device]:
    """Yield the device, which exists until the end."""
    with _Mode():
        yield DEVICE
