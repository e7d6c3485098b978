"""A second device for PyTorch that every machine has: tensors there are not those of the host.

Inside `present()`, tensors on `DEVICE` are computed by the host, but an operation that mixes them
with the host's fails, as it would on a GPU, and so does `numpy()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

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
    leaves = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    there = [each for each in leaves if isinstance(each, There)]
    mixed = there and any(each.dim() for each in leaves if not isinstance(each, There))
    if mixed and func not in MOVES:
        raise RuntimeError(f"{func}: tensors of the host and of another device")
    device = kwargs.get("device")
    stays = bool(there) if device is None else torch.device(device) == DEVICE
    own = tree_map(lambda each: each.here if isinstance(each, There) else each, (args, kwargs))
    if device is not None:
        own[1]["device"] = "cpu"
    found = func(*own[0], **own[1])
    if not stays:
        return found.clone() if there and isinstance(found, torch.Tensor) else found
    wrapped = tree_map(lambda each: There(each) if isinstance(each, torch.Tensor) else each, found)
    return return_and_correct_aliasing(func, args, kwargs, wrapped)


@contextmanager
def present() -> Iterator[torch.device]:
    """Yield the device, which exists until the end."""
    with _Mode():
        yield DEVICE
