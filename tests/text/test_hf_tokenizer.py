"""Tests of hf_tokenizer.py, hf_classes.py and hf_special.py: tokens as transformers gives them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tokenizer_folders
from strings import texts
from suffice.errors import InputError
from suffice.text import hf_tokenizer
from suffice.text.tokenizer import Tokenizer, load_tokenizer

SPECIAL = ("<unk>", "<s>", "</s>", "<pad>", "<|endoftext|>", "<|im_end|>", "<bos>", "<new>", " <l>")
_DECODER = {
    "1": {"content": "<s>", "special": True, "normalized": False, "lstrip": True},
    "500": {"content": " <l>", "special": False, "normalized": True, "rstrip": True},
    "501": {"content": "dog", "special": False, "single_word": True},
}
_MAP = {
    "bos_token": {"content": "<s>", "lstrip": False, "normalized": True, "single_word": True},
    "eos_token": "<new>",
    "additional_special_tokens": ["<|im_start|>", "<extra>"],
}


def theirs(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def differences(ours: Tokenizer, reference: Any, seed: int, count: int) -> Iterator[str]:
    """Yield the texts that get other tokens, or whose tokens get another text."""
    for text in texts(seed, count, SPECIAL):
        tokens = reference.encode(text, verbose=False)
        plain = reference.encode(text, add_special_tokens=False, verbose=False)
        same = ours.encode(text) == tokens and ours.encode(text, special=False) == plain
        for skip in (False, True):
            same = same and ours.decode(tokens, skip_special=skip) == reference.decode(
                tokens, skip_special_tokens=skip, clean_up_tokenization_spaces=False
            )
        if not same:
            yield text


def check(folder: Path, count: int = 60) -> Tokenizer:
    """Compare a folder's tokenizer with transformers'."""
    ours, reference = load_tokenizer(folder), theirs(folder)
    assert ours.vocabulary() == reference.get_vocab()
    assert ours.special == reference.special_tokens_map
    assert ours.bos_id == reference.bos_token_id and ours.eos_id == reference.eos_token_id
    assert not list(differences(ours, reference, 3, count))
    return ours


@pytest.mark.parametrize("family", tokenizer_folders.FAMILIES)
def test_families_get_transformers_tokens(family: str, tmp_path: Path) -> None:
    check(tokenizer_folders.write(tmp_path, family), 300)


CHANGES: dict[str, dict[str, Any]] = {
    "no-class": {"tokenizer_class": ...},
    "generic": {"tokenizer_class": "PreTrainedTokenizerFast"},
    "strange": {"tokenizer_class": "SomebodysTokenizer"},
    "llama": {"tokenizer_class": "LlamaTokenizerFast", "legacy": ...},
    "ends": {"add_bos_token": True, "add_eos_token": True},
    "no-bos": {"add_bos_token": False},
    "prefix": {"add_prefix_space": True},
    "no-prefix": {"add_prefix_space": False},
    "old": {"legacy": True},
    "no-special": dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), ...),
    "null": {"bos_token": None, "pad_token": None},
    "objects": {"bos_token": {"__type": "AddedToken", "content": "<b>", "lstrip": True}},
    "extra": {"additional_special_tokens": ["<new>", "<pad>"], "image_token": "<image>"},
    "named": {"extra_special_tokens": {"audio_token": "<audio>"}},
    "added": {"added_tokens_decoder": _DECODER},
    "split": {"split_special_tokens": True},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "family", ["llama2", "llama3", "mistral", "qwen2", "qwen3", "gemma3", "opt"]
)
def test_settings_change_the_same_tokens(family: str, change: str, tmp_path: Path) -> None:
    check(tokenizer_folders.write(tmp_path, family, **CHANGES[change]), 25)


@pytest.mark.parametrize("family", ["llama2", "llama3", "qwen3", "gemma3"])
def test_older_files_name_special_tokens(family: str, tmp_path: Path) -> None:
    older = {"special_tokens_map.json": _MAP, "added_tokens.json": {"<new>": 600, "dog": 601}}
    ours = check(tokenizer_folders.write(tmp_path, family, older))
    assert ours.special["eos_token"] == "<new>"
    assert ours.spelled(ours.encode("x<new>", special=False))[-1] == "<new>"


@pytest.mark.parametrize(("family", "settings"), [("opt", {"add_bos_token": True}), ("qwen2", {})])
def test_vocabulary_and_merges_in_two_files(
    family: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    model = json.loads(tokenizer_folders.byte_level())["model"]
    merges = "#version: 0.2\n" + "\n".join(" ".join(merge) for merge in model["merges"])
    files = {"tokenizer.json": None, "vocab.json": model["vocab"], "merges.txt": merges}
    ours = check(tokenizer_folders.write(tmp_path, family, files, **settings))
    assert (ours.encode("a")[0] == ours.bos_id) == bool(settings)


def test_a_difference_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that is not known leaves tokenizer.json as it is: the texts show it."""
    folder = tokenizer_folders.write(tmp_path, "llama2", add_prefix_space=False)
    check(folder)
    monkeypatch.setattr(hf_tokenizer, "class_of", lambda *_, **__: None)
    broken = load_tokenizer(folder)
    assert len(list(differences(broken, theirs(folder), 3, 60))) > 20


def test_end_tokens_of_every_file(tmp_path: Path) -> None:
    files = {
        "generation_config.json": {"eos_token_id": [5, 6]},
        "config.json": {"model_type": "llama", "eos_token_id": 4},
    }
    folder = tokenizer_folders.write(tmp_path, "llama3", files)
    assert load_tokenizer(folder).eos_ids == {2, 4, 5, 6}
    assert load_tokenizer(folder, 6).eos_ids == {2, 4, 5}


def test_a_folder_for_another_library(tmp_path: Path) -> None:
    files = {"tokenizer.json": None, "tokenizer.model": "x"}
    folder = tokenizer_folders.write(tmp_path, "llama2", files)
    with pytest.raises(InputError) as caught:
        load_tokenizer(folder)
    assert str(caught.value) == (
        f"{folder} has tokenizer.model but no tokenizer.json; transformers writes one: "
        "pip install 'suffice[transformers]' sentencepiece, then "
        f"AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')"
    )
    (folder / "tokenizer.model").unlink()
    with pytest.raises(InputError, match=r"cannot be loaded: it has no tokenizer\.json$"):
        load_tokenizer(folder)
