"""The shape of a model with latent attention, for files of random codes.

Sizes are those of the model's own configuration, except that there are fewer experts, so that the
file fits into memory next to its packed weights. A token goes to as many of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import gguf

from benchmarks.harness.shaped_file import EMBEDDING, HEAD, ROUTER, Tensors
from benchmarks.harness.shaped_models import Model


@dataclass(frozen=True)
class Latent(Model):
    """A shape whose joint rows have `rank` entries and `rotated` ones.

    A head's query has `plain` entries and the rotated ones, its value `plain`. The first layer has
    an MLP of the width `hidden`, the others `chosen` of the `experts` of width `inner`, and one
    of width `shared` for all tokens.
    """

    rank: int = 0
    plain: int = 0
    rotated: int = 0
    experts: int = 0
    chosen: int = 0
    inner: int = 0
    shared: int = 0

    def tensors(self) -> Tensors:
        """Return the name and the shape of each tensor."""
        found: Tensors = {EMBEDDING: (self.vocabulary, self.width)}
        for layer in range(self.layers):
            own = self._attention() | (self._experts() if layer else self._mlp())
            found |= {f"blk.{layer}.{name}.weight": size for name, size in own.items()}
        return found | {"output_norm.weight": (self.width,), HEAD: (self.vocabulary, self.width)}

    def _attention(self) -> Tensors:
        width, heads = self.width, self.heads
        return {
            "attn_norm": (width,),
            "attn_q": (heads * (self.plain + self.rotated), width),
            "attn_kv_a_mqa": (self.rank + self.rotated, width),
            "attn_kv_a_norm": (self.rank,),
            "attn_k_b": (heads, self.rank, self.plain),
            "attn_v_b": (heads, self.plain, self.rank),
            "attn_output": (width, heads * self.plain),
            "ffn_norm": (width,),
        }

    def _mlp(self) -> Tensors:
        width, hidden = self.width, self.hidden
        return {
            "ffn_gate": (hidden, width),
            "ffn_up": (hidden, width),
            "ffn_down": (width, hidden),
        }

    def _experts(self) -> Tensors:
        width, shared = self.width, self.shared
        return {
            ROUTER: (self.experts, width),
            "ffn_gate_exps": (self.experts, self.inner, width),
            "ffn_up_exps": (self.experts, self.inner, width),
            "ffn_down_exps": (self.experts, width, self.inner),
            "ffn_gate_shexp": (shared, width),
            "ffn_up_shexp": (shared, width),
            "ffn_down_shexp": (width, shared),
        }

    def add_facts(self, writer: gguf.GGUFWriter) -> None:
        """Add the architecture's own metadata."""
        super().add_facts(writer)
        data, name = writer.kv_data[-1], self.architecture
        of_heads = ("head_count_kv", "key_length", "value_length")
        for key in (*(f"attention.{each}" for each in of_heads), "rope.dimension_count"):
            data.pop(f"{name}.{key}")
        writer.add_head_count_kv(1)
        writer.add_key_length(self.rank + self.rotated)
        writer.add_value_length(self.rank)
        writer.add_key_length_mla(self.plain + self.rotated)
        writer.add_value_length_mla(self.plain)
        writer.add_rope_dimension_count(self.rotated)
        writer.add_kv_lora_rank(self.rank)
        writer.add_expert_count(self.experts)
        writer.add_expert_used_count(self.chosen)
        writer.add_expert_feed_forward_length(self.inner)
        writer.add_expert_shared_count(self.shared // self.inner)
        writer.add_expert_weights_scale(1.0)
        writer.add_leading_dense_block_count(1)


MODELS = {
    model.name: model
    for model in (
        Latent(
            *("deepseek-v2-lite-16", 27, 2048, 10_944, 16, 16, 102_400),
            title="DeepSeek-V2-Lite, 16 of 64 experts",
            context=163_840,
            architecture="deepseek2",
            norm_eps=1e-6,
            rank=512,
            plain=128,
            rotated=64,
            experts=16,
            chosen=6,
            inner=1408,
            shared=2816,
        ),
    )
}
