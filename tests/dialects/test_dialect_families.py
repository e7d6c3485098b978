"""Which dialect a chat template tells, and the names that force one."""

from __future__ import annotations

import pytest

from suffice.dialects import families
from suffice.dialects.families import CALLS, SAME, THINKINGS, chosen, forms_of, recognized
from suffice.errors import InputError
from suffice.serve.settings import Settings

# Parts of published templates: how they write an answer with thinking and calls.
TEMPLATES: dict[str, tuple[str, str | None, str | None]] = {
    "Qwen3": ("<tool_call>\n{{ tools }}</tool_call> <think>\n\n</think>", "qwen3", "hermes"),
    "Qwen3-Coder": ("{{ tools }}<tool_call>\n<function=x>\n<parameter=y>", None, "qwen3_coder"),
    "Qwen3.5": ("{{ tools }}<function=x><parameter=y> <think></think>", "qwen3", "qwen3_coder"),
    "Hermes 3": ("{{ tools }}<tool_call>", None, "hermes"),
    "DeepSeek-V3": (
        "{{ tools }}<｜tool▁call▁begin｜>function<｜tool▁sep｜>a\n```json",
        None,
        "deepseek_v3",
    ),
    "DeepSeek-V3.1": (
        "{{ tools }}<｜tool▁call▁begin｜>a<｜tool▁sep｜> </think><think>",
        "qwen3",
        "deepseek_v31",
    ),
    "DeepSeek-V3.2": (
        "{% set dsml_token = '｜DSML｜' %}{{ tools }}<{{ dsml_token }}function_calls>"
        "<{{ dsml_token }}invoke name= {{ '<think>' }}",
        "qwen3",
        "deepseek_v32",
    ),
    "DeepSeek-V4": (
        "{% set dsml_token = '｜DSML｜' %}{{ tools }}<{{ dsml_token }}tool_calls> <think>",
        "qwen3",
        "deepseek_v4",
    ),
    "Hunyuan-A13B": (
        '{{ tools }}<tool_calls>[{"name": "func_name1"}]</tool_calls> 以助手：开头 <think>',
        "qwen3",
        "hunyuan_a13b",
    ),
    "Hunyuan 3": ("{{ tools }}<tool_calls><tool_call>a<tool_sep><arg_key>", None, "hy_v3"),
    "Ministral 3": (
        "[THINK]{{ tools }}{{- '[TOOL_CALLS]' + tool.name + '[ARGS]' + arguments }}",
        "mistral",
        "mistral_v11",
    ),
    "GLM-4.5": ("{{ tools }}<tool_call>a\n<arg_key> <think></think>", "qwen3", "glm45"),
    "Mistral": ("{{ tools }}[TOOL_CALLS] [THINK]", "mistral", "mistral"),
    "Kimi K2": ("{{ tools }}<|tool_call_begin|>", None, "kimi_k2"),
    "MiniMax M2": ("{{ tools }}<minimax:tool_call> <think></think>", "qwen3", "minimax_m2"),
    "Seed-OSS": ("{{ tools }}<seed:tool_call><function=a> <seed:think>", "seed_oss", "seed_oss"),
    "Granite 3": (
        "{{ tools }}<|tool_call|> Here is my thought process:",
        "granite",
        "granite_list",
    ),
    "Phi-4-mini": ("<|tool|>{{ tools }}<|/tool|><|tool_call|>", None, "phi4_mini"),
    "Nemotron": ("{{ tools }}<TOOLCALL>[ <think></think>", "qwen3", "nemotron"),
    "Command A": (
        "{{ tools }}<|START_ACTION|> <|START_THINKING|> <|START_RESPONSE|>",
        "cohere",
        "cohere",
    ),
    "Gemma 4": ("{{ tools }}<|tool_call>call: <|channel>thought", "gemma4", "gemma4"),
    "FunctionGemma": ("{{ tools }}<start_function_call>call:", None, "functiongemma"),
    "Llama 3.1": ('{{ tools }}{"name": , "parameters": }', None, "llama3"),
    "Llama 3.2": ("{{ tools }}[func_name1(params_name1=params_value1)]", None, "pythonic"),
    "Llama 4": ("{{ tools }}<|python_start|>", None, "llama4_pythonic"),
    "SmolLM2": ("<|im_start|>", None, None),
}


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_template_tells_its_dialect(family: str) -> None:
    template, thinking, calls = TEMPLATES[family]
    found = recognized(template, template if "tools" in template else None)
    assert (found.thinking and found.thinking.name) == thinking
    assert (found.calls and found.calls.name) == calls


def test_harmony_has_channels() -> None:
    template = "{{ tools }}<|start|>assistant<|channel|>analysis<|message|>"
    assert recognized(template, template) is families.HARMONY
    assert chosen(None, None, thinking="openai_gptoss") is families.HARMONY
    named = chosen(template, template, calls="hermes")
    assert named.calls is CALLS["hermes"] and not named.channels, "what is asked for counts"


def test_names_force_a_form() -> None:
    found = chosen(None, None, thinking="deepseek_r1", calls="llama3_json")
    assert found.thinking is THINKINGS["deepseek_r1"] and found.calls is CALLS["llama3"]
    assert chosen("<think></think>", None, thinking="none").thinking is None
    assert chosen(None, None).calls is CALLS["hermes"], "what it can be taught"
    with pytest.raises(InputError, match="tool-call parser 'herms'"):
        chosen(None, None, calls="herms")
    with pytest.raises(InputError, match=r"reasoning parser 'qwen'.* Did you mean 'qwen3'"):
        chosen(None, None, thinking="qwen")


def test_names_of_others_are_known_here() -> None:
    for name in families.SAME:
        assert families.SAME[name] in {**CALLS, **THINKINGS}


def test_a_family_s_name_stands_for_both_forms() -> None:
    assert forms_of("mistral") == ("mistral", "mistral")
    assert forms_of("qwen3_coder") == ("auto", "qwen3_coder")
    assert forms_of("deepseek_r1") == ("deepseek_r1", "auto")
    assert forms_of("harmony") == ("harmony", "harmony") and forms_of("auto") == ("auto", "auto")
    for name in {*THINKINGS, *CALLS, *SAME}:
        thinking, calls = forms_of(name)
        assert (thinking, calls) != ("auto", "auto")
        chosen(None, None, thinking=thinking, calls=calls)
    with pytest.raises(InputError, match=r"unknown dialect 'mistrall'\. Did you mean 'mistral'"):
        forms_of("mistrall")


def test_a_dialect_and_a_parser_contradict_each_other() -> None:
    assert Settings("m", dialect="mistral").forms == ("mistral", "mistral")
    with pytest.raises(InputError, match="--dialect mistral stands for --reasoning-parser and"):
        Settings("m", dialect="mistral", tool_parser="hermes")
    with pytest.raises(InputError, match="unknown tool-call parser 'herms'"):
        Settings("m", tool_parser="herms")
