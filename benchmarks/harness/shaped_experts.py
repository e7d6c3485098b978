"""Writes a GGUF file of random codes in the shape of a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import gguf

from benchmarks.harness import shaped_file
from benchmarks.harness.shaped_file import EMBEDDING, HEAD, ROUTER, Tensors

ARCHITECTURE = "qwen3moe"
TYPES = ("Q4_0", "Q4_K_M")


@dataclass(frozen=True)
class ExpertShape:
    """Sizes of a model whose rows go to `chosen` of `experts`, each `inner` wide."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    experts: int
    chosen: int
    inner: int
    vocabulary: int

    def with_layers(self, layers: int) -> ExpertShape:
        """Return the shape with fewer layers, and a vocabulary that is smaller by as much.

        The head then takes the share of a step that it takes in the whole model.
        """
        return replace(self, layers=layers, vocabulary=self.vocabulary * layers // self.layers)


QWEN3_30B_A3B = ExpertShape("qwen3-30b-a3b", 48, 2048, 32, 4, 128, 128, 8, 768, 151_936)
TINY = ExpertShape("tiny", 2, 64, 4, 2, 16, 8, 2, 32, 320)


def tensors(shape: ExpertShape) -> Tensors:
    """Return the name and the shape of each tensor."""
    width, inner = shape.width, shape.inner
    queries, keys = (count * shape.head_size for count in (shape.heads, shape.kv_heads))
    layer: Tensors = {
        "attn_norm": (width,),
        "attn_q": (queries, width),
        "attn_q_norm": (shape.head_size,),
        "attn_k": (keys, width),
        "attn_k_norm": (shape.head_size,),
        "attn_v": (keys, width),
        "attn_output": (width, queries),
        "ffn_norm": (width,),
        ROUTER: (shape.experts, width),
        "ffn_gate_exps": (shape.experts, inner, width),
        "ffn_up_exps": (shape.experts, inner, width),
        "ffn_down_exps": (shape.experts, width, inner),
    }
    vocabulary = (shape.vocabulary, width)
    found: Tensors = {EMBEDDING: vocabulary}
    for index in range(shape.layers):
        found |= {f"blk.{index}.{name}.weight": size for name, size in layer.items()}
    return found | {"output_norm.weight": (width,), HEAD: vocabulary}


def write(path: Path, shape: ExpertShape, kind: str) -> Path:
    """Write a file whose matrices have a type of `TYPES`, and return its path.

    Raises:
        InputError: The disk has no room.
    """

    def add_facts(writer: gguf.GGUFWriter) -> None:
        inner = shape.inner * shape.chosen
        shaped_file.add_sizes(writer, shape, inner, norm_eps=1e-6)
        writer.add_rope_freq_base(1e6)
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.chosen)
        writer.add_expert_feed_forward_length(shape.inner)

    sizes = tensors(shape)
    type_of = shaped_file.types(sizes, shape.layers, kind)
    return shaped_file.write_tensors(path, ARCHITECTURE, add_facts, sizes, type_of)
