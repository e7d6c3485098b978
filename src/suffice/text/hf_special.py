"""The special and added tokens that the files of a Hugging Face directory declare.

`tokenizer_config.json` has them all where it has `added_tokens_decoder`; before that, they were
spread over `special_tokens_map.json`, `added_tokens.json` and `tokenizer.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, Tokenizer

from suffice.text.tokenizer_json import added_token, refused

ROLES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_DECODER, _EXTRA, _OLD_EXTRA = (
    "added_tokens_decoder",
    "extra_special_tokens",
    "additional_special_tokens",
)

_Token = str | AddedToken


@dataclass
class SpecialTokens:
    """Tokens by role (None: expressly none), further special ones, and all added ones by id."""

    roles: dict[str, _Token | None] = field(default_factory=dict)
    extra: list[_Token] = field(default_factory=list)
    added: dict[int, AddedToken] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        settings: Mapping[str, Any],
        legacy: Mapping[str, Mapping[str, Any]],
        listed: Sequence[Any],
        where: object,
    ) -> SpecialTokens:
        """Collect the tokens of tokenizer_config.json, the older files, and tokenizer.json's.

        Raises:
            InputError: A token is neither a text nor an object with a text.
        """
        fields = dict(settings)
        old = _DECODER not in fields
        if old:
            fields |= legacy["special_tokens_map"]
        found = cls()
        found._name(fields, where, special=old)
        if old:
            special = {str(token) for token in (*found.roles.values(), *found.extra)}
            for text, ident in legacy["added_tokens"].items():
                flags = {"special": text in special, "normalized": text not in special}
                found._add(ident, {"content": text}, where, flags)
            for each in listed:
                found._add(each.get("id") if isinstance(each, dict) else None, each, where)
        else:
            decoder = fields[_DECODER]
            if not isinstance(decoder, dict):
                raise refused(where, f"'{_DECODER}' must be an object of tokens by id")
            for ident, each in decoder.items():
                found._add(ident, each, where)
        declared = {token.content: token for token in found.added.values()}
        for role, token in found.roles.items():
            if role in ROLES and token is not None:
                found.roles[role] = declared.get(str(token), token)
        return found

    @property
    def texts(self) -> dict[str, str]:
        """The tokens by role, as texts."""
        return {role: str(token) for role, token in self.roles.items() if token is not None}

    def default(self, tokens: Mapping[str, str]) -> None:
        """Give roles that no file names their tokens."""
        missing = {role: token for role, token in tokens.items() if role not in self.roles}
        named: dict[str, _Token | None] = {**missing, **self.roles}
        first = {role: named[role] for role in ROLES if role in named}
        self.roles = first | named

    def complete(self, tokenizer: Tokenizer, *, again: bool) -> None:
        """Add the tokens that a tokenizer lacks; `again` makes those with a role special."""
        present = list(tokenizer.get_added_tokens_decoder().values())
        spelled = {repr(token) for token in present}
        ordered = [self.added[ident] for ident in sorted(self.added)]
        new = [token for token in ordered if repr(token) not in spelled]
        known = {token.content for token in (*present, *new)}
        named = set(self.texts.values())
        for token in (*self.roles.values(), *self.extra):
            if token is not None and str(token) not in known:
                known.add(str(token))
                new.append(AddedToken(token, special=True) if isinstance(token, str) else token)
        for token in new:
            token.special = token.special or token.content in named
        tokenizer.add_tokens(new)
        if again:
            all_special = dict.fromkeys((*self.texts.values(), *map(str, self.extra)))
            tokenizer.add_tokens([AddedToken(text, special=True) for text in all_special])

    def _name(self, fields: Mapping[str, Any], where: object, *, special: bool) -> None:
        """Read the tokens with a role, and the further special ones."""
        extra = fields.get(_EXTRA) or fields.get(_OLD_EXTRA) or []
        own = extra if isinstance(extra, dict) else {}
        for role in ROLES:
            if role in fields:
                self.roles[role] = _token(fields[role], role, where, special=special)
        for name, value in {**fields, **own}.items():
            is_role = name in own or (name.endswith("_token") and isinstance(value, str | dict))
            if is_role and name not in ROLES:
                self.roles[name] = _token(value, name, where, special=special)
        if not isinstance(extra, list | dict):
            raise refused(where, f"'{_EXTRA}' must be a list of tokens")
        if isinstance(extra, list):
            found = [_token(each, _EXTRA, where, special=special) for each in extra]
            self.extra = [token for token in found if token is not None]

    def _add(
        self, ident: Any, value: Any, where: object, flags: Mapping[str, bool] | None = None
    ) -> None:
        try:
            number = int(ident)
        except (TypeError, ValueError, OverflowError):
            raise refused(where, f"{ident!r:.60} is not the id of an added token") from None
        self.added[number] = added_token(value, where, **(flags or {}))


def _token(value: Any, role: str, where: object, *, special: bool) -> _Token | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise refused(where, f"'{role}' must be a token, not {value!r:.60}")
    return added_token(value, where, **({"special": True} if special else {}))
