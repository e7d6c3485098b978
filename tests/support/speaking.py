"""Tiny random models whose templates and marks are those of families that think and call tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tiny

_TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
_QWEN = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools> <tool_call>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>"
    "{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
_HARMONY = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{{ reasoning_effort }}"
    "{% for m in messages %}<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


@dataclass(frozen=True)
class Family:
    """What a model is given: a template, and the marks that are tokens."""

    template: str
    special: Sequence[str] = ()
    plain: Sequence[str] = ()


def _with_tools(mark: str) -> str:
    return f"{{% if tools %}}{{{{ tools | tojson }}}}{mark}{{% endif %}}{_TURNS}<|assistant|>"


FAMILIES = {
    "qwen3": Family(_QWEN, plain=("<think>", "</think>", "<tool_call>", "</tool_call>")),
    "harmony": Family(
        _HARMONY,
        special=(
            "<|start|>",
            "<|channel|>",
            "<|message|>",
            "<|call|>",
            "<|return|>",
            "<|constrain|>",
        ),
    ),
    "mistral": Family(_with_tools("[TOOL_CALLS]"), special=("[TOOL_CALLS]", "[ARGS]")),
    "deepseek_r1": Family(
        _with_tools("<｜tool▁call▁begin｜>") + "<think>\n{# </think> #}",
        special=(
            *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
            *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
        ),
        plain=("<think>", "</think>"),
    ),
    "glm45": Family(
        _with_tools("<tool_call><arg_key> <think></think>"),
        plain=(
            *("<think>", "</think>", "<tool_call>", "</tool_call>"),
            *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        ),
    ),
    "gemma4": Family(
        _with_tools("<|tool_call>call: <|channel>"),
        special=("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'),
    ),
    "coder": Family(
        _TURNS + "{{ extra }}<|assistant|>",
        special=("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ),
    "qwen3_coder": Family(
        _with_tools("<tool_call><function=a><parameter=b>"), plain=("<tool_call>", "</tool_call>")
    ),
}


def make(folder: Path, family: str, *, tokens: bool = True) -> Path:
    """Write a tiny model that has a family's template and marks.

    Without `tokens` marks that are not special are text, as an engine needs it that says a text.
    """
    given = FAMILIES[family]
    tiny.make(folder, "llama", vocab_size=400, max_position_embeddings=1024)
    write_tokenizer(folder, given.special, given.plain if tokens else ())
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings_path = folder / "tokenizer_config.json"
    settings = json.loads(settings_path.read_text())
    settings["chat_template"] = given.template
    settings_path.write_text(json.dumps(settings))
    return folder


def write_tokenizer(folder: Path, special: Sequence[str], plain: Sequence[str] = ()) -> None:
    """Write the tiny tokenizer, with marks that are tokens."""
    tiny.write_tokenizer(folder)
    path = folder / "tokenizer.json"
    found = json.loads(path.read_text())
    ends = {each["content"] for each in found["added_tokens"]}
    ident = max(
        max(found["model"]["vocab"].values()), *(each["id"] for each in found["added_tokens"])
    )
    for marks, kept in ((special, True), (plain, False)):
        for mark in marks:
            assert mark not in ends
            ident += 1
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            own = {"id": ident, "content": mark, "special": kept, **flags}
            found["added_tokens"].append(own)
    path.write_text(json.dumps(found))
