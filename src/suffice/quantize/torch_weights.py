"""The weights of a decoder as PyTorch computes with them: products, norms and rotations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from suffice.decoder.config import DecoderConfig
from suffice.decoder.weights import DecoderWeights
from suffice.quant import PackedLinear
from suffice.quantize.torch_layers import layer_norm, linear, rms_norm, rows_of

HOST = torch.device("cpu")


class TorchWeights(DecoderWeights):
    """Matmuls run in `dtype`, norms in float32; all on `device`, to which dense weights move."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, PackedLinear | np.ndarray],
        dtype: torch.dtype = torch.float32,
        device: torch.device = HOST,
    ) -> None:
        super().__init__(config, weights)
        self.dtype = dtype
        self.device = device
        self._tables: list[tuple[torch.Tensor, torch.Tensor]] = []

    def expert(self, name: str, expert: int, rows: int, x: torch.Tensor) -> torch.Tensor:
        """Multiply by an expert's `rows` rows of a stack."""
        return linear(x, rows_of(self.matrix(name), expert * rows, rows), self.dtype)

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.matrix(name), self.dtype)

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        weight, eps = self._tensor(name), self.config.norm_eps
        if self.config.norm == "rms":
            return rms_norm(x, weight, eps)
        bias = self._tensor(name + ".bias") if self.config.norm_biases else None
        return layer_norm(x, weight, bias, eps)

    def _head_norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Normalize each of the heads [H, T, D], or all of them together."""
        weight, eps = self._tensor(name), self.config.norm_eps
        if not self.config.whole_qk_norm:
            return rms_norm(x, weight, eps)
        heads = x.transpose(0, 1)
        return rms_norm(heads.flatten(1), weight, eps).view(heads.shape).transpose(0, 1)

    def _tensor(self, name: str) -> torch.Tensor:
        weight = self.weights[name]
        assert isinstance(weight, np.ndarray), name
        return self._moved(weight)

    def _moved(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)

    def _rope_rows(self, rows: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return tables of at least `rows` rows, kept between calls."""
        if self.config.ropes and (not self._tables or len(self._tables[0][0]) < rows):
            tables = self.rope_tables(1 << (rows - 1).bit_length())
            self._tables = [(self._moved(cos), self._moved(sin)) for cos, sin in tables]
        return self._tables
