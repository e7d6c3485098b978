"""Rotate a Llama-like model's weights by random matrices that leave its outputs unchanged.

    python -m benchmarks.quant.rotated_model --model smollm2-135m -o FOLDER

The file of SmolLM2 has its weights on a grid of 4 bits, which favours formats close to that grid.
Hidden states times a random orthogonal matrix Q give the same logits if every matrix that reads
them is multiplied by Q' and every one that writes them by Q, once the norms' weights are folded
into the matrices that follow (RMSNorm of Q x is Q times that of x). Values of each head are rotated
by a matrix of their own. Then no weight is on the grid; `quality.py --model FOLDER` measures the
quantization of such a model. FOLDER holds float32 weights and the tokenizer.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.install import llama_of, write_folder
from suffice.checkpoints.files import locate
from suffice.errors import InputError
from suffice.text.tokenizer import load_tokenizer

SEED = 0


def orthogonal(size: int, random: torch.Generator) -> torch.Tensor:
    """Return a random orthogonal matrix [size, size], float64, uniformly distributed."""
    q, r = torch.linalg.qr(torch.randn(size, size, generator=random, dtype=torch.float64))
    found: torch.Tensor = q * r.diagonal().sign()
    return found


def rotate(model: Any) -> None:
    """Rotate the weights of transformers' Llama model in place; its head gets its own weight."""
    config, random = model.config, torch.Generator().manual_seed(SEED)
    q = orthogonal(config.hidden_size, random)
    embedding, body = model.get_input_embeddings().weight, model.model
    head = torch.nn.Linear(config.hidden_size, len(embedding), bias=False)
    _read(head.weight, model.get_output_embeddings().weight, q, body.norm)
    embedding.copy_(embedding.double() @ q.T)
    config.tie_word_embeddings = False
    model.set_output_embeddings(head)
    for layer in body.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for matrix in (attention.q_proj, attention.k_proj, attention.v_proj):
            _read(matrix.weight, matrix.weight, q, layer.input_layernorm)
        for matrix in (mlp.gate_proj, mlp.up_proj):
            _read(matrix.weight, matrix.weight, q, layer.post_attention_layernorm)
        for matrix in (attention.o_proj, mlp.down_proj):
            matrix.weight.copy_(q @ matrix.weight.double())
        _rotate_values(attention, config, random)
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.weight.fill_(1.0)
    body.norm.weight.fill_(1.0)


def _read(to: torch.Tensor, weight: torch.Tensor, q: torch.Tensor, norm: Any) -> None:
    """Adapt a matrix that reads normed hidden states to rotated ones of a norm without weights."""
    to.copy_((weight.double() * norm.weight.double()) @ q.T)


def _rotate_values(attention: Any, config: Any, random: torch.Generator) -> None:
    """Rotate the values of each key/value head, and rotate its query heads' outputs back."""
    group = config.num_attention_heads // config.num_key_value_heads
    values = attention.v_proj.weight.unflatten(0, (config.num_key_value_heads, -1))
    outputs = attention.o_proj.weight.unflatten(1, (config.num_attention_heads, -1))
    for own in range(len(values)):
        turn = orthogonal(values.shape[1], random)
        values[own] = turn @ values[own].double()
        for each in range(own * group, (own + 1) * group):
            outputs[:, each] = outputs[:, each].double() @ turn.T


@torch.no_grad()
def main() -> int:
    """Rotate a model and write it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("-o", "--output", type=Path, required=True)
    flags = parser.parse_args()
    try:
        path = locate(flags.model)
        if flags.output.exists():
            raise InputError(f"{flags.output} exists already: remove it, or write elsewhere")
        model = llama_of(path)
    except InputError as error:
        print(f"rotated_model: error: {error}", file=sys.stderr)
        return 2
    rotate(model)
    write_folder(model, load_tokenizer(path), flags.output)
    print(flags.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
