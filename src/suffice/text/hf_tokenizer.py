"""The tokenizer of a Hugging Face directory, with the tokens of transformers' AutoTokenizer.

Folders with `tokenizer.json` are read, and those with `vocab.json` and `merges.txt`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from suffice.errors import InputError
from suffice.text.hf_classes import CLASSES, TokenizerClass, class_of
from suffice.text.hf_special import SpecialTokens
from suffice.text.tokenizer_json import (
    TokenizerParts,
    assemble,
    guarded,
    parse,
    parse_object,
    refused,
)

_WHOLE = "tokenizer.json"
_MOST_ID = 2**31


def read_folder_tokenizer(folder: Path) -> TokenizerParts:
    """Build the tokenizer of a directory.

    Raises:
        InputError: It has none, or one of its files is damaged or of an unsupported kind.
    """
    config, settings = (_object(folder / f"{name}.json") for name in ("config", "tokenizer_config"))
    whole = (folder / _WHOLE).is_file()
    text = _text(folder / _WHOLE) if whole else ""
    data = parse(text, folder / _WHOLE) if whole else _two_files(folder)
    kind = class_of(config, settings, folder, byte_level='"ByteLevel"' in text)
    if kind is None and not whole:
        raise refused(folder, "it has no tokenizer.json, and no class that reads vocab.json")
    legacy = {
        name: _object(folder / f"{name}.json") for name in ("special_tokens_map", "added_tokens")
    }
    special = SpecialTokens.read(settings, legacy, data["added_tokens"], folder)
    if kind is not None:
        special.default(kind.special)
    with guarded(folder):
        tokenizer = _built(kind, data, settings, special, folder)
        special.complete(tokenizer, again=kind is CLASSES["Qwen2Tokenizer"])
        if not whole:
            _add_ends(tokenizer, settings, special.texts)
        tokenizer.encode_special_tokens = settings.get("split_special_tokens") or False
    ends = _eos_ids(folder, config, tokenizer, special.texts.get("eos_token"))
    return TokenizerParts(tokenizer, special.texts, ends, _template(folder, settings))


def _built(
    kind: TokenizerClass | None,
    data: dict[str, Any],
    settings: Mapping[str, Any],
    special: SpecialTokens,
    folder: Path,
) -> Tokenizer:
    if kind is None or data["model"].get("type") != "BPE":
        return assemble(data, folder)
    made = kind.build(data["model"], settings, special.texts, folder)
    if data.get("post_processor") is not None:
        frame = {"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []}
        only = {**frame, "post_processor": data["post_processor"]}
        made.post_processor = assemble(only, folder).post_processor
    return made


def _two_files(folder: Path) -> dict[str, Any]:
    """Return vocab.json and merges.txt in the form of a tokenizer.json."""
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    if not (vocabulary.is_file() and merges.is_file()):
        others = [name for name in ("tokenizer.model", "tekken.json") if (folder / name).is_file()]
        if others:
            raise InputError(
                f"{folder} has {others[0]} but no {_WHOLE}; transformers writes one: "
                "pip install 'suffice[transformers]' sentencepiece, then "
                f"AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')"
            )
        raise refused(folder, f"it has no {_WHOLE}")
    lines = [line for line in _text(merges).splitlines() if line.strip()]
    model = {"type": "BPE", "vocab": _object(vocabulary), "merges": lines}
    return {"model": model, "added_tokens": []}


def _add_ends(
    tokenizer: Tokenizer, settings: Mapping[str, Any], special: Mapping[str, str]
) -> None:
    """Put the tokens around a text that the settings ask for."""
    template, listed = ["$A"], []
    for role, place in (("bos", 0), ("eos", 2)):
        token = special.get(f"{role}_token")
        if settings.get(f"add_{role}_token") and token is not None:
            template.insert(place, token)
            listed.append((token, tokenizer.token_to_id(token)))
    tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=listed)


def _eos_ids(
    folder: Path, config: Mapping[str, Any], tokenizer: Tokenizer, own: str | None
) -> frozenset[int]:
    """Return the tokens that end a text, by tokenizer, model and generation defaults."""
    ident = None if own is None else tokenizer.token_to_id(own)
    found = set() if ident is None else {ident}
    generation = _object(folder / "generation_config.json")
    for name, fields in (("config.json", config), ("generation_config.json", generation)):
        ids = fields.get("eos_token_id")
        for each in ids if isinstance(ids, list) else [] if ids is None else [ids]:
            if not isinstance(each, int) or isinstance(each, bool) or not 0 <= each < _MOST_ID:
                raise InputError(
                    f"{folder / name}: 'eos_token_id' = {each!r:.60} must be a token id"
                )
            found.add(each)
    return frozenset(found)


def _template(folder: Path, settings: Mapping[str, Any]) -> str | dict[str, str] | None:
    """Return the folder's chat template, or several by name; those in files of their own win."""
    found = {}
    if (folder / "chat_template.jinja").is_file():
        found["default"] = _text(folder / "chat_template.jinja")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = _text(path)
    if list(found) == ["default"]:
        return found["default"]
    given: Any = found or settings.get("chat_template")
    if isinstance(given, list):
        given = {
            each["name"]: each.get("template")
            for each in given
            if isinstance(each, dict) and isinstance(each.get("name"), str)
        }
    texts = given.values() if isinstance(given, dict) else [given]
    if given is not None and not all(isinstance(text, str) for text in texts):
        raise InputError(f"{folder}: 'chat_template' must be a text or a list of texts with names")
    return given  # type: ignore[no-any-return]


def _object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file, {} if there is no such file."""
    return parse_object(_text(path), path) if path.is_file() else {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text (UTF-8): {error.reason}") from None
