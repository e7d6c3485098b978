"""How a head is trained, and its sizes: those of a layer of the model that it drafts for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffice.checkpoints.draft_heads import COUNT, LAYERS, default_layers
from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.draft_head import DraftHead
from suffice.decoder.rotation import Rope
from suffice.errors import InputError
from suffice.train.answers import Text

_PANEL = 16
_HELD_OUT = 0.05  # of all texts
_MOST_HELD_OUT = 50
_FIRST_ALONE = 0.6  # of all updates
KEPT_UPDATES = 16  # of the latest, whose texts' hidden states are kept


@dataclass(frozen=True)
class Recipe:
    """How a head is trained.

    `draft_vocab` tokens can be drafted. Training-time test has up to `steps` drafts in a row, each
    with `decay` times the weight of the one before. An update is made on `batch` texts; the rate of
    AdamW rises to `rate` and falls to a tenth. The model runs all texts `epochs` times, in orders
    drawn by `seed`; what it says of some texts is used in `passes` over them, one after the other.
    """

    draft_vocab: int = 8192
    steps: int = 4
    decay: float = 0.8
    batch: int = 4
    rate: float = 1e-3
    epochs: int = 2
    passes: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"draft_vocab": _PANEL, "steps": 1, "batch": 1, "epochs": 1, "passes": 1, "seed": 0}
        for name, bound in least.items():
            if (given := getattr(self, name)) < bound:
                raise InputError(f"{name}={given}: must be at least {bound}")
        if not 0 < self.rate <= 1:
            raise InputError(f"rate={self.rate}: must be above 0 and at most 1")

    def drafts(self, update: int, updates: int) -> int:
        """Return how many drafts in a row an update of `updates` trains: one at first, then more.

        A draft costs as much as a text more, and until the first is right others matter little.
        """
        along = (update / updates - _FIRST_ALONE) / (1 - _FIRST_ALONE)
        return 1 if along < 0 else min(2 + int(along * (self.steps - 1)), self.steps)

    def parted(self, texts: Sequence[Text]) -> tuple[list[int], list[int]]:
        """Return the texts to train on and those held out, by their numbers.

        A text without a row to train on is among neither.

        Raises:
            InputError: There are too few texts.
        """
        fit = [
            at
            for at, text in enumerate(texts)
            if len(text.tokens) > max(text.prompt, self.steps) + 1
        ]
        order = np.random.default_rng(self.seed).permutation(fit).tolist() if fit else []
        count = min(max(round(_HELD_OUT * len(order)), 1), _MOST_HELD_OUT)
        if len(order) < 2:
            raise InputError(
                f"answers that are long enough: {len(order)}, but at least 2 are needed, one to "
                "train on and one to measure"
            )
        return sorted(order[count:]), sorted(order[:count])

    def batches(self, texts: Sequence[int]) -> list[list[int]]:
        """Return the texts of every update. Those of passes over the same texts are neighbours."""
        draw, found = np.random.default_rng([self.seed, 1]), []
        for _ in range(self.epochs):
            order, size = draw.permutation(texts), self.batch * KEPT_UPDATES
            for first in range(0, len(order), size):
                for _ in range(self.passes):
                    own = draw.permutation(order[first : first + size]).tolist()
                    found += [own[at : at + self.batch] for at in range(0, len(own), self.batch)]
        return found


def drafted_tokens(texts: Iterable[Text], vocab: int, count: int) -> NDArray[np.int64]:
    """Return the `count` most frequent tokens of answers, of `vocab`, ascending.

    Of equally frequent ones, those of smaller numbers.
    """
    found = Counter(token for text in texts for token in text.tokens[text.prompt :])
    ranked = sorted(range(vocab), key=lambda token: (-found[token], token))
    return np.array(sorted(ranked[:count]), np.int64)


def head_config(model: DecoderConfig, drafted: int) -> DecoderConfig:
    """Return the sizes of a head for a model: those of one of its layers.

    Raises:
        InputError: The model has sizes that no head can have.
    """
    width = model.width
    if width % _PANEL or model.embed_width != width:
        raise InputError(
            f"the model's hidden size {width} must be a multiple of {_PANEL}, and its embedding's"
        )
    heads, kv_heads, size = model.heads, model.kv_heads, model.head_size
    if model.latent:
        size = 64
        heads = kv_heads = max(width // size, 1)
    inner = model.mlp_width
    if model.experts or not model.gated:
        inner = -(-8 * width // (3 * _PANEL)) * _PANEL
    return DecoderConfig(
        vocab=drafted,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        mlp_width=inner,
        layers=(LayerConfig(),),
        norm="rms",
        norm_eps=1e-6,
        placement="pre",
        activation="silu",
        gated=True,
        attention_scale=size**-0.5,
        trained_positions=model.max_positions,
        ropes=(Rope(theta=model.ropes[0].theta if model.ropes else 10_000.0),),
        drafts=DraftHead(COUNT * width, model.vocab, shared=frozenset({"embed"})),
    )


def fused_layers(count: int) -> tuple[int, ...]:
    """Return the layers whose inputs a head of a model of `count` layers reads."""
    found = default_layers(count)
    return found if len(set(found)) == COUNT and list(found) == sorted(found) else _spread(count)


def _spread(count: int) -> tuple[int, ...]:
    """Return layers of a model that is too small for the usual ones."""
    if count < COUNT - 1:
        raise InputError(f"a model of {count} layers: a head reads the inputs of {COUNT}")
    return tuple(round(at * count / (COUNT - 1)) for at in range(COUNT))


def described(
    config: DecoderConfig, layers: Sequence[int], count: int, dtype: str
) -> dict[str, Any]:
    """Return the `config.json` of a head of a model of `count` layers, for SGLang and vLLM too."""
    assert config.drafts is not None
    found = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": config.drafts.vocab,
        "draft_vocab_size": config.vocab,
        "hidden_size": config.width,
        "intermediate_size": config.mlp_width,
        "num_hidden_layers": 1,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": config.trained_positions,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.ropes[0].theta,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
    }
    if tuple(layers) != default_layers(count):  # vLLM numbers inputs of layers, SGLang outputs
        before = [layer - 1 for layer in layers]
        found |= {LAYERS: list(layers)}
        found["eagle_config"] = {"use_aux_hidden_state": True, LAYERS: before}
    return found
