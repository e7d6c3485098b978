"""Tokenizer classes of transformers (5.x) for the model families at hand.

Such a class takes vocabulary, merges and post-processor from `tokenizer.json` and builds the rest
itself. Where no class goes with a model, `tokenizer.json` is the tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers

from suffice.text.tokenizer_json import bpe, pairs, refused, vocabulary

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # sentencepiece's spelling of a space
_OF_MODEL = {
    "gemma3_text": "GemmaTokenizer",
    "opt": "GPT2Tokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
}
_MISNAMED = ("qwen2",)  # its folders often name another class
_NO_CLASS = ("mistral",)

_Fields = Mapping[str, Any]


@dataclass(frozen=True)
class TokenizerClass:
    """A class: its special tokens by role, and how it builds a tokenizer.

    `build` takes the model of tokenizer.json, tokenizer_config.json, the special tokens by role and
    the name of the source for errors.
    """

    special: Mapping[str, str]
    build: Callable[[_Fields, _Fields, Mapping[str, str], object], Tokenizer]


def class_of(
    config: _Fields, settings: _Fields, where: object, *, byte_level: bool
) -> TokenizerClass | None:
    """Return the class for a model, None where tokenizer.json is the tokenizer.

    `byte_level` tells whether tokenizer.json spells bytes as characters.

    Raises:
        InputError: The class's name is no text.
    """
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    kind = config.get("model_type")
    if not isinstance(named, str | None) or not isinstance(kind, str | None):
        raise refused(where, "'tokenizer_class' and 'model_type' must be texts")
    name = (named or _OF_MODEL.get(kind or "", "")).removesuffix("Fast")
    if kind in _MISNAMED:
        name = _OF_MODEL[kind]
    elif kind in _NO_CLASS or (name == "LlamaTokenizer" and byte_level):
        return None
    return CLASSES.get(name)


def spaces_back(*, strip: bool) -> decoders.Decoder:
    """Return the decoder of sentencepiece's tokens; `strip` drops a space that starts the text."""
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)


def _llama(model: _Fields, settings: _Fields, _: Mapping[str, str], where: object) -> Tokenizer:
    tokenizer = _tokenizer(model, where, fuse_unk=True, byte_fallback=True)
    prefix = settings.get("add_prefix_space")
    prefix = True if prefix is None else prefix
    scheme = ("always" if settings.get("legacy") else "first") if prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=False)
    tokenizer.decoder = spaces_back(strip=prefix)
    return tokenizer


def _gemma(model: _Fields, _: _Fields, special: Mapping[str, str], where: object) -> Tokenizer:
    unknown = special.get("unk_token")
    tokenizer = _tokenizer(model, where, fuse_unk=True, byte_fallback=True, unk_token=unknown)
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = spaces_back(strip=False)
    return tokenizer


def _qwen2(model: _Fields, settings: _Fields, _: Mapping[str, str], where: object) -> Tokenizer:
    tokenizer = _tokenizer(model, where)
    prefix = settings.get("add_prefix_space") or False
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _gpt2(model: _Fields, settings: _Fields, _: Mapping[str, str], where: object) -> Tokenizer:
    tokenizer = _tokenizer(model, where)
    prefix = settings.get("add_prefix_space") or False
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _tokenizer(model: _Fields, where: object, **options: Any) -> Tokenizer:
    merges = pairs(model.get("merges"), where)
    return Tokenizer(bpe(vocabulary(model.get("vocab"), where), merges, where, **options))


_END = "<|endoftext|>"
CLASSES: Mapping[str, TokenizerClass] = {
    "GPT2Tokenizer": TokenizerClass(
        {"unk_token": _END, "bos_token": _END, "eos_token": _END}, _gpt2
    ),
    "GemmaTokenizer": TokenizerClass(
        {
            "unk_token": "<unk>",
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "pad_token": "<pad>",
            "mask_token": "<mask>",
        },
        _gemma,
    ),
    "LlamaTokenizer": TokenizerClass(
        {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}, _llama
    ),
    "Qwen2Tokenizer": TokenizerClass(
        {"unk_token": _END, "eos_token": _END, "pad_token": _END}, _qwen2
    ),
}
