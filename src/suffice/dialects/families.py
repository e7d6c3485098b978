"""The dialects of families of models, and how a chat template tells them."""

from __future__ import annotations

from dataclasses import replace

from suffice.dialects.dialect import Calls, Dialect, Thinking
from suffice.dialects.json_forms import Either, Json, Named
from suffice.dialects.other_forms import Braced, Pythonic, Tagged
from suffice.errors import unknown

_LIST = Json(listed=True)
_TOOL_NAME = Json("tool_name", ("parameters",), listed=True, ident="tool_call_id")
_DSML = Tagged(
    name_end='">',
    key='<｜DSML｜parameter name="',
    key_end='"',
    close="</｜DSML｜parameter>",
    said=(' string="true">', ' string="false">'),
    lines=False,
)
_FUNCTION = Tagged(name_end=">", key="<parameter=", key_end=">", close="</parameter>")

THINKINGS = {
    each.name: each
    for each in (
        Thinking("gemma4", "<|channel>thought\n", "<channel|>", ("<|channel>",)),
        Thinking("mistral", "[THINK]", "[/THINK]", ("[THINK]",)),
        Thinking("seed_oss", "<seed:think>", "</seed:think>", ("<seed:think>",)),
        Thinking("cohere", "<|START_THINKING|>", "<|END_THINKING|>", ("<|START_THINKING|>",)),
        Thinking(
            "granite",
            "Here is my thought process:",
            "Here is my response:",
            ("Here is my thought process:",),
        ),
        Thinking("kimi", "◁think▷", "◁/think▷", ("◁think▷",)),
        Thinking("qwen3", "<think>", "</think>", ("<think>", "</think>")),
        Thinking("deepseek_r1", "<think>", "</think>", always=True),
    )
}

# In the order in which templates are tried: a form that others contain comes after them.
CALLS = {
    each.name: each
    for each in (
        Calls(
            "gemma4",
            Braced('<|"|>'),
            "<|tool_call>",
            "<tool_call|>",
            signs=("<|tool_call>",),
        ),
        Calls(
            "functiongemma",
            Braced("<escape>"),
            "<start_function_call>",
            "<end_function_call>",
            signs=("<start_function_call>",),
        ),
        Calls(
            "kimi_k2",
            Named("<|tool_call_argument_begin|>", ident=True),
            "<|tool_call_begin|>",
            "<|tool_call_end|>",
            ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            signs=("<|tool_call_begin|>",),
        ),
        Calls(
            "deepseek_v3",
            Named("\n```json\n", after="\n```"),
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
            signs=("<｜tool▁call▁begin｜>", "```json"),
        ),
        Calls(
            "deepseek_v31",
            Named("<｜tool▁sep｜>"),
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
            signs=("<｜tool▁call▁begin｜>",),
        ),
        Calls(
            "deepseek_v32",
            _DSML,
            '<｜DSML｜invoke name="',
            "</｜DSML｜invoke>",
            ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
            signs=("｜DSML｜", "function_calls>"),
        ),
        Calls(
            "deepseek_v4",
            _DSML,
            '<｜DSML｜invoke name="',
            "</｜DSML｜invoke>",
            ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
            signs=("｜DSML｜",),
        ),
        Calls(
            "minimax_m2",
            Tagged(name_end='">', key='<parameter name="', key_end='">', close="</parameter>"),
            '<invoke name="',
            "</invoke>",
            ("<minimax:tool_call>", "</minimax:tool_call>"),
            signs=("<minimax:tool_call>",),
        ),
        Calls(
            "seed_oss",
            _FUNCTION,
            "<function=",
            "</function>",
            ("<seed:tool_call>", "</seed:tool_call>"),
            signs=("<seed:tool_call>",),
        ),
        Calls(
            "qwen3_coder",
            _FUNCTION,
            "<function=",
            "</function>",
            ("<tool_call>", "</tool_call>"),
            signs=("<function=", "<parameter="),
        ),
        Calls(
            "hy_v3",
            Tagged(
                *("<tool_sep>", "<arg_key>", "</arg_key>", "</arg_value>", "<arg_value>"),
                lines=False,
            ),
            "<tool_call>",
            "</tool_call>",
            ("<tool_calls>", "</tool_calls>"),
            signs=("<tool_sep>",),
        ),
        Calls(
            "glm45",
            Tagged("\n", "<arg_key>", "</arg_key>", "</arg_value>", "<arg_value>", lines=False),
            "<tool_call>",
            "</tool_call>",
            signs=("<arg_key>",),
        ),
        Calls(
            "mistral_v11",
            Either(_LIST, Named("[ARGS]"), newer=True),
            "[TOOL_CALLS]",
            signs=("[TOOL_CALLS]", "[ARGS]"),
        ),
        Calls(
            "mistral",
            Either(_LIST, Named("[ARGS]")),
            "[TOOL_CALLS]",
            signs=("[TOOL_CALLS]",),
        ),
        Calls(
            "cohere",
            _TOOL_NAME,
            "<|START_ACTION|>",
            "<|END_ACTION|>",
            signs=("<|START_ACTION|>",),
        ),
        Calls("command_r", _TOOL_NAME, "Action: ```json\n", "```", signs=("Action:", "tool_name")),
        Calls(
            "nemotron",
            _LIST,
            "<TOOLCALL>",
            "</TOOLCALL>",
            signs=("<TOOLCALL>",),
        ),
        Calls(
            "phi4_mini",
            _LIST,
            "<|tool_call|>",
            "<|/tool_call|>",
            signs=("<|tool_call|>", "<|/tool|>"),
        ),
        Calls("hunyuan_a13b", _LIST, "<tool_calls>", "</tool_calls>", signs=("<tool_calls>[",)),
        Calls("functools", _LIST, "functools", signs=("functools[",)),
        Calls("granite_list", _LIST, "<|tool_call|>", signs=("<|tool_call|>",)),
        Calls(
            "granite",
            _LIST,
            "<tool_call>",
            "</tool_call>",
            signs=("<tool_call>[",),
        ),
        Calls(
            "hermes",
            Json(),
            "<tool_call>",
            "</tool_call>",
            signs=("<tool_call>",),
        ),
        Calls(
            "llama4_pythonic",
            Pythonic(),
            "<|python_start|>",
            "<|python_end|>",
            bare=True,
            signs=("<|python_start|>",),
        ),
        Calls("pythonic", Pythonic(), "<|python_tag|>", bare=True, signs=("[func_name1(",)),
        Calls(
            "llama3",
            Json(arguments=("parameters", "arguments")),
            "<|python_tag|>",
            bare=True,
            between=";",
            signs=('"parameters"',),
        ),
    )
}

HARMONY = Dialect(
    channels=(
        *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"),
        "<|constrain|>",
    ),
)
_HARMONY_NAMES = {"harmony", "gpt_oss", "openai_gptoss", "openai"}
_RESPONSE = (
    *("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    *("<response>", "</response>", "<answer>", "</answer>", "助手："),
)
# vLLM's names for dialects that have another here.
SAME = {
    **dict.fromkeys(("deepseek_v3_thinking", "glm45", "smollm3", "minimax_m2", "step3"), "qwen3"),
    **dict.fromkeys(("nemotron_v3", "holo2", "hunyuan_a13b", "ernie45", "kimi_k2"), "qwen3"),
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "deepseek_v4", "hy_v3"), "qwen3"),
    "minimax_m2_append_think": "deepseek_r1",
    "cohere_command3": "cohere",
    "llama3_json": "llama3",
    "llama4_json": "llama3",
    "granite4": "hermes",
    "granite-20b-fc": "granite",
    "phi4_mini_json": "functools",
    "qwen3_xml": "qwen3_coder",
    "glm47": "glm45",
    "minimax": "minimax_m2",
}
GENERIC = "hermes"  # what a model is taught whose template has no tools


def thinking_of(asked: str) -> Thinking | None:
    """Return a form of thinking by its name, or vLLM's; None for "none".

    Raises:
        InputError: It is unknown.
    """
    name = SAME.get(asked, asked) if asked not in THINKINGS else asked
    if name == "none":
        return None
    if name not in THINKINGS:
        raise unknown("reasoning parser", asked, (*THINKINGS, "none"))
    return THINKINGS[name]


def calls_of(asked: str) -> Calls:
    """Return a form of calls by its name, or vLLM's.

    Raises:
        InputError: It is unknown.
    """
    name = SAME.get(asked, asked) if asked not in CALLS else asked
    if name not in CALLS:
        raise unknown("tool-call parser", asked, tuple(CALLS))
    return CALLS[name]


def forms_of(asked: str) -> tuple[str, str]:
    """Return the names of a dialect's forms of thinking and of calls: "auto" where it has none.

    Raises:
        InputError: No form has this name.
    """
    if asked == "auto" or asked in _HARMONY_NAMES:
        return asked, asked
    thinking, calls = (
        asked if asked in known or SAME.get(asked) in known else "auto"
        for known in (THINKINGS, CALLS)
    )
    if thinking == calls == "auto":
        raise unknown("dialect", asked, sorted({*THINKINGS, *CALLS, *SAME, "harmony"}))
    return thinking, calls


def recognized(template: str | None, with_tools: str | None = None) -> Dialect:
    """Return the dialect of a chat template.

    `with_tools` is the one for conversations with tools; None if there is none.
    """
    if template is not None and all(mark in template for mark in HARMONY.channels[:3]):
        return HARMONY
    thinking = next(
        (
            each
            for each in THINKINGS.values()
            if template is not None and any(sign in template for sign in each.signs)
        ),
        None,
    )
    calls = next(
        (
            each
            for each in CALLS.values()
            if with_tools is not None and all(sign in with_tools for sign in each.signs)
        ),
        None,
    )
    dropped = tuple(mark for mark in _RESPONSE if template is not None and mark in template)
    return Dialect(thinking, calls, dropped)


def chosen(
    template: str | None,
    with_tools: str | None,
    *,
    thinking: str = "auto",
    calls: str = "auto",
) -> Dialect:
    """Return the dialect of a model: what its template tells, unless something else is asked for.

    A model whose template has no tools is taught the generic form.

    Raises:
        InputError: An unknown form is asked for.
    """
    if {thinking, calls} & _HARMONY_NAMES:
        return HARMONY
    found = recognized(template, with_tools)
    if found.channels and thinking == calls == "auto":
        return found
    found = replace(found, channels=())
    if thinking != "auto":
        found = replace(found, thinking=thinking_of(thinking))
    if calls != "auto":
        found = replace(found, calls=calls_of(calls))
    elif found.calls is None:
        found = replace(found, calls=CALLS[GENERIC])
    return found
