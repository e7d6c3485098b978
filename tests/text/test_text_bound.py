"""text_bound.py: no text in its bound is refused that a tokenizer makes few tokens of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

import tiny
from suffice.text.text_bound import BYTE_LETTERS, TextBound, text_bound

ALL = dict.fromkeys(sorted(BYTE_LETTERS))
FEW = {letter: 0 for letter in ALL if letter not in "q" and BYTE_LETTERS[letter] < 0xF0}
FALLBACK = {f"<0x{byte:02X}>": 0 for byte in range(256)}


def numbered(names: Any) -> dict[str, int]:
    return {name: at for at, name in enumerate(names)}


def bpe(names: Any, merges: Any = (), **options: Any) -> Tokenizer:
    return Tokenizer(models.BPE(vocab=numbered(names), merges=list(merges), **options))


def byte_level(names: Any, normalizer: Any = None, *added: AddedToken) -> Tokenizer:
    found = bpe([*names, "ab", "abab"], [("a", "b"), ("ab", "ab")])
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if normalizer is not None:
        found.normalizer = normalizer
    found.add_tokens(list(added))
    return found


def metaspace() -> Tokenizer:
    found = bpe([*FALLBACK, "▁", "a", "▁a", "<unk>"], [("▁", "a")], byte_fallback=True)
    found.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return found


BOUNDED = {
    "all bytes": (byte_level(ALL), TextBound(4, "bytes")),
    "a part of the bytes": (
        byte_level(FEW),
        TextBound(
            4, "bytes", bytes(BYTE_LETTERS[each] for each in BYTE_LETTERS if each not in FEW)
        ),
    ),
    "composed": (byte_level(ALL, normalizers.NFC()), TextBound(16, "characters")),
    "compatible": (byte_level(ALL, normalizers.NFKC()), TextBound(16, "characters")),
    "spaces": (
        byte_level(ALL, None, AddedToken("<gap>", lstrip=True, rstrip=True)),
        TextBound(5, "bytes", spaces_vanish=True),
    ),
    "fallback": (metaspace(), TextBound(6, "characters")),
    "unknown": (bpe(["a", "<unk>"], unk_token="<unk>"), TextBound(5, "characters")),
}
TEXTS = st.text(max_size=60) | st.text("ab q<gap>e\u0301\u1f82\ufb01\u212a\U00040000", max_size=60)


@pytest.mark.parametrize("name", BOUNDED)
@given(text=TEXTS)
def test_tokens_stand_for_no_more_than_the_bound(name: str, text: str) -> None:
    tokenizer, expected = BOUNDED[name]
    bound = text_bound(tokenizer.to_str())
    assert bound == expected
    assert bound.length(text) <= bound.longest * len(tokenizer.encode(text).ids)


def removed() -> Tokenizer:
    found = byte_level(ALL)
    found.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel()]
    )
    return found


UNBOUNDED = {
    "unknown words": (
        Tokenizer(models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]")),
        "x" * 5000,
    ),
    "unknown characters": (bpe(["a", "<u>"], unk_token="<u>", fuse_unk=True), "x" * 5000),
    "dropped characters": (bpe(["a"]), "x" * 5000),
    "dropped spaces": (removed(), "a" + " " * 5000),
    "stripped": (byte_level(ALL, normalizers.Strip()), "a" + " " * 5000),
    "dropped by a normalizer": (byte_level(ALL, normalizers.Replace("a", "")), "a" * 5000),
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_a_token_may_stand_for_any_text(name: str) -> None:
    tokenizer, text = UNBOUNDED[name]
    assert len(tokenizer.encode(text).ids) <= 2
    assert text_bound(tokenizer.to_str()) is None


def test_the_tiny_models_bound(tmp_path: Path) -> None:
    tiny.write_tokenizer(tmp_path)
    found = text_bound((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    assert found is not None and not found.dropped and 4 < found.longest < 40
