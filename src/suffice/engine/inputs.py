"""Parses prompts and conversations in the forms that users give, and makes requests of them."""

from __future__ import annotations

import hashlib
import numbers
import os
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from suffice.engine import structured
from suffice.engine.config import Config
from suffice.engine.protocol import LoopRunner, Tokenizer
from suffice.engine.reading import Reader, Reading
from suffice.engine.request import Request, Sample
from suffice.engine.retained import CachedPrefix
from suffice.engine.thinking import Thinking, Thought
from suffice.errors import InputError, OptionError, brief, check_text, unknown
from suffice.sampling import SamplingState
from suffice.sampling_params import SamplingParams

_KEYS = ("prompt", "prompt_token_ids")
_MESSAGE = "{'role': ..., 'content': ...}"


def split(prompts: Any) -> list[Any]:
    """Return a list of prompts, each a text, token ids or a mapping.

    Raises:
        InputError: There is no prompt, or it has none of these forms.
    """
    if isinstance(prompts, str | Mapping):
        return [prompts]
    _refuse_bytes("prompts", prompts)
    if not isinstance(prompts, Sequence):
        raise InputError(
            "prompts: must be text, token ids, {'prompt_token_ids': [...]} or a list of these, "
            f"not {type(prompts).__name__}"
        )
    if not prompts:
        raise InputError("prompts: the list is empty; give at least one prompt")
    return [prompts] if isinstance(prompts[0], numbers.Integral) else list(prompts)


def text_of(prompt: Any) -> str | None:
    """Return a prompt's text; None if it is given as tokens, or has another form."""
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
    return text if isinstance(text, str) else None


def pair(count: int, params: Any) -> list[SamplingParams]:
    """Return one `SamplingParams` for each of `count` prompts, from one for all or from a list.

    Raises:
        InputError: Another type, or a list of another length.
    """
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if isinstance(params, Sequence) and all(isinstance(one, SamplingParams) for one in params):
        if len(params) != count:
            raise InputError(
                f"sampling_params: {len(params)} given for {count} prompts; "
                "give one for all, or one for each"
            )
        return list(params)
    raise InputError(
        f"sampling_params: must be a SamplingParams or a list of them, not {type(params).__name__}"
    )


def pair_adapters(count: int, names: Any) -> list[str | None]:
    """Return an adapter's name for each of `count` prompts, from one for all or from a list.

    Raises:
        InputError: Another type, or a list of another length.
    """
    if names is None or isinstance(names, str):
        return [names] * count
    if not isinstance(names, Sequence) or len(names) != count:
        raise InputError(
            f"adapter: must be a name, None, or a list of them with one for each of {count} "
            f"prompts, not {brief(names)}"
        )
    return list(names)


def split_talks(messages: Any) -> list[Any]:
    """Return a list of conversations, given one conversation or a list of them.

    Raises:
        InputError: The list is empty, or is no list.
    """
    _check_list(messages, "messages", f"a list of {_MESSAGE}, or a list of such lists")
    return list(messages) if _is_list(messages[0]) else [messages]


def conversation(messages: Any) -> list[dict[str, Any]]:
    """Return a conversation's messages in the form that chat templates take, contents as text.

    Contents may be in OpenAI's form, [{"type": "text", "text": ...}]; the texts are joined by line
    breaks, as vLLM does.

    Raises:
        InputError: The conversation is empty, not a list of messages, or has parts other than text.
    """
    _check_list(messages, "messages", f"a list of {_MESSAGE}")
    return [_message(f"messages[{at}]", message) for at, message in enumerate(messages)]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _check_list(value: Any, name: str, form: str) -> None:
    if not _is_list(value):
        raise InputError(f"{name}: must be {form}, not {type(value).__name__}")
    if not value:
        raise InputError("the conversation is empty: give at least one message")


def _message(name: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InputError(f"{name}: must be {_MESSAGE}, not {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise InputError(f"{name}: needs a 'role', such as 'user'")
    check_text(f"{name}: the role", role)
    if content is None and message.get("tool_calls"):
        return dict(message)
    return {**message, "content": _content(f"{name}: content", content)}


def _content(name: str, content: Any) -> str:
    if _is_list(content):
        return "\n".join(_part(f"{name}[{at}]", part) for at, part in enumerate(content))
    if not isinstance(content, str):
        raise InputError(
            f"{name} must be text or a list of {{'type': 'text', 'text': ...}}, "
            f"not {type(content).__name__}"
        )
    check_text(name, content)
    return content


def _part(name: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind != "text" or not isinstance(part, Mapping):
        raise InputError(f"{name} is of type '{kind}': only 'text' parts are supported")
    if not isinstance(part.get("text"), str):
        raise InputError(f"{name} needs a 'text'")
    text: str = part["text"]
    check_text(name, text)
    return text


def _refuse_bytes(name: str, given: Any) -> None:
    """Refuse bytes, a sequence of whole numbers that are not token ids."""
    if isinstance(given, bytes | bytearray | memoryview):
        raise InputError(
            f"{name}: must be text or token ids, not {type(given).__name__}; "
            "decode bytes first, as in data.decode()"
        )


class RequestMaker:
    """Makes requests: tokenized, numbered, seeded and checked against the model.

    Several threads may use it.
    """

    def __init__(self, config: Config, tokenizer: Tokenizer, runner: LoopRunner) -> None:
        assert config.max_model_len is not None, "the config must be resolved"
        self._rows = config.max_model_len
        self._most = config.max_num_seqs
        self._tokenizer = tokenizer
        self._vocabulary = runner.vocabulary
        self.pooling = runner.pooling
        self.grammars = structured.Grammars(tokenizer, runner.vocabulary)
        self._adapters = [name for name, _ in config.adapters]
        self._usual_adapter = config.adapter
        self._reuses = config.prefix_dir is not None  # unless a request says otherwise
        self._count = 0
        self._counting = threading.Lock()
        self._seed = int.from_bytes(os.urandom(8), "little") if config.seed is None else config.seed

    def adapter(self, name: str | None) -> int:
        """Return the index of an adapter; None is the engine's usual one, which may be none: -1.

        Raises:
            InputError: There is none of that name.
        """
        name = self._usual_adapter if name is None else name
        if name is None:
            return -1
        if name not in self._adapters:
            raise unknown("adapter", str(name), self._adapters)
        return self._adapters.index(name)

    def make(
        self,
        prompt: Any,
        params: SamplingParams,
        kept: CachedPrefix | None = None,
        reading: Reading | None = None,
        **traits: Any,
    ) -> Request:
        """Return the request for one prompt; `traits` are further arguments of `Request`.

        With a `reading`, nothing is generated.

        Raises:
            InputError: A prompt that is empty, not text or too long for the context; ids outside
                the vocabulary; or more tokens or samples than there is room for.
        """
        self._check_params(params)
        text, tokens = self.tokens(prompt)
        if len(tokens) >= self._rows:
            raise InputError(
                f"the prompt has {len(tokens)} tokens: must be at most {self._rows - 1}, one less "
                "than the context length (max_model_len)"
            )
        room = self._rows - len(tokens)
        if params.min_tokens > room:
            raise OptionError(
                "min_tokens",
                params.min_tokens,
                f"must not be more than {room}, the tokens that the prompt leaves in the context",
            )
        limit = room if params.max_tokens is None else min(params.max_tokens, room)
        if reading is not None:
            limit, traits["reader"] = 0, self._reader(reading, len(tokens))
        elif self.pooling.headless:
            raise InputError("the model has no head: it embeds texts, and generates none")
        traits.setdefault("reuse", self._reuses)
        with self._counting:
            number, self._count = self._count, self._count + 1
        request = Request(str(number), text, tokens, params, limit=limit, kept=kept, **traits)
        seed = self._seed_of(number) if params.seed is None else params.seed
        request.samples = [self._sample(request, seed, index) for index in range(params.n)]
        if params.structured_outputs is not None:
            grammar = self.grammars.compiled(structured.text_of(params.structured_outputs))
            for sample in request.samples:
                sample.state.constraint = grammar.start()
        return request

    def _reader(self, reading: Reading, count: int) -> Reader:
        reading.check(self.pooling)
        self._check_ids("tokens", reading.tokens)
        return Reader(reading, self.pooling, count)

    def _sample(self, request: Request, seed: int, index: int) -> Sample:
        params = request.params
        eos = frozenset() if params.ignore_eos else self._tokenizer.eos_ids
        state = SamplingState(
            params=params,
            seed=seed,
            index=index,
            prompt=request.tokens,
            stop_ids=eos | frozenset(params.stop_token_ids or ()),
            bad_words=self._bad_words(params),
        )
        marked = params.marked_token_ids or ()
        text = self._tokenizer.stream(skip_special=params.skip_special_tokens, marked=marked)
        return Sample(request, state, text)

    def think(self, request: Request, thinking: Thinking) -> None:
        """Let a request's samples think before they follow their grammar.

        Raises:
            InputError: A token is outside of the vocabulary.
        """
        opening = () if thinking.open is None else (thinking.open,)
        self._check_ids("thinking", (*opening, *thinking.close))
        decode = self._tokenizer.decode
        for sample in request.samples:
            state = sample.state
            state.constraint = Thought(thinking, state.constraint, state.stop_ids, decode)

    def _seed_of(self, number: int) -> int:
        counter = struct.pack("<2Q", self._seed, number)
        return int.from_bytes(hashlib.blake2b(counter, digest_size=8).digest(), "little")

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        spellings = [space + word for word in params.bad_words or () for space in ("", " ")]
        tokens = (tuple(self._tokenizer.encode(text, special=False)) for text in spellings)
        return tuple(dict.fromkeys(filter(None, tokens)))

    def _check_params(self, params: SamplingParams) -> None:
        if params.n > self._most:
            raise InputError(
                f"n={params.n}: must not be more than max_num_seqs={self._most}, the samples that "
                "run together"
            )
        for name in ("logprobs", "prompt_logprobs"):
            if (getattr(params, name) or 0) > self._vocabulary:
                raise InputError(
                    f"{name}={getattr(params, name)}: must not be more than {self._vocabulary}, "
                    "the size of the vocabulary"
                )
        self._check_ids("stop_token_ids", params.stop_token_ids or ())
        self._check_ids("allowed_token_ids", params.allowed_token_ids or ())
        self._check_ids("marked_token_ids", params.marked_token_ids or ())
        self._check_ids("logit_bias", list(params.logit_bias or ()))

    def tokens(self, prompt: Any) -> tuple[str | None, list[int]]:
        """Return a prompt's text, None if it was given as tokens, and its tokens.

        Raises:
            InputError: It is empty, neither text nor token ids, or has ids outside the vocabulary.
        """
        if isinstance(prompt, Mapping):
            for key in prompt:
                if key not in _KEYS:
                    raise unknown("prompt key", str(key), _KEYS)
            if len(prompt) != 1:
                raise InputError("prompt: give either 'prompt' or 'prompt_token_ids'")
            prompt = next(iter(prompt.values()))
        if isinstance(prompt, str):
            if not prompt:
                raise InputError("the prompt is empty: give some text")
            check_text("the prompt", prompt)
            return prompt, self._checked(self._tokenizer.encode(prompt))
        _refuse_bytes("prompt", prompt)
        if not isinstance(prompt, Sequence):
            raise InputError(f"prompt: must be text or token ids, not {type(prompt).__name__}")
        return None, self._checked(prompt)

    def _checked(self, tokens: Sequence[Any]) -> list[int]:
        if not tokens:
            raise InputError("the prompt is empty: give at least one token")
        self._check_ids("prompt_token_ids", tokens)
        return list(map(int, tokens))

    def _check_ids(self, name: str, tokens: Sequence[Any]) -> None:
        for token in tokens:
            whole = isinstance(token, numbers.Integral) and not isinstance(token, bool)
            if not whole or not 0 <= token < self._vocabulary:
                raise InputError(
                    f"{name}: {token!r} is not a token id; this model's are 0 to "
                    f"{self._vocabulary - 1}"
                )
