"""A decoder in PyTorch whose attention a selector takes over; see `selectors`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

import torch

from benchmarks.attention.selectors import BYTES, Head, Selector
from suffice.cache.growth import Upfront
from suffice.cache.kv import KVCache
from suffice.checkpoints.files import fingerprint, locate
from suffice.checkpoints.open import open_checkpoint
from suffice.errors import InputError
from suffice.quant.none import NoQuant
from suffice.quantize.torch_decoder import TorchDecoder
from suffice.quantize.torch_layers import visible
from suffice.text.tokenizer import Tokenizer, load_tokenizer


class Selecting(NamedTuple):
    """Logits after each token [T, V], the bytes that it read [T], and those of exact attention."""

    logits: torch.Tensor
    read: torch.Tensor
    held: torch.Tensor


class SelectingDecoder(TorchDecoder):
    """A decoder whose attention a selector can take over, in layers without a window.

    It counts the bytes that these layers read.
    """

    channels: torch.Tensor | None = None  # [L, G, D], see `Head`
    _selector: Selector | None = None
    _spread: torch.Tensor | None = None  # [L, G, D]: sums of |q k|, while they are wanted
    _read_bytes: torch.Tensor
    _held_bytes: torch.Tensor

    def cache(self, rows: int) -> KVCache:
        """Return a cache of at most `rows` tokens, in bfloat16."""
        return KVCache(self.config.rows, growth=Upfront(), limit=rows)

    def choose_channels(self, tokens: Sequence[int]) -> None:
        """Order each key/value head's channels by their mean |q k| on a text."""
        config = self.config
        shape = len(config.layers), config.kv_heads, config.head_size
        self._spread = torch.zeros(shape, device=self.device)
        self.forward(torch.tensor(tokens), self.cache(len(tokens)), logits="none")
        self.channels = self._spread.argsort(-1, descending=True)
        self._spread = None

    def select(self, tokens: Sequence[int], cache: KVCache, selector: Selector) -> Selecting:
        """Append tokens to a cache; they attend by a selector. Channels must have been chosen."""
        none = torch.zeros(len(tokens), device=self.device, dtype=torch.float64)
        self._read_bytes, self._held_bytes = none, none.clone()
        self._selector = selector
        try:
            logits = self.forward(torch.tensor(tokens), cache, logits="all")
        finally:
            self._selector = None
        assert logits is not None, "all were asked for"
        return Selecting(logits, self._read_bytes, self._held_bytes)

    def _mixed(self, index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        groups, tokens = len(k), q.shape[1]
        if self._spread is not None:
            sizes = q.abs().sum(1).view(groups, -1, q.shape[-1]).sum(1)
            self._spread[index] += sizes * k.abs().mean(1)
        if self._selector is None or self.config.layers[index].window:
            return super()._mixed(index, q, k, v)
        sees = visible(tokens, k.shape[1], None, q.device)
        of_groups = (q * self.config.attention_scale).view(groups, -1, *q.shape[1:])
        outputs = []
        assert self.channels is not None, "chosen before"
        for group, own in enumerate(of_groups):
            channels, seed = self.channels[index, group], index * groups + group
            head = Head(own, k[group], v[group], sees, channels, seed)
            found = self._selector.attend(head)
            outputs.append(found.output)
            self._read_bytes += found.bytes
            self._held_bytes += 2 * BYTES * head.size * head.seen
        return torch.cat(outputs)


class Opened(NamedTuple):
    """A model's decoder in float32, its tokenizer, and its name and hash."""

    decoder: SelectingDecoder
    tokenizer: Tokenizer
    model: dict[str, str]


def opened(model: str, device: torch.device) -> Opened:
    """Open a model on a device.

    Raises:
        InputError: It cannot be opened, or selectors cannot attend for it.
    """
    path = locate(model)
    checkpoint, tokenizer = open_checkpoint(path), load_tokenizer(path)
    if checkpoint.config.score_cap or checkpoint.config.spare_logits:
        raise InputError(f"{model}: selectors know no score caps or spare logits")
    decoder = SelectingDecoder.from_checkpoint(checkpoint, NoQuant("float32"))
    decoder.device = device
    return Opened(decoder, tokenizer, {"name": PurePath(model).name, "hash": fingerprint(path)})
