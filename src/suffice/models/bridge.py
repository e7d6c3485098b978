# bridge: the whole file goes when its callers do
"""Arrays as PyTorch's tensors and back, in the same memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from suffice.models.stored_file import Array

__all__ = ["as_array", "as_torch"]


def as_torch(array: Array | torch.Tensor) -> torch.Tensor:
    """Return an array, bfloat16 or of a type that NumPy has, as a tensor."""
    if isinstance(array, torch.Tensor):
        return array
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_array(tensor: torch.Tensor) -> Array:
    """Return a tensor as an array."""
    if tensor.dtype == torch.bfloat16:
        found: Array = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return found
    return tensor.numpy()
