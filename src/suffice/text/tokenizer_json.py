"""The JSON form of a tokenizer, as the `tokenizers` library writes it.

The library's parser takes a second for a vocabulary of 128256; a BPE model handed to it as a
dictionary and a list takes a third of that. Its own checks end in a panic for some documents, so
that these are refused before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, models

from suffice.errors import InputError, one_line

_PIECES = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_LISTS = ("normalizers", "pretokenizers", "processors", "decoders")
_OPTIONS = (
    "dropout",
    "unk_token",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
)
_MOST_IDS = 2**31
_FLAGS = ("lstrip", "normalized", "rstrip", "single_word", "special")


@dataclass(frozen=True)
class TokenizerParts:
    """What a file says of a tokenizer.

    `special` maps the roles of tokens, such as `bos_token`, to tokens; a chat template sees them.
    `chat_template` is a template, several by name, or None.
    """

    backend: Tokenizer
    special: Mapping[str, str]
    eos_ids: frozenset[int]
    chat_template: str | Mapping[str, str] | None = None


def refused(where: object, error: BaseException | str) -> InputError:
    """Build the error for a tokenizer that cannot be used, in one line."""
    reason = one_line(error) or type(error).__name__
    return InputError(f"{where}: the tokenizer cannot be loaded: {reason}")


@contextmanager
def guarded(where: object) -> Iterator[None]:
    """Turn whatever `tokenizers` raises for damaged input into an InputError.

    It raises bare exceptions, and its panics are no Exception.
    """
    try:
        yield
    except (InputError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise refused(where, error) from None


def parse_object(text: str, where: object) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InputError: It is none, or is nested too deeply.
    """
    try:
        data = json.loads(text)
    except RecursionError:
        raise InputError(f"{where} is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{where} is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{where} must hold a JSON object, not a {type(data).__name__}")
    return data


def parse(text: str, where: object) -> dict[str, Any]:
    """Read and check a document.

    Raises:
        InputError: It is no JSON object, or has a part that the library would trip over.
    """
    data = parse_object(text, where)
    if not isinstance(data.get("model"), dict):
        raise refused(where, "'model' must be an object")
    if not isinstance(data.setdefault("added_tokens", []), list):
        raise refused(where, "'added_tokens' must be a list")
    if data["model"].get("continuing_subword_prefix") and data["model"].get("type") == "BPE":
        raise refused(where, "BPE with a 'continuing_subword_prefix' is not supported")
    for name in _PIECES:
        try:
            _check_piece(data.get(name), where, name)
        except RecursionError:
            raise refused(where, f"'{name}' is nested too deeply") from None
    return data


def assemble(data: Mapping[str, Any], where: object) -> Tokenizer:
    """Return the tokenizer of a checked document.

    Raises:
        InputError: A part is damaged.
    """
    model = data["model"]
    if model.get("type") != "BPE":
        with guarded(where):
            return Tokenizer.from_str(json.dumps(data))
    empty = {**model, "vocab": {}, "merges": [], "unk_token": None}
    frame = {**data, "model": empty, "added_tokens": [], "truncation": None, "padding": None}
    with guarded(where):
        tokenizer = Tokenizer.from_str(json.dumps(frame))
        tokenizer.model = bpe(
            vocabulary(model.get("vocab"), where),
            pairs(model.get("merges"), where),
            where,
            **{name: model[name] for name in _OPTIONS if model.get(name) is not None},
        )
        tokenizer.add_tokens([added_token(each, where) for each in data["added_tokens"]])
    return tokenizer


def vocabulary(tokens: Any, where: object) -> dict[str, int]:
    """Return a vocabulary of ids by token, as a document has it.

    Raises:
        InputError: It is none.
    """
    if not isinstance(tokens, dict):
        raise refused(where, "the vocabulary must be an object of token ids")
    for token, ident in tokens.items():
        if type(ident) is not int or not 0 <= ident < _MOST_IDS:
            raise refused(where, f"token {token!r:.60} has the id {ident!r:.60}: must be a number")
    return tokens


def bpe(
    ids: dict[str, int], merges: list[tuple[str, str]], where: object, **options: Any
) -> models.BPE:
    """Return a BPE model of the ids of tokens, and of pairs of tokens to join.

    Raises:
        InputError: They do not fit each other.
    """
    with guarded(where):
        return models.BPE(vocab=ids, merges=merges, **options)


def pairs(merges: Any, where: object) -> list[tuple[str, str]]:
    """Return merges as pairs; each is a list of two texts or one text with a space between them.

    Raises:
        InputError: One of them is no pair.
    """
    if not isinstance(merges, list):
        raise refused(where, "the merges must be a list")
    found = []
    for merge in merges:
        if isinstance(merge, str):
            if merge.startswith("#version"):
                continue
            left, _, right = merge.partition(" ")
        elif isinstance(merge, list) and len(merge) == 2:
            left, right = merge
        else:
            left = right = ""
        if not (left and right and isinstance(left, str) and isinstance(right, str)):
            raise refused(where, f"a merge must be two texts, not {merge!r:.60}")
        found.append((left, right))
    return found


def added_token(value: Any, where: object, **changes: bool) -> AddedToken:
    """Return an added token from its JSON object; `changes` are flags that go before.

    Raises:
        InputError: It is no such object.
    """
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        raise refused(where, f"an added token must be an object with 'content', not {value!r:.60}")
    flags = {name: value[name] for name in _FLAGS if name in value} | changes
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise refused(where, f"'{name}' = {flag!r:.60} of an added token must be true or false")
    with guarded(where):
        return AddedToken(value["content"], **flags)


def read_stored(facts: Any, text: str, roles: Sequence[str], where: object) -> TokenizerParts:
    """Return a tokenizer from its JSON and stored facts: special tokens, end tokens, template.

    Raises:
        InputError: They are damaged.
    """
    if not isinstance(facts, dict):
        raise refused(where, "its facts must be an object")
    special = {role: facts[role] for role in roles if facts.get(role)}
    ends, template = facts.get("eos_ids"), facts.get("chat_template")
    templates = list(template.values()) if isinstance(template, dict) else [template or ""]
    if not all(isinstance(each, str) for each in (*special.values(), *templates)):
        raise refused(where, "its special tokens and templates must be texts")
    if not isinstance(ends, list) or not all(type(each) is int for each in ends):
        raise refused(where, "its end tokens must be token ids")
    tokenizer = assemble(parse(text, f"the tokenizer in {where}"), where)
    with guarded(where):
        present = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        missing = [token for token in dict.fromkeys(special.values()) if token not in present]
        tokenizer.add_tokens([AddedToken(token, special=True) for token in missing])
    return TokenizerParts(tokenizer, special, frozenset(ends), template)


def _check_piece(piece: Any, where: object, name: str) -> None:
    if piece is None:
        return
    if not isinstance(piece, dict) or not isinstance(piece.get("type"), str):
        raise refused(where, f"'{name}' must be an object with a 'type', not {piece!r:.60}")
    kind = piece["type"]
    if kind == "Prepend" and not piece.get("prepend"):
        raise refused(where, f"'{name}' of type Prepend has nothing to prepend")
    if name == "decoder" and kind == "Replace" and "String" not in (piece.get("pattern") or ()):
        # A regular expression may run out of steps, which ends a stream in a panic.
        raise refused(where, "a decoder that replaces must name a text, not a regular expression")
    if kind == "TemplateProcessing":
        _check_template(piece, where)
    for key in _LISTS:
        if isinstance(piece.get(key), list):
            for each in piece[key]:
                _check_piece(each, where, name)


def _check_template(piece: Mapping[str, Any], where: object) -> None:
    """Check that a template of one text takes one text, and names only tokens that it lists."""
    single, special = piece.get("single"), piece.get("special_tokens")
    if not isinstance(single, list) or not isinstance(special, dict):
        raise refused(where, "'post_processor' has no list 'single' or no 'special_tokens'")
    for part in [*single, *(piece["pair"] if isinstance(piece.get("pair"), list) else [])]:
        kind, value = next(iter(part.items())) if isinstance(part, dict) and part else ("", None)
        ident = value.get("id") if isinstance(value, dict) else None
        known = {"SpecialToken": list(special), "Sequence": ["A", "B"]}.get(kind, [])
        if ident not in known:
            raise refused(where, f"'post_processor' has the unknown part {part!r:.60}")
        if kind == "Sequence" and ident == "B" and part in single:
            raise refused(where, "'post_processor' asks for a second text")
