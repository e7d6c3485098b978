"""Writes GGUF files of random codes in the shapes of models that people run.

Sizes and rotations are those of the models' own configurations; a head is tied where theirs is, and
types of tensors are those of llama.cpp's files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from benchmarks.harness import shaped_file
from benchmarks.harness.shaped_file import HEAD, Tensors
from suffice_hw.kllm.design import MODELS as PAPERS
from suffice_hw.kllm.design import Shape

QWEN3 = "qwen3"
DIVISORS = "rope_freqs.weight"
# Llama 3.1's scaled rotation: waves longer than the original context are divided by the factor,
# those shorter than a fourth of it are kept, others are mixed.
ORIGINAL, LOW, HIGH = 8192, 1.0, 4.0
WIDE = 256  # what the rows of a matrix in a K format are a multiple of


@dataclass(frozen=True)
class Model(Shape):
    """A shape, and what else the files of its model say; `rope_factor` is of Llama 3.1."""

    title: str = ""
    head: int = 128  # width of a head
    context: int = shaped_file.CONTEXT
    architecture: str = "llama"
    norm_eps: float = 1e-5
    rope_base: float = 1e4
    rope_factor: float = 1.0
    tied: bool = False

    @property
    def head_size(self) -> int:
        """Width of a head, which here need not follow from the others."""
        return self.head

    def tensors(self) -> Tensors:
        """Return the name and the shape of each tensor."""
        found = shaped_file.tensors(self)
        width, head = self.width, self.head_size
        queries, keys = self.heads * head, self.kv_heads * head
        own: Tensors = {
            "attn_q": (queries, width),
            "attn_k": (keys, width),
            "attn_v": (keys, width),
            "attn_output": (width, queries),
        }
        if self.architecture == QWEN3:
            own |= {"attn_q_norm": (head,), "attn_k_norm": (head,)}
        for layer in range(self.layers):
            found |= {f"blk.{layer}.{name}.weight": size for name, size in own.items()}
        if self.tied:
            del found[HEAD]
        return found if self.rope_factor == 1 else found | {DIVISORS: (head // 2,)}

    def add_facts(self, writer: gguf.GGUFWriter) -> None:
        """Add the architecture's own metadata."""
        shaped_file.add_sizes(writer, self, self.hidden, self.context, self.norm_eps)
        writer.add_rope_freq_base(self.rope_base)

    def given(self) -> dict[str, np.ndarray]:
        """Return the tensors that are not random."""
        return {DIVISORS: divisors(self)}


def _of_paper(name: str, title: str, context: int = 4096, rope_base: float = 1e4) -> Model:
    shape = PAPERS[name]
    sizes = shape.width, shape.hidden, shape.heads, shape.kv_heads, shape.vocabulary
    return Model(name, shape.layers, *sizes, title=title, context=context, rope_base=rope_base)


MODELS = {
    model.name: model
    for model in (
        Model(
            *("llama-3.2-1b", 16, 2048, 8192, 32, 8, 128_256),
            title="Llama-3.2-1B",
            head=64,
            context=131_072,
            rope_base=5e5,
            rope_factor=32.0,
            tied=True,
        ),
        Model(
            *("qwen3-4b", 36, 2560, 9728, 32, 8, 151_936),
            title="Qwen3-4B",
            context=40_960,
            architecture=QWEN3,
            norm_eps=1e-6,
            rope_base=1e6,
            tied=True,
        ),
        Model(
            *("llama-3.1-8b", 32, 4096, 14336, 32, 8, 128_256),
            title="Llama-3.1-8B",
            context=131_072,
            rope_base=5e5,
            rope_factor=8.0,
        ),
        _of_paper("mistral-7b", "Mistral-7B", context=32_768, rope_base=1e6),  # v0.2
        _of_paper("llama-2-7b", "Llama-2-7B"),
        _of_paper("llama-2-13b", "Llama-2-13B"),
    )
}
TINY = Model("tiny", 2, 256, 256, 4, 2, 320, title="tiny", head=64, rope_factor=8.0, tied=True)


def types(model: Model, kind: str) -> dict[str, str]:
    """Return the type of each tensor; heads of Q4_0 and of fewer bits are Q6_K.

    So llama.cpp makes them, except in the smallest types.
    """
    sizes = model.tensors()
    found = shaped_file.types(sizes, model.layers, kind)
    if kind in ("Q4_0", *shaped_file.LOW) and model.width % WIDE == 0:
        found[shaped_file.head_of(sizes)] = "Q6_K"
    return found


def data_bytes(model: Model, kind: str) -> int:
    """Return the bytes of all tensors of a file."""
    return shaped_file.bytes_of(model.tensors(), types(model, kind))


def divisors(model: Model) -> np.ndarray:
    """Return the numbers that divide the frequencies of a rotation, float32 [head / 2]."""
    lengths = 2 * np.pi * model.rope_base ** (np.arange(0, model.head_size, 2) / model.head_size)
    kept = np.clip((ORIGINAL / lengths - LOW) / (HIGH - LOW), 0, 1)
    return (1 / ((1 - kept) / model.rope_factor + kept)).astype(np.float32)


def write(path: Path, model: Model, kind: str) -> Path:
    """Write a file whose matrices have type `kind`, and return its path.

    Raises:
        InputError: The disk has no room.
    """
    return shaped_file.write_tensors(
        path,
        model.architecture,
        model.add_facts,
        model.tensors(),
        types(model, kind),
        model.given(),
    )
