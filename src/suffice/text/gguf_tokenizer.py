"""The tokenizer that a GGUF file describes in its metadata.

Byte-level BPE ("gpt2") has a list of merges; sentencepiece ("llama") has none, and its merges
follow from the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from suffice.checkpoints.formats.gguf_file import GGUF
from suffice.errors import InputError, one_line, unknown
from suffice.text.hf_classes import QWEN2_SPLIT, SPACE, spaces_back
from suffice.text.tokenizer_json import TokenizerParts, bpe, guarded, pairs

_KEY = "tokenizer.ggml."
_CONTROL, _USER_DEFINED = 3, 4  # token types
_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Control tokens that end a turn; not every file names them in its keys
_END_TOKENS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>")
_LONGEST = 4096  # characters of a token: merges take time that grows with the square
_SHOWN = 60  # characters of a bad value in an error

_THREE_DIGITS = QWEN2_SPLIT.replace(r"\p{N}|", r"\p{N}{1,3}|")
_WITH_MARKS = QWEN2_SPLIT.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(
    r"[^\s\p{L}", r"[^\s\p{L}\p{M}"
)
# Whole words come before merges; Nemotron-H has the name of Pixtral's.
_LLAMA3 = ("falcon-h1", "lfm2", "llama-bpe", "pixtral")
# Splitting of text before byte-level BPE, by the file's name for it (None: GPT-2's splitting)
_SPLITS: dict[str, str | None] = {
    "gpt-2": None,
    "olmo": None,
    "phi-2": None,
    "refact": None,
    "smollm": None,
    "dbrx": _THREE_DIGITS,
    **dict.fromkeys(_LLAMA3, _THREE_DIGITS),
    "smaug-bpe": _THREE_DIGITS,
    "qwen2": QWEN2_SPLIT,
    "qwen35": _WITH_MARKS,
    "deepseek-r1-qwen": QWEN2_SPLIT,
    "stablelm2": QWEN2_SPLIT,
}
_SINGLE_DIGITS = ("refact", "smollm")  # which are split first


def read_gguf_tokenizer(path: Path, metadata: Mapping[str, Any] | None = None) -> TokenizerParts:
    """Build the tokenizer of a file; its `metadata` are read unless they are given.

    Raises:
        InputError: The file has no tokenizer, a damaged one, or one of an unsupported kind.
    """
    fields = _Fields(path, GGUF.open(path).metadata if metadata is None else metadata)
    tokens, kinds = fields.tokens, fields.kinds
    with guarded(path):
        tokenizer = _MODELS[fields.model](fields)
        _add_tokens(tokenizer, tokens, kinds)
        ids = {role: fields.ident(key) for role, key in _ROLES.items()}
        special = {role: tokens[ident] for role, ident in ids.items() if ident is not None}
        _add_special(tokenizer, special.values())
        _add_ends(tokenizer, fields)
    return TokenizerParts(tokenizer, special, _end_ids(fields), fields.template)


class _Fields:
    """The tokenizer's part of a file's metadata, checked.

    Raises:
        InputError: A field is missing, or has another type or range.
    """

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self.path, self._metadata = path, metadata
        tokens, kinds = self._list("tokens"), self._list("token_type")
        if tokens is None or kinds is None or len(tokens) != len(kinds) or not tokens:
            raise InputError(
                f"{path} has no tokenizer: the keys '{_KEY}tokens' and '{_KEY}token_type'"
            )
        self.tokens = self._texts("tokens", tokens)
        self.kinds = kinds
        for ident, token in enumerate(tokens):
            if len(token) > _LONGEST:
                raise InputError(
                    f"{path}: token {ident} has {len(token)} characters; at most {_LONGEST}"
                )
        model = metadata.get(_KEY + "model")
        if not isinstance(model, str) or model not in _MODELS:
            raise unknown(f"'{_KEY}model' in {path}", one_line(model, _SHOWN), _MODELS)
        self.model = model

    @property
    def pre(self) -> str:
        """The name of the splitting of text."""
        pre = self._metadata.get(_KEY + "pre")
        if not isinstance(pre, str) or pre not in _SPLITS:
            raise unknown(f"'{_KEY}pre' in {self.path}", one_line(pre, _SHOWN), _SPLITS)
        return pre

    @property
    def begins(self) -> bool:
        """Whether texts begin with a token if the file does not say, as llama.cpp has it."""
        if self.model == "llama":
            return True
        return self.pre in _LLAMA3 and self.ident("bos_token_id") is not None

    @property
    def merges(self) -> list[str]:
        """The merges, each two parts with a space between."""
        merges = self._list("merges")
        if merges is None:
            raise self._missing("merges")
        return self._texts("merges", merges)

    @property
    def template(self) -> str | None:
        """The chat template."""
        template = self._metadata.get("tokenizer.chat_template")
        if template is not None and not isinstance(template, str):
            raise InputError(f"{self.path}: 'tokenizer.chat_template' must be a text")
        return template

    def ident(self, key: str) -> int | None:
        """Return a token's id, None if the file does not say."""
        value = self._metadata.get(_KEY + key)
        if value is None:
            return None
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or not 0 <= value < len(self.tokens):
            raise InputError(
                f"{self.path}: '{_KEY}{key}' = {one_line(value, _SHOWN)} is not a token id; the "
                f"file's are 0 to {len(self.tokens) - 1}"
            )
        return int(value)

    def needed(self, key: str) -> int:
        """Return the id of a token that must be there."""
        ident = self.ident(key)
        if ident is None:
            raise self._missing(key)
        return ident

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a flag."""
        value = self._metadata.get(_KEY + key, default)
        if not isinstance(value, bool | np.bool_):
            raise InputError(f"{self.path}: '{_KEY}{key}' must be true or false")
        return bool(value)

    def _list(self, key: str) -> list[Any] | None:
        value = self._metadata.get(_KEY + key)
        if isinstance(value, np.ndarray):
            return value.tolist()  # type: ignore[no-any-return]
        return value if isinstance(value, list) else None

    def _texts(self, key: str, values: list[Any]) -> list[str]:
        for value in values:
            if not isinstance(value, str):
                raise InputError(
                    f"{self.path}: '{_KEY}{key}' must be texts, not {one_line(value, _SHOWN)}"
                )
        return values

    def _missing(self, key: str) -> InputError:
        return InputError(f"{self.path} has no tokenizer: the key '{_KEY}{key}' is missing")


def _byte_level(fields: _Fields) -> Tokenizer:
    """Build a byte-level BPE tokenizer with the file's list of merges."""
    pre = fields.pre
    vocabulary = {token: ident for ident, token in enumerate(fields.tokens)}
    ignore = pre in _LLAMA3
    tokenizer = Tokenizer(
        bpe(vocabulary, pairs(fields.merges, fields.path), fields.path, ignore_merges=ignore)
    )
    split = _SPLITS[pre]
    steps: list[Any] = []
    if pre in _SINGLE_DIGITS:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if split is not None:
        steps.append(pre_tokenizers.Split(Regex(split), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    if split in (QWEN2_SPLIT, _WITH_MARKS):
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _sentencepiece(fields: _Fields) -> Tokenizer:
    """Build a sentencepiece BPE tokenizer; its merges follow from the vocabulary."""
    tokens = [_spelled(token) for token in fields.tokens]
    vocabulary = {token: ident for ident, token in enumerate(tokens)}
    unknown_token = tokens[fields.needed("unknown_token_id")]
    tokenizer = Tokenizer(
        bpe(
            vocabulary,
            _merges(vocabulary),
            fields.path,
            unk_token=unknown_token,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = fields.flag("add_space_prefix", default=True)
    if prefix:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement=SPACE, prepend_scheme="first", split=False
        )
    else:
        tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.decoder = spaces_back(strip=prefix)
    return tokenizer


_MODELS = {"gpt2": _byte_level, "llama": _sentencepiece}


def _spelled(token: str) -> str:
    """Return a token as its merges spell it: some files write runs of spaces literally."""
    return SPACE * len(token) if token and not token.strip(" ") else token


def _merges(vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return every pair of tokens that makes up a token, in the order of the tokens made.

    Sentencepiece joins the pair whose result has the best score, and scores fall with the index.
    Pairs of the same token are ordered by the length of the left part, shortest first.
    """
    return [
        (left, right)
        for token in vocabulary
        for cut in range(1, len(token))
        if (left := token[:cut]) in vocabulary and (right := token[cut:]) in vocabulary
    ]


def _add_tokens(tokenizer: Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Make control tokens special, and keep user-defined ones whole wherever they occur."""
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    defined = [
        AddedToken(token, normalized=False, special=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind == _USER_DEFINED and token == _spelled(token)
    ]
    _add_special(tokenizer, control)
    tokenizer.add_tokens(defined)


def _add_special(tokenizer: Tokenizer, tokens: Iterable[str]) -> None:
    present = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_special_tokens(
        [AddedToken(text, normalized=False, special=True) for text in tokens if text not in present]
    )


def _add_ends(tokenizer: Tokenizer, fields: _Fields) -> None:
    """Add the tokens that the file requires around a text."""
    template, special = ["$A"], []
    if fields.flag("add_bos_token", default=fields.begins):
        bos = fields.needed("bos_token_id")
        template.insert(0, fields.tokens[bos])
        special.append((fields.tokens[bos], bos))
    if fields.flag("add_eos_token", default=False):
        eos = fields.needed("eos_token_id")
        template.append(fields.tokens[eos])
        special.append((fields.tokens[eos], eos))
    if special:
        tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=special)


def _end_ids(fields: _Fields) -> frozenset[int]:
    named = {ident for key in _END_KEYS if (ident := fields.ident(key)) is not None}
    known = {
        ident
        for ident, (token, kind) in enumerate(zip(fields.tokens, fields.kinds, strict=True))
        if kind == _CONTROL and token in _END_TOKENS
    }
    return frozenset(named | known)
