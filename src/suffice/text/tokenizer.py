"""Text to tokens and back, with the tokenizer that comes with a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suffice.checkpoints.files import is_quantized, locate
from suffice.errors import InputError, check_text
from suffice.text.chat_template import ChatTemplate
from suffice.text.marked import MarkedDecoder
from suffice.text.text_bound import TextBound, text_bound

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend
    from tokenizers.decoders import DecodeStream

    from suffice.text.tokenizer_json import TokenizerParts

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_STORED = ("bos_token", "eos_token", "unk_token", "pad_token")
_CHARACTER_BYTES = 4  # of the longest UTF-8 character, hence most tokens per character
_LONG = 4096  # characters; tokens of longer texts are made without Python's lock
_PENDING = 16  # tokens after which incomplete text counts as broken


class Tokenizer:
    """Text to tokens and back.

    `eos_ids` are the tokens that end a text. `special` has tokens by role, such as `bos_token`.
    """

    def __init__(self, parts: TokenizerParts, size: int | None = None) -> None:
        """Take over a tokenizer; `size` is the number of the model's tokens, if known."""
        self._size = size
        self._backend = parts.backend
        self._template = (
            None
            if parts.chat_template is None
            else ChatTemplate(parts.chat_template, parts.special)
        )
        self.special: Mapping[str, str] = dict(parts.special)
        self.eos_ids = frozenset(each for each in parts.eos_ids if size is None or each < size)

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` can be used."""
        return self._template is not None

    @property
    def chat_template(self) -> str | Mapping[str, str] | None:
        """The chat template's source, or several by name."""
        return None if self._template is None else self._template.source

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template shows the tools of a conversation that has some."""
        return self._template is not None and self._template.takes_tools

    @property
    def tool_template(self) -> str | None:
        """The chat template for conversations with tools; None if these would not be shown."""
        return self._template.with_tools if self._template and self.takes_tools else None

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, None if there is none."""
        return self._ident("bos_token")

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text, None if there is none."""
        return self._ident("eos_token")

    def vocabulary(self) -> dict[str, int]:
        """Return the id of every token."""
        found: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return found

    def whole(self) -> dict[str, int]:
        """Return the tokens that are kept whole in any text, by their text."""
        found = self._backend.get_added_tokens_decoder()
        return {token.content: ident for ident, token in found.items()}

    def spelled(self, tokens: Sequence[int]) -> list[str | None]:
        """Return how the vocabulary spells tokens, None where it has no such token."""
        return [self._backend.id_to_token(token) for token in tokens]

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return a text's tokens; `special` adds those that the model expects around it.

        Raises:
            InputError: The text has no UTF-8 form, or has a token that the model has not.
        """
        from suffice.text.tokenizer_json import guarded

        check_text("the text", text)
        with guarded("the text"):
            if len(text) < _LONG:
                found = self._backend.encode(text, add_special_tokens=special)
            else:
                (found,) = self._backend.encode_batch_fast([text], add_special_tokens=special)
            tokens: list[int] = found.ids
        return self._checked(tokens)

    def text_bound(self) -> TextBound | None:
        """Return how much text a token can stand for; None if that has no bound."""
        return text_bound(self._backend.to_str())

    def decode(self, tokens: Sequence[int], *, skip_special: bool = False) -> str:
        """Return the text of some tokens; broken characters come out as U+FFFD."""
        return _decoded(self._backend, tokens, skip_special=skip_special)

    def chat(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool) -> list[int]:
        """Return a conversation's tokens by the model's chat template.

        Raises:
            InputError: The model has no template, or the template refuses the conversation.
        """
        text = self.chat_text(messages, add_generation_prompt=add_generation_prompt)
        return self.encode(text, special=False)

    def chat_text(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_last: bool = False,
        facts: Mapping[str, Any] | None = None,
    ) -> str:
        """Return a conversation as text; `continue_last` leaves the last message open.

        `facts` are what else the template may ask for by name, such as `tools`.

        Raises:
            InputError: As for `chat`.
        """
        if self._template is None:
            raise InputError("the model has no chat template; give a plain prompt")
        return self._template.text(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_last=continue_last,
            facts=facts,
        )

    def stored(self) -> tuple[dict[str, Any], str]:
        """Return the input of `restored`: special tokens and the like, and the tokenizer's JSON."""
        facts: dict[str, Any] = {name: self.special.get(name) for name in _STORED}
        facts["chat_template"] = self.chat_template
        facts["eos_ids"] = sorted(self.eos_ids)
        return facts, self._backend.to_str()

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer.restored, (*self.stored(), "the shared memory", self._size)

    @classmethod
    def restored(
        cls,
        facts: Mapping[str, Any],
        text: str,
        where: object = "the file",
        size: int | None = None,
    ) -> Tokenizer:
        """Return a tokenizer from what `stored` returned; `where` names its file in errors.

        Raises:
            InputError: It is damaged.
        """
        from suffice.text.tokenizer_json import read_stored

        return cls(read_stored(facts, text, _STORED, where), size)

    def stream(
        self, *, skip_special: bool = True, marked: Sequence[int] = ()
    ) -> StreamDecoder | MarkedDecoder:
        """Return a decoder for a new text; `marked` tokens are a character each."""

        def new() -> StreamDecoder:
            return StreamDecoder(self._backend, skip_special=skip_special)

        return MarkedDecoder(new, marked) if marked else new()

    def _ident(self, role: str) -> int | None:
        token = self.special.get(role)
        ident = None if token is None else self._backend.token_to_id(token)
        return None if ident is None else self._checked([ident])[0]

    def _checked(self, tokens: list[int]) -> list[int]:
        """Refuse tokens beyond the model's: its weights have no rows for them."""
        if self._size is not None and tokens and max(tokens) >= self._size:
            raise InputError(
                f"the tokenizer's token {max(tokens)} is not one of the model's, 0 to "
                f"{self._size - 1}: they do not belong together"
            )
        return tokens


class StreamDecoder:
    """Turns tokens into text as they arrive, never half a character.

    The pieces of all `push`es and the final `flush` add up to the text of all tokens.
    """

    def __init__(self, backend: Backend, *, skip_special: bool = True) -> None:
        self._backend = backend
        self._skip_special = skip_special
        self._tokens: list[int] = []
        # Text of the tokens before `_sent` was returned. Decoding starts earlier, at `_context`:
        # a token may be spelled differently (without its space) at the start of a text.
        self._context = self._sent = 0
        self._library: DecodeStream | None = self._resumed()  # None while it could not go on

    def push(self, token: int) -> str:
        """Return the text that is certain by now."""
        self._tokens.append(token)
        if self._library is not None:
            try:
                piece = self._library.step(self._backend, token)
            except Exception:  # of an unnamed kind: text that was returned would read differently
                self._library = None
            else:
                if piece is not None:
                    self._context, self._sent = self._sent, len(self._tokens)
                    return piece
                if len(self._tokens) - self._sent < _PENDING:
                    return ""
        return self._push_slowly()

    def flush(self) -> str:
        """Return the remaining text, with U+FFFD for characters that stayed incomplete."""
        self._library = None
        return self._send(len(self._tokens))

    def _push_slowly(self) -> str:
        """Return the text that is certain, where the library waits for the end of broken text."""
        self._library = None
        if self._text(self._context, len(self._tokens)).endswith(_BROKEN):
            if len(self._tokens) - self._sent < _PENDING:
                return ""
            return self._send(len(self._tokens) - _CHARACTER_BYTES)
        piece = self._send(len(self._tokens))
        self._library = self._resumed()
        return piece

    def _resumed(self) -> DecodeStream:
        from tokenizers.decoders import DecodeStream

        context = self._tokens[self._context : self._sent]
        return DecodeStream(ids=context, skip_special_tokens=self._skip_special)

    def _send(self, end: int) -> str:
        known = self._text(self._context, self._sent)
        text = self._text(self._context, end)
        if len(text) > len(known):  # otherwise keep the context: no visible text was added
            self._context = self._sent
        self._sent = end
        return text[len(known) :]

    def _text(self, start: int, end: int) -> str:
        tokens = self._tokens[start:end]
        return _decoded(self._backend, tokens, skip_special=self._skip_special)


def _decoded(backend: Backend, tokens: Sequence[int], *, skip_special: bool) -> str:
    from suffice.text.tokenizer_json import guarded

    with guarded("the tokens"):
        text: str = backend.decode(tokens, skip_special_tokens=skip_special)
    return text


def load_tokenizer(
    model: str | Path, size: int | None = None, metadata: Mapping[str, Any] | None = None
) -> Tokenizer:
    """Load the tokenizer of a Hugging Face directory, a hub id, a `.gguf` or a quantized file.

    `size` is the number of the model's tokens; texts with others are refused. `metadata` are those
    of a `.gguf` file that has been read already.

    Raises:
        InputError: There is none, it is damaged, or of an unsupported kind.
    """
    path = locate(model)
    if is_quantized(path):
        from suffice.checkpoints.formats.quantized_file import stored_tokenizer

        return Tokenizer.restored(*stored_tokenizer(path), where=path, size=size)
    if path.is_file():
        from suffice.text.gguf_tokenizer import read_gguf_tokenizer

        return Tokenizer(read_gguf_tokenizer(path, metadata), size)
    from suffice.text.hf_tokenizer import read_folder_tokenizer

    return Tokenizer(read_folder_tokenizer(path), size)
