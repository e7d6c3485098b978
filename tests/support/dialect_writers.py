"""Answers as families of models publish them, written without the package's tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

Call = tuple[str, Mapping[str, Any]]  # a tool's name, and its arguments
Write = Callable[[Sequence[Call]], str]

TOOLS: Mapping[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "hours": {"type": "array", "items": {"type": "integer"}},
            "exact": {"type": "boolean"},
        },
        "required": ["city"],
    },
    "stop": {"type": "object", "properties": {}},
    "write.file-2": {"type": "object", "properties": {"text": {"type": "string"}}},
}
TEXTS = ("", "Жди.", "Ответ: 4 < 5 и [x] {y}.\n\n* да\n* нет", "`</b>` <tool 1 <|x|> [TOOL")
THOUGHTS = ("", "Хм.", "Раз\n\nдва: {три} [4] <tool")
CALLS: tuple[tuple[Call, ...], ...] = (
    (),
    (("stop", {}),),
    (("weather", {"city": "Žатец, \"ab\" }] 'c'", "days": -3}),),
    (
        ("weather", {"city": "Ош", "hours": [1, 2], "exact": True}),
        ("write.file-2", {"text": "раз\nдва </x>\n\t{три}\\n"}),
    ),
)


def plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def named(name: str, arguments: Any, field: str = "arguments", key: str = "name") -> str:
    return compact({key: name, field: arguments})


def hermes(calls: Sequence[Call]) -> str:
    return "\n".join(f"<tool_call>\n{named(*call)}\n</tool_call>" for call in calls)


def a_list(before: str, after: str = "") -> Write:
    def write(calls: Sequence[Call]) -> str:
        return f"{before}[{', '.join(named(*call) for call in calls)}]{after}" if calls else ""

    return write


def mistral_v11(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{compact(given)}" for name, given in calls)


def deepseek(each: str) -> Write:
    def write(calls: Sequence[Call]) -> str:
        parts = [
            f"<｜tool▁call▁begin｜>{each.format(name=name, given=compact(given))}"
            "<｜tool▁call▁end｜>"
            for name, given in calls
        ]
        return f"<｜tool▁calls▁begin｜>{''.join(parts)}<｜tool▁calls▁end｜>" if calls else ""

    return write


def kimi(calls: Sequence[Call]) -> str:
    parts = [
        f"<|tool_call_begin|>functions.{name}:{at}<|tool_call_argument_begin|>{compact(given)}"
        "<|tool_call_end|>"
        for at, (name, given) in enumerate(calls)
    ]
    return (
        f"<|tool_calls_section_begin|>{''.join(parts)}<|tool_calls_section_end|>" if parts else ""
    )


def functions(before: str, after: str) -> Write:
    def write(calls: Sequence[Call]) -> str:
        parts = []
        for name, given in calls:
            values = "".join(
                f"<parameter={key}>\n{plain(value)}\n</parameter>\n" for key, value in given.items()
            )
            parts.append(f"{before}\n<function={name}>\n{values}</function>\n{after}")
        return "\n".join(parts)

    return write


def minimax(calls: Sequence[Call]) -> str:
    parts = []
    for name, given in calls:
        values = "".join(
            f'<parameter name="{key}">{plain(value)}</parameter>\n' for key, value in given.items()
        )
        parts.append(f'<invoke name="{name}">\n{values}</invoke>\n')
    return f"<minimax:tool_call>\n{''.join(parts)}</minimax:tool_call>" if parts else ""


def dsml(section: str) -> Write:
    def write(calls: Sequence[Call]) -> str:
        parts = []
        for name, given in calls:
            values = "\n".join(
                f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
                f"{plain(value)}</｜DSML｜parameter>"
                for key, value in given.items()
            )
            parts.append(f'<｜DSML｜invoke name="{name}">\n{values}\n</｜DSML｜invoke>\n')
        return f"<｜DSML｜{section}>\n{''.join(parts)}</｜DSML｜{section}>" if parts else ""

    return write


def arguments(given: Mapping[str, Any]) -> str:
    return "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{plain(value)}</arg_value>\n"
        for key, value in given.items()
    )


def hunyuan(calls: Sequence[Call]) -> str:
    parts = [
        f"<tool_call>{name}<tool_sep>\n{arguments(given)}</tool_call>\n" for name, given in calls
    ]
    return f"<tool_calls>\n{''.join(parts)}</tool_calls>" if parts else ""


def glm(calls: Sequence[Call]) -> str:
    return "\n".join(f"<tool_call>{name}\n{arguments(given)}</tool_call>" for name, given in calls)


def gemma_value(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, list):
        return f"[{','.join(gemma_value(each, quote) for each in value)}]"
    return compact(value)


def gemma(before: str, after: str, quote: str) -> Write:
    def write(calls: Sequence[Call]) -> str:
        parts = []
        for name, given in calls:
            values = ",".join(f"{key}:{gemma_value(each, quote)}" for key, each in given.items())
            parts.append(f"{before}call:{name}{{{values}}}{after}")
        return "".join(parts)

    return write


def pythonic(before: str = "", after: str = "") -> Write:
    def write(calls: Sequence[Call]) -> str:
        parts = []
        for name, given in calls:
            values = ", ".join(f"{key}={value!r}" for key, value in given.items())
            parts.append(f"{name}({values})")
        return f"{before}[{', '.join(parts)}]{after}" if parts else ""

    return write


def llama3(calls: Sequence[Call]) -> str:
    return "; ".join(named(*call, field="parameters") for call in calls)


def cohere(before: str, after: str) -> Write:
    def write(calls: Sequence[Call]) -> str:
        parts = [
            compact({"tool_call_id": str(at), "tool_name": name, "parameters": given})
            for at, (name, given) in enumerate(calls)
        ]
        inner = ",\n    ".join(parts)
        return f"{before}[\n    {inner}\n]{after}" if parts else ""

    return write


# By the form of calls: how they are written, and whether text may precede them.
WRITERS: dict[str, tuple[Write, bool]] = {
    "gemma4": (gemma("<|tool_call>", "<tool_call|>", '<|"|>'), True),
    "functiongemma": (
        gemma("<start_function_call>", "<end_function_call>", "<escape>"),
        True,
    ),
    "kimi_k2": (kimi, True),
    "deepseek_v3": (
        deepseek("function<｜tool▁sep｜>{name}\n```json\n{given}\n```"),
        True,
    ),
    "deepseek_v31": (deepseek("{name}<｜tool▁sep｜>{given}"), True),
    "deepseek_v32": (dsml("function_calls"), True),
    "deepseek_v4": (dsml("tool_calls"), True),
    "minimax_m2": (minimax, True),
    "seed_oss": (functions("<seed:tool_call>", "</seed:tool_call>"), True),
    "qwen3_coder": (functions("<tool_call>", "</tool_call>"), True),
    "hy_v3": (hunyuan, True),
    "glm45": (glm, True),
    "mistral": (a_list("[TOOL_CALLS]"), True),
    "mistral_v11": (mistral_v11, True),
    "cohere": (cohere("<|START_ACTION|>", "<|END_ACTION|>"), True),
    "command_r": (cohere("Action: ```json\n", "\n```"), True),
    "nemotron": (a_list("<TOOLCALL>", "</TOOLCALL>"), True),
    "phi4_mini": (a_list("<|tool_call|>", "<|/tool_call|>"), True),
    "hunyuan_a13b": (a_list("<tool_calls>", "</tool_calls>"), True),
    "functools": (a_list("functools"), True),
    "granite_list": (a_list("<|tool_call|>"), True),
    "granite": (a_list("<tool_call>", "</tool_call>"), True),
    "hermes": (hermes, True),
    "llama4_pythonic": (pythonic("<|python_start|>", "<|python_end|>"), False),
    "pythonic": (pythonic(), False),
    "llama3": (llama3, False),
}
FORM: dict[str, str] = {}  # where it is not the writer's name
THINKING: dict[str, tuple[str, str]] = {
    "qwen3": ("<think>\n", "\n</think>\n\n"),
    "gemma4": ("<|channel>thought\n", "<channel|>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "seed_oss": ("<seed:think>", "</seed:think>"),
    "cohere": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "granite": ("Here is my thought process:\n\n", "\n\nHere is my response:\n\n"),
    "kimi": ("◁think▷", "◁/think▷"),
}


def harmony(thought: str, text: str, calls: Sequence[Call]) -> str:
    messages = []
    if thought:
        messages.append(f"<|channel|>analysis<|message|>{thought}")
    if text:
        channel = "commentary" if calls else "final"
        messages.append(f"<|channel|>{channel}<|message|>{text}")
    for name, given in calls:
        head = f"<|channel|>commentary to=functions.{name} <|constrain|>json"
        messages.append(f"{head}<|message|>{compact(given)}")
    return "<|end|><|start|>assistant".join(messages)


def answers(form: str, thinking: str) -> Iterator[tuple[str, str, str, Sequence[Call]]]:
    """Yield answers of a form: the whole, and its thinking, its text and its calls."""
    write, after_text = WRITERS.get(form, (None, True))
    for thought, text, calls in product(THOUGHTS, TEXTS, CALLS):
        if text and calls and not after_text:
            continue
        if write is None:
            yield harmony(thought, text, calls), thought, text, calls
            continue
        opening, close = THINKING[thinking]
        said = f"{opening}{thought}{close}" if thought else ""
        between = "\n" if text and calls else ""
        yield f"{said}{text}{between}{write(calls)}", thought, text, calls
