"""Folders with tokenizers of every model family, small and trained on the spot."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from suffice.text.hf_classes import QWEN2_SPLIT, SPACE

_CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog doesn't mind, it's lazy.",
    "To be, or not to be, that is the question.  then there  1234 12",
    "a b c 1 2 3 café naïve 日本語 😀\n\nfor i in range(10):\n    pass",
]
_SPECIAL = ("<unk>", "<s>", "</s>", "<pad>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<bos>")


def _begun(tokenizer: Tokenizer, token: str) -> Any:
    """Return the post-processor that begins every text with a token."""
    ident = tokenizer.token_to_id(token)
    return processors.TemplateProcessing(single=f"{token} $A", special_tokens=[(token, ident)])


@cache
def byte_level(split: str | None = None, *, nfc: bool = False, bos: str = "") -> str:
    """Return the JSON of a byte-level BPE tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    steps: list[Any] = [] if split is None else [pre_tokenizers.Split(Regex(split), "isolated")]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if split else steps[0]
    tokenizer.decoder = decoders.ByteLevel()
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        _CORPUS,
        trainers.BpeTrainer(
            vocab_size=380,
            special_tokens=list(_SPECIAL),
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    if bos:
        tokenizer.post_processor = _begun(tokenizer, bos)
    return str(tokenizer.to_str())


@cache
def sentencepiece(bos: str, *, prefix: bool) -> str:
    """Return the JSON of a sentencepiece BPE tokenizer with bytes for rare characters."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "first", split=False)
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = normalizers.Replace(" ", SPACE)
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(steps)
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    tokenizer.train_from_iterator(
        _CORPUS,
        trainers.BpeTrainer(
            vocab_size=420, special_tokens=[*_SPECIAL, *bytes_], show_progress=False
        ),
    )
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = data["added_tokens"][: len(_SPECIAL)]  # bytes are no special tokens
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.post_processor = _begun(tokenizer, bos)
    return str(tokenizer.to_str())


_LLAMA3 = QWEN2_SPLIT.replace(r"\p{N}|", r"\p{N}{1,3}|")
_ENDS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_CHATML = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None}

# family: (architecture, model_type, tokenizer.json, tokenizer_config.json)
FAMILIES: Mapping[str, tuple[str, str, Callable[[], str], dict[str, Any]]] = {
    "llama2": (
        "LlamaForCausalLM",
        "llama",
        lambda: sentencepiece("<s>", prefix=True),
        {"tokenizer_class": "LlamaTokenizer", "legacy": False, **_ENDS},
    ),
    "llama3": (
        "LlamaForCausalLM",
        "llama",
        lambda: byte_level(_LLAMA3, bos="<s>"),
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"},
    ),
    "smollm2": (
        "LlamaForCausalLM",
        "llama",
        byte_level,
        {"tokenizer_class": "GPT2Tokenizer", **_CHATML, "additional_special_tokens": ["<bos>"]},
    ),
    "mistral": (
        "MistralForCausalLM",
        "mistral",
        lambda: sentencepiece("<s>", prefix=True),
        {"tokenizer_class": "LlamaTokenizer", "legacy": True, "add_prefix_space": True, **_ENDS},
    ),
    "qwen2": (
        "Qwen2ForCausalLM",
        "qwen2",
        lambda: byte_level(QWEN2_SPLIT, nfc=True),
        {"tokenizer_class": "Qwen2Tokenizer", **_CHATML},
    ),
    "qwen3": (
        "Qwen3ForCausalLM",
        "qwen3",
        lambda: byte_level(QWEN2_SPLIT, nfc=True),
        {"tokenizer_class": "Qwen2Tokenizer", **_CHATML},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        "gemma3_text",
        lambda: sentencepiece("<bos>", prefix=False),
        {"tokenizer_class": "GemmaTokenizer", **_ENDS, "bos_token": "<bos>"},
    ),
    "opt": (
        "OPTForCausalLM",
        "opt",
        lambda: byte_level(bos="</s>"),
        {"tokenizer_class": "GPT2Tokenizer", "bos_token": "</s>", "eos_token": "</s>"},
    ),
}


def write(
    folder: Path, family: str, files: Mapping[str, Any] | None = None, **changes: Any
) -> Path:
    """Write a folder with a family's tokenizer, and return it.

    `changes` are fields of tokenizer_config.json (None: null; `...`: left out). `files` are further
    files by name: JSON values, texts, or None to leave one out.
    """
    architecture, kind, whole, settings = FAMILIES[family]
    fields = {name: each for name, each in (settings | changes).items() if each is not ...}
    contents = {
        "config.json": {"architectures": [architecture], "model_type": kind},
        "tokenizer.json": whole(),
        "tokenizer_config.json": fields,
        **(files or {}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        if content is not None:
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    return folder
