"""Text to tokens and back, with the tokenizer that comes with a model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from suffice.errors import InputError, check_text
from suffice.models.files import is_quantized, locate
from suffice.models.formats.hf_folder import read_json

__all__ = ["StreamDecoder", "Tokenizer", "load_tokenizer"]

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
_CHARACTER_BYTES = 4  # of the longest UTF-8 character, hence most tokens per character
_PENDING = 16  # tokens after which incomplete text counts as broken


class Tokenizer:
    """Text to tokens and back; wraps a tokenizer of transformers.

    `eos_ids` are the tokens that end a text; `wrapped` is the tokenizer of transformers.
    """

    def __init__(self, wrapped: Any, eos_ids: Iterable[int]) -> None:
        self.wrapped = wrapped
        self.eos_ids = frozenset(eos_ids)

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` can be used."""
        return self.wrapped.chat_template is not None

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the tokens of a text; `special` adds the tokens that the model expects around it.

        Raises:
            InputError: The text has no UTF-8 form.
        """
        check_text("the text", text)
        # The caller limits the length; transformers would also warn of long texts.
        return list(self.wrapped.encode(text, add_special_tokens=special, verbose=False))

    def decode(self, tokens: list[int], *, skip_special: bool = False) -> str:
        """Return the text of some tokens; broken characters come out as U+FFFD."""
        text: str = self.wrapped.decode(
            tokens, skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
        )
        return text

    def chat(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool) -> list[int]:
        """Return a conversation's tokens by the model's chat template.

        Raises:
            InputError: The model has no template, or the template refuses the conversation.
        """
        import jinja2

        if not self.has_chat_template:
            raise InputError("the model has no chat template; give a plain prompt")
        try:
            tokens = self.wrapped.apply_chat_template(
                messages, add_generation_prompt=add_generation_prompt, return_dict=False
            )
        except jinja2.TemplateError as error:
            reason = " ".join(str(error).split())
            raise InputError(f"the chat template refuses the conversation: {reason}") from None
        return list(tokens)

    def stored(self) -> tuple[dict[str, Any], str]:
        """Return the input of `restored`: special tokens and the like, and the tokenizer's own
        JSON.

        Raises:
            InputError: Its kind has no such JSON.
        """
        backend = getattr(self.wrapped, "backend_tokenizer", None)
        if backend is None:
            raise InputError(
                f"a {type(self.wrapped).__name__} cannot be stored; only fast tokenizers can"
            )
        facts = {name: getattr(self.wrapped, name) for name in _SPECIAL}
        facts["chat_template"] = self.wrapped.chat_template
        facts["eos_ids"] = sorted(self.eos_ids)
        return facts, backend.to_str()

    @classmethod
    def restored(cls, facts: dict[str, Any], text: str) -> Tokenizer:
        """Return a tokenizer from what `stored` returned."""
        import tokenizers
        from transformers import PreTrainedTokenizerFast

        options = {name: facts[name] for name in (*_SPECIAL, "chat_template") if facts[name]}
        backend = tokenizers.Tokenizer.from_str(text)
        wrapped = PreTrainedTokenizerFast(tokenizer_object=backend, **options)
        return cls(wrapped, facts["eos_ids"])

    def stream(self, *, skip_special: bool = True) -> StreamDecoder:
        """Return a decoder for a new text."""
        return StreamDecoder(self, skip_special=skip_special)


class StreamDecoder:
    """Turns tokens into text as they arrive, never half a character.

    The pieces of all `push`es and the final `flush` add up to the text of all tokens.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._tokens: list[int] = []
        # Text of the tokens before `_sent` was returned. Decoding starts earlier, at `_context`:
        # a token may be spelled differently (without its space) at the start of a text.
        self._context = self._sent = 0

    def push(self, token: int) -> str:
        """Return the text that is certain by now."""
        self._tokens.append(token)
        if self._text(self._context, len(self._tokens)).endswith(_BROKEN):
            if len(self._tokens) - self._sent < _PENDING:
                return ""
            return self._send(len(self._tokens) - _CHARACTER_BYTES)
        return self._send(len(self._tokens))

    def flush(self) -> str:
        """Return the remaining text, with U+FFFD for characters that stayed incomplete."""
        return self._send(len(self._tokens))

    def _send(self, end: int) -> str:
        known = self._text(self._context, self._sent)
        text = self._text(self._context, end)
        if len(text) > len(known):  # otherwise keep the context: no visible text was added
            self._context = self._sent
        self._sent = end
        return text[len(known) :]

    def _text(self, start: int, end: int) -> str:
        return self._tokenizer.decode(self._tokens[start:end], skip_special=self._skip_special)


def load_tokenizer(model: str | Path) -> Tokenizer:
    """Load the tokenizer of a Hugging Face directory, a hub id, a `.gguf` or a quantized file.

    Raises:
        InputError: There is none, it is damaged, or of an unsupported kind.
    """
    path = locate(model)
    if is_quantized(path):
        from suffice.models.formats.quantized_file import stored_tokenizer

        stored = stored_tokenizer(path)
        try:
            return Tokenizer.restored(*stored)
        except Exception as error:  # tokenizers raises no other kind
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(f"{path} is damaged: its tokenizer cannot be read: {reason}") from None
    if path.is_file():
        from suffice.models.formats.gguf_tokenizer import read_gguf_tokenizer

        return Tokenizer(*read_gguf_tokenizer(path))
    from transformers import AutoTokenizer

    try:
        wrapped = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: the tokenizer cannot be loaded: {reason}") from None
    return Tokenizer(wrapped, _eos_ids(path, wrapped.eos_token_id))


def _eos_ids(folder: Path, own: int | None) -> set[int]:
    """Return the tokens that end a text, by tokenizer, model and generation defaults."""
    found = set() if own is None else {own}
    for file in (folder / "config.json", folder / "generation_config.json"):
        if file.is_file():
            ids = read_json(file).get("eos_token_id")
            found.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
    return found
