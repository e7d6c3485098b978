"""An attention function for transformers' interface: decode steps by kernels for GPUs.

It keeps nothing from call to call, so it runs with any cache of transformers; prompts run by
PyTorch. `model.config.suffice_attention` names the technique of a model's decode steps, "exact",
or "art" or "skip_softmax" with options; without it they are exact. Nothing of transformers is
imported: this is also what a folder for a hub of kernels has (`suffice.integrations.kernels_hub`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from suffice.backends.triton.operator import decode_attention
from suffice.errors import InputError
from suffice.integrations import UNKNOWN

supports_flash_attn = True  # with this transformers takes `flash_attn_forward` as it is


def flash_attn_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention of query [B, H, T, D] to key and value [B, G, S, D] as [B, T, H, D].

    `attention_mask`: bool [B, 1, T, S], as transformers makes it for SDPA; None: causal.

    Raises:
        InputError: Scores that are capped or biased, a mask of a decode step that hides tokens
            between others, or what `decode_attention` refuses.
    """
    for wish in UNKNOWN:
        if options.get(wish) not in (None, False):
            raise InputError(
                f"{type(module).__name__} asks for {wish}: suffice's kernels have none"
            )
    if query.shape[2] > 1:
        causal = options.get("is_causal", getattr(module, "is_causal", True))
        found = functional.scaled_dot_product_attention(
            query, key, value, attention_mask, dropout,
            is_causal=attention_mask is None and causal, scale=scaling, enable_gqa=True,
        )  # fmt: skip
        return found.transpose(1, 2).contiguous(), None
    first, length = _seen(attention_mask, key)
    owner = torch.arange(len(key), dtype=torch.int32, device=key.device)
    technique = getattr(getattr(module, "config", None), "suffice_attention", "exact")
    if key.stride() != value.stride():
        key, value = key.contiguous(), value.contiguous()
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    tokens = owner, first, length
    out, _ = decode_attention(query[:, :, 0], key, value, None, *tokens, technique, scale)
    return out[:, None], None


def _seen(mask: torch.Tensor | None, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first row that each request's new token sees, and the row after the last one.

    All layers of a pass share a mask, so what is found is kept with it: only the first layer waits
    for the device, to check the mask.
    """
    if mask is None:
        lengths = torch.full((len(key),), key.shape[2], dtype=torch.int32, device=key.device)
        return torch.zeros_like(lengths), lengths
    compiling = torch.compiler.is_compiling()  # then nothing is checked, or kept
    if not compiling and (known := getattr(mask, "suffice_seen", None)) is not None:
        found: tuple[torch.Tensor, torch.Tensor] = known
        return found
    if mask.dtype != torch.bool:
        raise InputError(f"attention_mask is {mask.dtype}: must be torch.bool, as SDPA's is")
    shown = mask[:, 0, -1, : key.shape[2]].expand(len(key), -1).int()
    first, length = shown.argmax(-1), key.shape[2] - shown.flip(-1).argmax(-1)
    ends = first.int(), length.int()
    if not compiling:
        if (shown.sum(-1) != length - first).any():
            raise InputError("attention_mask hides tokens between others: must hide only padding")
        mask.suffice_seen = ends  # type: ignore[attr-defined]
    return ends
