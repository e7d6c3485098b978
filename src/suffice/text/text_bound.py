"""How much text a token can stand for, from the tokenizer's JSON.

A text beyond a number of tokens can then be refused by its length, without making tokens of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_COMPOSED = 4  # characters that Unicode composes to one, at most
_NORMAL_FORMS = {"NFC", "NFD", "NFKC", "NFKD"}
_LONGER = {"Prepend"}  # normalizers that only add characters
_WHOLE = {"ByteLevel", "Metaspace", "Digits", "UnicodeScripts"}  # pre-tokenizers that drop nothing
_SPLITS = {"Split", "Punctuation"}


def _byte_letters() -> dict[str, int]:
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + at): b for at, b in enumerate(others)}


BYTE_LETTERS = _byte_letters()  # the byte of each letter of byte-level vocabularies


@dataclass(frozen=True)
class TextBound:
    """A token stands for at most `longest` of a text's units.

    Attributes:
        unit: "bytes" (of UTF-8) or "characters".
        dropped: Bytes that get no token.
        spaces_vanish: Whether white space next to some tokens is dropped.
    """

    longest: int
    unit: str
    dropped: bytes = b""
    spaces_vanish: bool = False

    def length(self, text: str) -> int:
        """Return the number of units that must be in tokens."""
        if self.spaces_vanish:
            text = "".join(text.split())
        if self.unit == "characters":
            return len(text)
        return len(text.encode(errors="replace").translate(None, self.dropped))


def text_bound(tokenizer: str) -> TextBound | None:
    """Return the bound of a tokenizer, given as JSON; None if a token may stand for any text."""
    data = json.loads(tokenizer)
    model, added = data["model"], data.get("added_tokens") or []
    shrinks = _shrinks(data.get("normalizer"))
    if not shrinks or not _keeps(data.get("pre_tokenizer")):
        return None
    names = model["vocab"]
    names = set(names) if isinstance(names, dict) else {entry[0] for entry in names}
    vanish = any(token.get("lstrip") or token.get("rstrip") for token in added)
    dropped = b""
    if model["type"] == "BPE" and _is_byte_level(data.get("pre_tokenizer")):
        dropped = bytes(byte for letter, byte in BYTE_LETTERS.items() if letter not in names)
        by_bytes = shrinks == 1  # else the number of bytes may shrink more than characters do
        if model.get("fuse_unk") or (dropped and not by_bytes):
            return None
    elif _has_all(model, names):
        by_bytes = False
    else:
        return None
    written = [token["content"] for token in added]
    sizes = [len(each.encode()) if by_bytes else len(each) for each in written]
    longest = max([1, *map(len, names), *sizes])
    return TextBound(shrinks * longest, "bytes" if by_bytes else "characters", dropped, vanish)


def _shrinks(normalizer: Mapping[str, Any] | None) -> int:
    """Return how many characters a normalizer makes one of, at most; 0 if that has no bound."""
    if normalizer is None:
        return 1
    kind = normalizer["type"]
    if kind == "Sequence":
        found = 1
        for each in normalizer["normalizers"]:
            found *= _shrinks(each)
        return found
    if kind == "Replace":
        pattern, content = (normalizer.get("pattern") or {}).get("String"), normalizer["content"]
        return -(-len(pattern) // len(content)) if pattern and content else 0
    return _COMPOSED if kind in _NORMAL_FORMS else int(kind in _LONGER)


def _keeps(splitter: Mapping[str, Any] | None) -> bool:
    """Whether a pre-tokenizer drops no character."""
    if splitter is None:
        return True
    kind = splitter["type"]
    if kind == "Sequence":
        return all(_keeps(each) for each in splitter["pretokenizers"])
    return kind in _WHOLE or (kind in _SPLITS and splitter.get("behavior") != "Removed")


def _is_byte_level(splitter: Mapping[str, Any] | None) -> bool:
    if splitter is None:
        return False
    if splitter["type"] == "Sequence":
        return any(_is_byte_level(each) for each in splitter["pretokenizers"])
    return bool(splitter["type"] == "ByteLevel")


def _has_all(model: Mapping[str, Any], names: set[str]) -> bool:
    """Whether there are tokens of every character, and never one token of many unknown ones."""
    if model["type"] not in ("BPE", "Unigram"):
        return False
    if model.get("byte_fallback") and all(f"<0x{byte:02X}>" in names for byte in range(256)):
        return True
    if model["type"] == "Unigram":
        return False  # a run of unknown characters is one token
    return model.get("unk_token") is not None and not model.get("fuse_unk")
