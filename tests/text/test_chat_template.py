"""Tests of chat_template.py and template_sandbox.py: the text of transformers' templates."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import tokenizer_folders
from suffice.errors import InputError
from suffice.text import template_sandbox
from suffice.text.chat_template import ChatTemplate
from suffice.text.tokenizer import load_tokenizer

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
HI = [{"role": "user", "content": "hi"}]

TEMPLATES = {
    "turns": """{%- for m in messages %}
    {%- if loop.first and m['role'] != 'system' %}{{ '<|sys|>be kind\n' }}{% endif %}
    {{- '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}""",
    "strict": """{{ bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set first = messages[0].content|trim + '\n\n' %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set first = '' %}
    {%- set rest = messages %}
{%- endif -%}
{%- for message in rest -%}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('roles must alternate') }}
    {%- endif -%}
    [{{ 'model' if message.role == 'assistant' else message.role }}]{{ first if loop.first }}
    {%- if message.content is string -%}{{ message.content.strip() }}
    {%- elif message.content is iterable -%}
        {%- for part in message.content -%}{{ part['text'] | trim }}{%- endfor -%}
    {%- endif -%}
    {{ eos_token if message.role == 'assistant' }}
{%- endfor -%}""",
    "thoughts": """{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set at = messages|length - 1 - loop.index0 %}
    {%- if ns.searching and message.role == 'user' and message.content is string %}
        {%- set ns.searching = false %}{%- set ns.last = at %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- set thought = '' %}
    {%- if message.reasoning_content is defined %}{% set thought = message.reasoning_content %}
    {%- elif '</think>' in content %}
        {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1] %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '(' ~ message.role ~ ')' }}
    {%- if loop.index0 > ns.last and thought %}{{ '{' ~ thought.strip() ~ '}' }}{% endif %}
    {{- content }}
    {%- for call in message.tool_calls or [] %}
        {{- '\n<call>' + call.function.name + ': ' + (call.function.arguments | tojson) }}
    {%- endfor %}
{%- endfor %}""",
    "everything": """{% macro show(value, depth=0) -%}
{%- if value is mapping -%}<{%- for k, v in value|dictsort %}{{ k }}={{ show(v, depth + 1) }},
{%- endfor -%}>
{%- elif value is string -%}{{ value|replace('a', 'bb')|upper }}
{%- elif value is iterable -%}[{{ value|map('string')|join(', ') }}]
{%- else -%}{{ value }}{%- endif -%}
{%- endmacro %}
{% macro twice() %}<{{ caller('y') }}{{ caller('z') }}>{% endmacro %}
{% for message in messages if message.role != 'tool' %}
    {% generation %}{{ show(message) }} {{ loop.index }}/{{ loop.length }}{% endgeneration %}
    {% if loop.index > 3 %}{% break %}{% endif %}
    {% if message.role == 'system' %}{% continue %}{% endif %}
  {{ '%s-%5s|%-4d' % (message.role, 'x', 7) }} {{ '{0:>6}{1}'.format(message.role, 3) }}
  {{ '%s and %s'|format(1, 'b') }} {{ [1, 2] + [3] }} {{ (1, 'b') }} {{ 'x' * 3 }} {{ [0] * 2 }}
  {{ {'k': [1, none, true, 2.5]}|tojson }} {{ {'b': 'ü<>&', 'a': 1}|tojson(indent=2) }}
  {{ {'b': 1, 'a': 2}|tojson(sort_keys=true, separators=(',', ':')) }} {{ 'ü'|tojson(true) }}
  {{ 'ab' ~ 1 ~ none ~ 2 ** 5 ~ 7 // 2 ~ 7 % 3 ~ -1 ~ 3 / 2 }} {{ 'abc'[::-1] }} {{ 'abc'[1:] }}
  {{ messages|map(attribute='role')|unique|list }} {{ loop.cycle('a', 'b') }}
  {{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ [[1], [2]]|sum(start=[]) }}
  {{ [3, 1, 2]|sort|join('-') }} {{ [3, 1, 2]|sum }} {{ 'a b'.split() }}
  {{ 'abc'.center(9, '*') }}
  {{ [{'n': 2}, {'n': 3}]|sum('n') }} {{ dict(a=1, b=2).items()|list }} {{ 'l\nm'|indent(4, true) }}
  {{ missing }} {{ 3.14159|round(2) }} {{ [1, 2, 3, 4]|batch(3, 0)|list }}
  {{ '-'.join(['a', 'b']) }}
    {% set ns = namespace(out='', items=[]) %}
    {% for i in range(3) %}{% set ns.out = ns.out ~ i %}
    {% set ns.items = ns.items + [i] %}{% endfor %}
  {{ ns.out }}{{ ns.items }}
  {% set block %}inner {{ message.role }}{% endset %}{{ block|trim }}
  {% filter upper %}shout {{ message.role }}{% endfilter %}
  {% call(x) twice() %}{{ x }}{% endcall %}
{% endfor %}
{{ bos_token }}{{ eos_token }}{{ tools }}{{ documents }}{{ add_generation_prompt }}
{{ unk_token }}""",
    # What Gemma 2's does: no system message, turns that alternate, a role of another name.
    "no system": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('no system message here') }}{% endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('first a user, then by turns') }}
    {%- endif %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<turn>' + role + '\n' + message['content'] | trim + '</turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<turn>model\n' }}{% endif %}""",
    # What gpt-oss's does: channels, macros that call themselves, tools with typed parameters.
    "channels": """{%- macro kind(spec, required, may_be_null=false) -%}
    {%- if spec.type == 'array' -%}
        {{- kind(spec['items'], required) if spec['items'] else 'any' }}[]
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string -%}
        {{- spec.type | join(' | ') }}
    {%- elif spec.enum -%}{{ '"' + spec.enum | join('" | "') + '"' }}
    {%- elif spec.type == 'object' and spec.properties -%}
        {%- for name, own in spec.properties.items() -%}
            {{- name }}{{ '?' if name not in (required or []) }}: {{ kind(own, []) }}
            {{- ', ' if not loop.last }}
        {%- endfor -%}
    {%- else -%}{{ spec.type or 'any' }}{%- endif -%}
    {{- ' | null' if may_be_null }}
{%- endmacro -%}
{%- macro offered(tools) %}
    {%- for tool in tools %}
        {%- set own = tool.function %}
        {{- '// ' + own.description + '\ntype ' + own.name + ' = (' }}
        {{- kind(own.parameters, own.parameters.required, true) if own.parameters }}
        {{- ') => any;\n\n' }}
    {%- endfor %}
{%- endmacro -%}
{%- if reasoning_effort is not defined %}{% set reasoning_effort = 'medium' %}{% endif %}
{{- '<|start|>system<|message|>' }}{{ model_identity if model_identity is defined else 'You' }}
{{- '\nEffort: ' ~ reasoning_effort ~ '\nYear: ' ~ strftime_now('%Y') ~ '<|end|>' }}
{%- if messages[0].role in ('developer', 'system') %}
    {%- set told = messages[0].content %}{% set turns = messages[1:] %}
{%- else %}{% set told = '' %}{% set turns = messages %}{% endif %}
{%- if told or tools %}
    {{- '<|start|>developer<|message|>' ~ told }}{% if tools %}{{ offered(tools) }}{% endif %}
    {{- '<|end|>' }}
{%- endif %}
{%- set last = namespace(call=none) %}
{%- for message in turns -%}
    {%- if message.role == 'assistant' %}
        {%- if '<|channel|>' in (message.content or '') %}
            {{- raise_exception('the content has tags of a channel') }}
        {%- elif 'tool_calls' in message %}
            {%- set call = message.tool_calls[0].function %}{% set last.call = call.name %}
            {{- '<|start|>assistant to=functions.' + call.name }}
            {{- '<|channel|>commentary json<|message|>' ~ call.arguments | tojson ~ '<|call|>' }}
        {%- elif loop.last and not add_generation_prompt %}
            {%- if 'thinking' in message %}
                {{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking }}
            {%- endif %}
            {{- '<|start|>assistant<|channel|>final<|message|>' ~ message.content ~ '<|return|>' }}
        {%- else %}
            {{- '<|start|>assistant<|channel|>final<|message|>' ~ message.content ~ '<|end|>' }}
        {%- endif %}
    {%- elif message.role == 'tool' %}
        {%- if last.call is none %}{{ raise_exception('an answer to no call') }}{% endif %}
        {{- '<|start|>functions.' + last.call + '<|message|>' ~ message.content | tojson }}
    {%- else %}{{ '<|start|>user<|message|>' ~ message.content ~ '<|end|>' }}{% endif %}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}""",
}
TOOLS = [
    {"type": "function", "function": {
        "name": "weather", "description": "The weather.", "parameters": {
            "type": "object", "required": ["city"], "properties": {
                "city": {"type": "string"},
                "days": {"type": "array", "items": {"type": "integer"}},
                "unit": {"enum": ["C", "F"]},
                "more": {"type": ["string", "null"]},
            }}}},
    {"type": "function", "function": {"name": "now", "description": "The time."}},
]  # fmt: skip
CONTENTS = (
    *("hi", "<think>\nhm\n</think>\n\nok", " ü日本 ", "a\nb", "", "<|im_end|>", 'it\'s "q"'),
    *(" {'a': 1} ", [{"type": "text", "text": "one "}, {"type": "text", "text": " two"}], None, 7),
)


def conversation(rng: random.Random) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": rng.choice(CONTENTS[:8])})
    for index in range(rng.randint(1, 6)):
        role = "user" if index % 2 == 0 else "assistant"
        if rng.random() < 0.1:
            role = rng.choice(("tool", "user", "assistant", "system"))
        message: dict[str, Any] = {"role": role, "content": rng.choice(CONTENTS)}
        if rng.random() < 0.15:
            arguments = {"x": 1, "ü": [1, 2.5, {"a": None}], "t": (True, "s")}
            message["tool_calls"] = [{"function": {"name": "f", "arguments": arguments}}]
        if rng.random() < 0.15:
            message[rng.choice(("reasoning", "thinking", "reasoning_content"))] = "because"
        messages.append(message)
    return messages


def compare(source: str, count: int) -> tuple[int, int]:
    """Return how many conversations get transformers' text, and how many are refused by both.

    Raises:
        AssertionError: One gets another text, or is refused by one alone.
    """
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    theirs = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=source, **SPECIAL)
    ours, rng = ChatTemplate(source, SPECIAL), random.Random(1)
    equal = refused = 0
    for _ in range(count):
        messages, prompt = conversation(rng), rng.random() < 0.5
        continued = not prompt and isinstance(messages[-1]["content"], str) and rng.random() < 0.5
        try:
            expected = theirs.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=prompt,
                continue_final_message=continued,
            )
        except Exception:
            with pytest.raises(InputError):
                ours.text(messages, add_generation_prompt=prompt, continue_last=continued)
            refused += 1
        else:
            text = ours.text(messages, add_generation_prompt=prompt, continue_last=continued)
            assert text == expected
            equal += 1
    return equal, refused


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_is_transformers(name: str) -> None:
    source = TEMPLATES[name]
    if name == "everything":
        source += "{# content #}"  # the word that transformers looks for to continue a message
    equal, _ = compare(source, 150)
    assert equal > 40


def test_a_system_message_is_refused_by_one_line() -> None:
    """And nothing else is: the same talk without it has a text."""
    template = ChatTemplate(TEMPLATES["no system"], SPECIAL)
    talk = [{"role": "system", "content": "be kind"}, *HI]
    with pytest.raises(InputError) as error:
        template.text(talk, add_generation_prompt=True)
    assert str(error.value) == (
        "the chat template refuses the conversation: no system message here"
    )
    text = template.text(HI, add_generation_prompt=True)
    assert text == "<s><turn>user\nhi</turn>\n<turn>model\n"


def test_channels_with_tools_are_transformers() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    source = TEMPLATES["channels"]
    backend = Tokenizer(models.BPE())
    theirs = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=source, **SPECIAL)
    ours = ChatTemplate(source, SPECIAL)
    call = {"function": {"name": "weather", "arguments": {"city": "Ulm", "days": [1, 2]}}}
    talk = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": {"rain": True}},
        {"role": "assistant", "thinking": "It rains.", "content": "Yes."},
    ]
    assert ours.takes_tools
    for facts in ({}, {"tools": TOOLS}, {"tools": TOOLS, "reasoning_effort": "high"}):
        for prompt in (False, True):
            expected = theirs.apply_chat_template(
                talk, tokenize=False, add_generation_prompt=prompt, **facts
            )
            found = ours.text(talk, add_generation_prompt=prompt, facts=facts)
            assert found == expected
            assert ("analysis" in found) != prompt, "earlier thoughts are dropped"
            assert ("days?: integer[], unit?: " in found) == bool(facts)


def test_another_text_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "_tojson", lambda value, **_: repr(value))
    with pytest.raises(AssertionError):
        compare(TEMPLATES["thoughts"], 150)


def test_the_date(monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import datetime

    class Fixed(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime(2024, 7, 26)

    monkeypatch.setattr(template_sandbox, "datetime", Fixed)
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", {})
    assert template.text(HI, add_generation_prompt=False) == "26 Jul 2024"


@pytest.mark.parametrize(
    ("files", "settings"),
    [
        ({}, {"chat_template": "{{ messages[0].content }}!"}),
        ({"chat_template.jinja": "{{ messages[0].content }}!"}, {"chat_template": "old"}),
        (
            {},
            {
                "chat_template": [
                    {"name": "tool_use", "template": "x"},
                    {"name": "default", "template": "{{ messages[0].content }}!"},
                ]
            },
        ),
        (
            {
                "chat_template.jinja": "{{ messages[0].content }}!",
                "additional_chat_templates/tool_use.jinja": "x",
            },
            {},
        ),
    ],
)
def test_where_templates_are(files: dict[str, str], settings: Any, tmp_path: Path) -> None:
    folder = tokenizer_folders.write(tmp_path, "llama3", files, **settings)
    ours = load_tokenizer(folder)
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    expected = theirs.apply_chat_template(HI, return_dict=False)
    assert ours.chat(HI, add_generation_prompt=False) == expected
    assert ours.decode(expected) == "hi!"


def test_templates_without_a_default(tmp_path: Path) -> None:
    given = [{"name": "b", "template": "x"}, {"name": "a", "template": "y"}]
    ours = load_tokenizer(tokenizer_folders.write(tmp_path, "llama3", chat_template=given))
    with pytest.raises(InputError) as caught:
        ours.chat(HI, add_generation_prompt=True)
    assert str(caught.value) == "the model has no chat template named 'default', only: a, b"


def test_conversations_that_are_none() -> None:
    template = ChatTemplate(TEMPLATES["turns"], {})
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    for messages, reason in (
        ([], "the conversation is empty: give at least one message"),
        (["hi"], "a message must have a role and content, not be 'hi'"),
        ([{"role": "user", "content": deep}], "the conversation is nested too deeply"),
    ):
        with pytest.raises(InputError) as caught:
            template.text(messages, add_generation_prompt=True)  # type: ignore[arg-type]
        assert str(caught.value) == reason


def test_objects_reach_no_template() -> None:
    class Thing:
        def fire(self) -> None:
            raise AssertionError

    template = ChatTemplate("{{ messages[0].content }}{{ messages[0].content.fire }}", {})
    assert template.text([{"role": "user", "content": Thing()}], add_generation_prompt=True) == (
        "<Thing>"
    )
