"""Damaged and hostile tokenizers, settings and templates: each ends in one line or in tokens.

Tests of tokenizer_json.py too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tokenizer_folders
from json_mutations import DEEP, mutated, mutated_text
from suffice.errors import InputError
from suffice.text import gguf_tokenizer
from suffice.text.chat_template import ChatTemplate
from suffice.text.tokenizer import Tokenizer, load_tokenizer

TEXT = "the quick\u0301 日本語 😀 <s> fox 12 \0 \n  <|im_end|> é"
HI = [{"role": "user", "content": "hi"}]
BPE = json.loads(tokenizer_folders.sentencepiece("<s>", prefix=True))
TEMPLATE = (
    "{% set ns = namespace(n=0) %}{% for m in messages[0:] %}{% set ns.n = ns.n + 1 %}"
    "{{ bos_token ~ m['role'] }}: {{ m.content|trim|replace('h', 'x' * 3) }}\n{% endfor %}"
    "{% if add_generation_prompt %}{{ '%s %d' % ('a', ns.n) }}"
    "{{ [1, {'a': ns.n}]|tojson }}{% endif %}"
)


def use(load: Callable[[], Tokenizer]) -> str | None:
    """Load a tokenizer and use all of it; return the error's line, if one came."""
    try:
        tokenizer = load()
        tokens = tokenizer.encode(TEXT)
        tokenizer.decode(tokens)
        stream = tokenizer.stream()
        for token in [*tokens, 0, 7, 399, 10_000]:
            stream.push(token)
        stream.flush()
        Tokenizer.restored(*tokenizer.stored()).encode(TEXT)
        assert tokenizer.bos_id != -1 and tokenizer.eos_id != -1
        if tokenizer.has_chat_template:
            tokenizer.chat(HI, add_generation_prompt=True)
    except InputError as error:
        line = str(error)
        assert "\n" not in line and len(line) < 1000, line
        line.encode()
        return line
    return None


def in_folder(tmp_path: Path, files: dict[str, Any], **settings: Any) -> str | None:
    folder = tokenizer_folders.write(tmp_path, "llama2", files, **settings)
    return use(lambda: load_tokenizer(folder, 10_000))


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy of a document with another value at a path such as `model.vocab`."""
    copy = json.loads(json.dumps(document))
    *parents, last = path.split(".")
    place = copy
    for key in parents:
        place = place[int(key) if isinstance(place, list) else key]
    place[int(last) if isinstance(place, list) else last] = value
    return dict(copy)


WORDS = json.loads(tokenizer_folders.byte_level())


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("model", [], "'model' must be an object"),
        ("model.vocab", ["a"], "the vocabulary must be an object of token ids"),
        ("model.vocab", {"a": "b"}, "token 'a' has the id 'b': must be a number"),
        ("model.vocab", {"a": -1}, "token 'a' has the id -1: must be a number"),
        ("model.vocab", {"a": 2**40}, "token 'a' has the id 1099511627776: must be a"),
        ("model.merges", {}, "the merges must be a list"),
        ("model.merges", [1, 2], "a merge must be two texts, not 1"),
        ("model.merges", [["a", "b", "c"]], "a merge must be two texts, not ['a', 'b', 'c']"),
        ("model.merges", ["ab"], "a merge must be two texts, not 'ab'"),
        ("model.merges", [["qq", "zz"]], "out of vocabulary"),
        ("model.continuing_subword_prefix", "####", "'continuing_subword_prefix'"),
        ("added_tokens", 5, "'added_tokens' must be a list"),
        ("added_tokens.0", "<s>", "None is not the id of an added token"),
        ("added_tokens.0.content", 5, "an added token must be an object with 'content'"),
        ("added_tokens.0.special", 1, "'special' = 1 of an added token must be true or false"),
        ("normalizer", [""], "'normalizer' must be an object with a 'type'"),
        ("normalizer", {"type": "Prepend", "prepend": ""}, "nothing to prepend"),
        (
            "decoder.decoders.0",
            {"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": ""},
            "a decoder that replaces must name a text, not a regular expression",
        ),
        ("pre_tokenizer", {"type": "Whatever"}, "the tokenizer cannot be loaded"),
        ("post_processor.single.0", {"SpecialToken": {"id": "?", "type_id": 0}}, "unknown part"),
        ("post_processor.single.0", {"Sequence": {"id": "B", "type_id": 0}}, "a second text"),
        ("post_processor.single", "$A", "'post_processor' has no list 'single'"),
    ],
)
def test_damage_in_tokenizer_json(path: str, value: Any, reason: str, tmp_path: Path) -> None:
    data = changed(BPE, path, value)
    line = in_folder(tmp_path, {"tokenizer.json": data}, tokenizer_class="PreTrainedTokenizer")
    assert line is not None and reason in line


@pytest.mark.parametrize(
    ("files", "settings", "reason"),
    [
        ({"tokenizer.json": "{"}, {}, "tokenizer.json is not valid JSON"),
        ({"tokenizer.json": "[]"}, {}, "must hold a JSON object, not a list"),
        ({"tokenizer.json": "[" * DEEP}, {}, "tokenizer.json is nested too deeply"),
        ({"config.json": {"model_type": 5}}, {}, "'tokenizer_class' and 'model_type' must be"),
        ({}, {"tokenizer_class": ["a"]}, "'tokenizer_class' and 'model_type' must be texts"),
        ({}, {"bos_token": 5}, "'bos_token' must be a token, not 5"),
        ({}, {"bos_token": {"content": 5}}, "an added token must be an object with 'content'"),
        ({}, {"eos_token": "\ud800"}, "surrogates not allowed"),
        ({}, {"extra_special_tokens": 5}, "'extra_special_tokens' must be a list of tokens"),
        ({}, {"added_tokens_decoder": []}, "'added_tokens_decoder' must be an object"),
        ({}, {"added_tokens_decoder": {"x": {"content": "a"}}}, "'x' is not the id"),
        ({}, {"chat_template": 5}, "'chat_template' must be a text or a list of texts"),
        ({}, {"chat_template": [{"name": "default"}]}, "'chat_template' must be a text or"),
        ({"generation_config.json": {"eos_token_id": "2"}}, {}, "'eos_token_id' = '2' must be a"),
        ({"generation_config.json": {"eos_token_id": [-1]}}, {}, "'eos_token_id' = -1 must be a"),
        ({"special_tokens_map.json": "5"}, {}, "must hold a JSON object, not a int"),
    ],
)
def test_damage_in_other_files(
    files: dict[str, Any], settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    line = in_folder(tmp_path, files, **settings)
    assert line is not None and reason in line


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    folder = tokenizer_folders.write(tmp_path, "llama2")
    (folder / "tokenizer_config.json").write_bytes(b'{"a": "\xff"}')
    assert "is not text (UTF-8)" in str(use(lambda: load_tokenizer(folder)))


def test_tokens_beyond_the_models(tmp_path: Path) -> None:
    folder = tokenizer_folders.write(tmp_path, "llama2", bos_token="<beyond>")
    size = len(load_tokenizer(folder).vocabulary())
    assert load_tokenizer(folder, size).encode("a<beyond>")[-1] == size - 1
    fewer = load_tokenizer(folder, size - 1)
    assert fewer.encode("a") == load_tokenizer(folder).encode("a")
    with pytest.raises(InputError) as caught:
        fewer.encode("a<beyond>")
    assert str(caught.value) == (
        f"the tokenizer's token {size - 1} is not one of the model's, 0 to {size - 2}: they do not "
        "belong together"
    )
    with pytest.raises(InputError, match="they do not belong together"):
        _ = fewer.bos_id


GGML = {
    "model": "llama",
    "tokens": [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{value:02X}>" for value in range(256)),
        "▁",
        "a",
        "▁a",
    ],
    "token_type": [2, 3, 3, *[6] * 256, 1, 1, 1],
    "unknown_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GGML_BYTES = {
    "model": "gpt2",
    "pre": "smollm",
    "tokens": list(WORDS["model"]["vocab"]),
    "token_type": [3] * 8 + [1] * (len(WORDS["model"]["vocab"]) - 8),
    "merges": [" ".join(merge) for merge in WORDS["model"]["merges"]],
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def in_gguf(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]) -> str | None:
    metadata = {f"tokenizer.ggml.{key}": value for key, value in fields.items()}
    metadata["tokenizer.chat_template"] = fields.get("chat_template", TEMPLATE)
    opened = SimpleNamespace(metadata=metadata)
    monkeypatch.setattr(gguf_tokenizer.GGUF, "open", lambda path: opened)
    return use(lambda: Tokenizer(gguf_tokenizer.read_gguf_tokenizer(Path("x.gguf")), 10_000))


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("model", ["llama"], "unknown 'tokenizer.ggml.model' in x.gguf '['llama']'"),
        ("tokens", "abc", "x.gguf has no tokenizer: the keys"),
        ("tokens", [], "x.gguf has no tokenizer: the keys"),
        ("tokens.5", 7, "'tokenizer.ggml.tokens' must be texts, not 7"),
        ("tokens.5", "a" * 5000, "token 5 has 5000 characters; at most 4096"),
        ("token_type", [1], "x.gguf has no tokenizer: the keys"),
        ("bos_token_id", 10**6, "'tokenizer.ggml.bos_token_id' = 1000000 is not a token id"),
        ("bos_token_id", -1, "'tokenizer.ggml.bos_token_id' = -1 is not a token id"),
        ("eos_token_id", True, "'tokenizer.ggml.eos_token_id' = True is not a token id"),
        ("eot_token_id", [1], "'tokenizer.ggml.eot_token_id' = [1] is not a token id"),
        ("unknown_token_id", None, "the key 'tokenizer.ggml.unknown_token_id' is missing"),
        ("add_bos_token", 1, "'tokenizer.ggml.add_bos_token' must be true or false"),
        ("chat_template", [1], "'tokenizer.chat_template' must be a text"),
    ],
)
def test_damage_in_gguf_metadata(
    path: str, value: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = in_gguf(monkeypatch, changed(GGML, path, value))
    assert line is not None and reason in line


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("pre", 5, "unknown 'tokenizer.ggml.pre' in x.gguf '5'"),
        ("merges", None, "the key 'tokenizer.ggml.merges' is missing"),
        ("merges.3", 5, "'tokenizer.ggml.merges' must be texts, not 5"),
        ("merges.3", "ab", "a merge must be two texts, not 'ab'"),
        ("merges.3", "no such", "out of vocabulary"),
    ],
)
def test_damage_in_byte_level_metadata(
    path: str, value: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = in_gguf(monkeypatch, changed(GGML_BYTES, path, value))
    assert line is not None and reason in line


def test_sound_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """The damage is what is refused; doubled tokens and arrays of numbers are not."""
    assert in_gguf(monkeypatch, GGML) is None
    assert in_gguf(monkeypatch, GGML_BYTES) is None
    assert in_gguf(monkeypatch, changed(GGML, "tokens.6", "a")) is None
    assert in_gguf(monkeypatch, GGML | {"token_type": np.array(GGML["token_type"])}) is None


@pytest.mark.parametrize(
    "facts",
    [
        [],
        {},
        {"eos_ids": 5},
        {"eos_ids": ["a"]},
        {"eos_ids": [2], "bos_token": 5},
        {"eos_ids": [2], "chat_template": {"default": 5}},
    ],
)
def test_damaged_facts_of_a_stored_tokenizer(facts: Any) -> None:
    line = use(lambda: Tokenizer.restored(facts, json.dumps(BPE), "x.safetensors"))
    assert line is not None and line.startswith("x.safetensors: the tokenizer cannot be loaded: ")


def outcomes(lines: list[str | None]) -> tuple[int, int]:
    return lines.count(None), len(lines) - lines.count(None)


@pytest.mark.parametrize("family", ["llama2", "llama3", "qwen3"])
def test_mutated_tokenizer_json(family: str, tmp_path: Path) -> None:
    data = json.loads(tokenizer_folders.FAMILIES[family][2]())
    lines = []
    for seed in range(120):
        files = {"tokenizer.json": mutated(data, seed)}
        folder = tokenizer_folders.write(tmp_path, family, files)
        lines.append(use(lambda folder=folder: load_tokenizer(folder, 10_000)))  # type: ignore[misc]
    fine, refused = outcomes(lines)
    assert fine > 10 and refused > 40


def test_mutated_settings(tmp_path: Path) -> None:
    settings = {
        **tokenizer_folders.FAMILIES["llama2"][3],
        "added_tokens_decoder": {"1": {"content": "<s>", "special": True, "lstrip": False}},
        "additional_special_tokens": ["<a>", {"content": "<b>", "special": True}],
        "add_bos_token": True,
        "chat_template": [{"name": "default", "template": TEMPLATE}],
    }
    lines = []
    for seed in range(150):
        folder = tokenizer_folders.write(
            tmp_path, "llama2", {"tokenizer_config.json": mutated(settings, seed)}
        )
        lines.append(use(lambda: load_tokenizer(folder, 10_000)))  # noqa: B023
    fine, refused = outcomes(lines)
    assert fine > 30 and refused > 30


@pytest.mark.parametrize("fields", [GGML, GGML_BYTES], ids=["sentencepiece", "byte-level"])
def test_mutated_metadata(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = []
    for seed in range(150):
        text = mutated({**fields, "chat_template": TEMPLATE}, seed)
        try:
            damaged = json.loads(text)
        except RecursionError:  # nested as the container's reader would refuse
            continue
        lines.append(in_gguf(monkeypatch, damaged if isinstance(damaged, dict) else {}))
    fine, refused = outcomes(lines)
    assert fine > 15 and refused > 30


PARTS = (
    *(
        "{% for i in range(99999) %}",
        "{% endfor %}",
        "* 99999999",
        "** 99999",
        "{{",
        "}}",
        "{% endif",
    ),
    *(
        "|center(99999999)",
        ".join(",
        "messages",
        "[",
        "]",
        "ns.n = ns",
        "~ ns",
        "|tojson",
        "('",
        "(",
    ),
    *("{% macro f() %}", "{{ f() }}", "{% endmacro %}", ".__class__", "|map('list')", "|sort"),
)


def test_mutated_templates() -> None:
    fine = refused = 0
    for seed in range(300):
        template = ChatTemplate(mutated_text(TEMPLATE, seed, PARTS), {"bos_token": "<s>"})
        try:
            template.text(HI, add_generation_prompt=True)
            fine += 1
        except InputError as error:
            assert "\n" not in str(error) and str(error).startswith("the chat template ")
            refused += 1
    assert fine > 5 and refused > 200
