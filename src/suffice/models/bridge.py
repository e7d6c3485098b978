"""Tensors as arrays and back, until everything that reads weights yields arrays."""  # bridge

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["as_array", "as_tensor"]


def as_array(tensor: Any) -> np.ndarray:
    """Return a tensor as an array."""
    if isinstance(tensor, np.ndarray):
        return tensor
    import torch

    if tensor.dtype == torch.bfloat16:
        bits: np.ndarray = tensor.contiguous().view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    found: np.ndarray = tensor.contiguous().numpy()
    return found


def as_tensor(array: np.ndarray) -> Any:
    """Return an array as a tensor."""
    import torch

    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
