"""A model's chat template: conversations to text, as transformers' apply_chat_template does it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from suffice.errors import InputError, one_line

_DEFAULT, _WITH_TOOLS = "default", "tool_use"
_LONGEST = 1 << 18  # characters of a template
_MARK = "CONTINUE_FINAL_MESSAGE_TAG "  # found again where the last message ends
# Names under which messages carry reasoning; templates read the first, some the second
_REASONING = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """A template. Where there are several by name, `default` is used, or `tool_use` with tools.

    Templates see `special`, tokens by role such as `bos_token`. jinja2 is imported, and the
    template compiled, for the first conversation.
    """

    def __init__(self, source: str | Mapping[str, str], special: Mapping[str, str]) -> None:
        self.source = source
        self._special = special
        self._lock = threading.Lock()
        self._sandbox: Any = None
        self._programs: dict[str, Any] = {}

    @functools.cached_property
    def takes_tools(self) -> bool:
        """Whether a conversation with tools shows them."""
        from jinja2 import TemplateError
        from jinja2.meta import find_undeclared_variables

        from suffice.text.template_sandbox import Sandbox

        try:
            parsed = Sandbox().parse(self.with_tools)
            return "tools" in find_undeclared_variables(parsed)
        except (TemplateError, InputError, RecursionError):
            return False  # its use will say why

    @property
    def with_tools(self) -> str:
        """The template for conversations with tools.

        Raises:
            InputError: There is none, or it is too long.
        """
        return self._chosen(with_tools=True)

    def text(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_last: bool = False,
        facts: Mapping[str, Any] | None = None,
    ) -> str:
        """Return a conversation as text.

        `add_generation_prompt` begins the answer; `continue_last` leaves the last message open.
        `facts` are what else the template may ask for by name, such as `tools`.

        Raises:
            InputError: The conversation is empty, the template refuses it, fails, or takes too much
                time or memory.
        """
        source = self._chosen(with_tools=bool(facts and facts.get("tools")))
        if not messages:
            raise InputError("the conversation is empty: give at least one message")
        try:
            talk, plain = [_message(message) for message in messages], _plain(facts or {})
        except RecursionError:
            raise InputError("the conversation is nested too deeply") from None
        last = _mark(talk[-1]) if continue_last else ""
        own = {**self._special, "messages": talk, "add_generation_prompt": add_generation_prompt}
        asked = {"tools": None, "documents": None, **plain, **own}
        with self._lock:
            text = self._rendered(source, asked)
        return _cut(text, last) if continue_last else text

    def _chosen(self, *, with_tools: bool) -> str:
        """Return the template for conversations."""
        source = self.source
        if not isinstance(source, str) and with_tools and _WITH_TOOLS in source:
            source = source[_WITH_TOOLS]
        if not isinstance(source, str):
            if _DEFAULT not in source:
                raise InputError(
                    f"the model has no chat template named '{_DEFAULT}', only: "
                    f"{one_line(', '.join(sorted(source)))}"
                )
            source = source[_DEFAULT]
        if len(source) > _LONGEST:
            raise InputError(
                f"the chat template has {len(source)} characters; at most {_LONGEST} are allowed"
            )
        return source

    def _rendered(self, source: str, facts: Mapping[str, Any]) -> str:
        from jinja2 import TemplateError

        from suffice.text.template_budget import Budget, weigh
        from suffice.text.template_sandbox import Sandbox

        try:
            if self._sandbox is None:
                self._sandbox = Sandbox()
            if source not in self._programs:
                self._programs[source] = self._sandbox.program(source)
            budget = Budget(sum(weigh(each, float("inf"))[0] for each in facts.values()))
            self._sandbox.budget = budget
            parts, length = [], 0
            for part in self._programs[source].generate(facts):
                parts.append(part)
                length += len(part)
                budget.room(length)
            return "".join(parts)
        except TemplateError as error:
            raise _refusal("refuses the conversation", str(error)) from None
        except Exception as error:  # the template is a program that may raise anything
            raise _refusal("fails", f"{type(error).__name__}: {error}".rstrip(": ")) from None


def _refusal(what: str, reason: str) -> InputError:
    return InputError(f"the chat template {what}: {one_line(reason)}")


def _message(message: Any) -> dict[str, Any]:
    """Return a message as a template sees it: plain values, none of them None."""
    if not isinstance(message, Mapping):
        raise InputError(f"a message must have a role and content, not be {message!r:.60}")
    plain: dict[str, Any] = _plain({key: each for key, each in message.items() if each is not None})
    found = [plain[name] for name in _REASONING if plain.get(name) is not None]
    return {"thinking": found[0], **plain, "reasoning_content": found[0]} if found else plain


def _plain(value: Any) -> Any:
    """Return a value built of JSON's types alone: methods of others could do anything."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        parts = [_plain(each) for each in value]
        return parts if isinstance(value, list) else tuple(parts)
    return f"<{type(value).__name__}>"


def _mark(message: dict[str, Any]) -> str:
    """Put a mark at the end of a message's text, and return the text."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    texts = [each for each in blocks if isinstance(each, dict) and "text" in each]
    if isinstance(content, str):
        message["content"] = content + _MARK
        return content
    if not texts:
        raise InputError("the last message has no text to continue")
    text = str(texts[-1]["text"])
    texts[-1]["text"] = text + _MARK
    return text


def _cut(text: str, last: str) -> str:
    """Return a conversation up to the mark that follows its last message, without the mark."""
    at = text.rfind(_MARK.strip())
    if at < 0 or last.strip() not in text:
        raise InputError("the chat template drops a part of the last message: cannot continue it")
    kept = text[:at]
    return kept if text.startswith(_MARK, at) else kept.rstrip()
