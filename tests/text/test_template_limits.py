"""What a hostile chat template can do: nothing that takes long or much memory."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest

from suffice.errors import InputError
from suffice.text import template_budget
from suffice.text.chat_template import ChatTemplate

HI = [{"role": "user", "content": "hi"}]
LARGE = "it makes too large a value"
LONG = "it takes too long"
WIDE = "it pads a text too widely"


def text(source: str) -> str:
    return ChatTemplate(source, {}).text(HI, add_generation_prompt=True)


def reason(source: str) -> str:
    with pytest.raises(InputError) as caught:
        text(source)
    line = str(caught.value)
    assert "\n" not in line and len(line) < 400
    return line


@pytest.fixture(autouse=True)
def small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spend a budget in milliseconds; the processor's time plays no part."""
    monkeypatch.setattr(template_budget, "_WORK", 1 << 23)
    monkeypatch.setattr(template_budget, "_SECONDS", 1e9)


def doubling(start: str, step: str) -> str:
    """Return a template in which each of 40 variables holds the one before twice."""
    steps = (
        step.replace("NEW", f"x{index + 1}").replace("OLD", f"x{index}") for index in range(40)
    )
    return "{% set x0 = " + start + " %}" + "".join(steps) + "{{ x40 }}"


GROWTH = {
    "times": ("{{ 'a' * 10**9 }}", LARGE),
    "times-left": ("{% set x = 10**9 * 'a' %}", LARGE),
    "times-list": ("{% set x = [0] * 10**9 %}", LARGE),
    "power": ("{{ 9 ** (9 ** 9) }}", "it makes too large a number"),
    "concatenated": (doubling("'aaaaaaaa'", "{% set NEW = OLD ~ OLD %}"), LARGE),
    "added": (doubling("'aaaaaaaa'", "{% set NEW = OLD + OLD %}"), LARGE),
    "shown": (doubling("'aaaaaaaa'", "{% set NEW %}{{ OLD }}{{ OLD }}{% endset %}"), LARGE),
    "lists": (doubling("[1]", "{% set NEW = [OLD, OLD] %}"), LARGE),
    "tuples": (doubling("(1,)", "{% set NEW = (OLD, OLD) %}"), LARGE),
    "dicts": (doubling("[1]", "{% set NEW = {'a': OLD, 'b': OLD} %}"), LARGE),
    "calls": (doubling("[1]", "{% set NEW = dict(a=OLD, b=OLD) %}"), LARGE),
    "namespaces": (
        doubling("namespace(a=1)", "{% set NEW = namespace(a=OLD, b=OLD) %}"),
        "it puts a namespace into a namespace",
    ),
    "cycle": (
        "{% set ns = namespace(a=1) %}{% set ns.a = [ns] %}{{ ns.a }}",
        "it puts a namespace into a value",
    ),
    "nested": (
        "{% set ns = namespace(a=1) %}{% for i in range(999) %}{% set ns.a = [ns.a] %}{% endfor %}",
        "it nests values too deeply",
    ),
    "center": ("{{ 'a'|center(10**9) }}", WIDE),
    "center-method": ("{{ 'a'.center(10**9) }}", WIDE),
    "zfill": ("{{ 'a'.zfill(10**9) }}", WIDE),
    "batch": ("{{ [1]|batch(10**9, 0)|list }}", WIDE),
    "slice": ("{{ [1]|slice(10**9)|list }}", WIDE),
    "map": ("{{ range(99999)|map('string')|map('center', 60000)|list }}", LONG),
    "indent": ("{{ 'a\nb'|indent(10**9) }}", LARGE),
    "expandtabs": ("{{ ('\t' * 1000).expandtabs(10**7) }}", LARGE),
    "replace": ("{% set x = 'a' * 10**6 %}{{ x|replace('a', x) }}", LARGE),
    "replace-method": ("{% set x = 'a' * 10**6 %}{{ x.replace('a', x) }}", LARGE),
    "replace-nothing": ("{% set x = 'a' * 10**6 %}{{ x.replace('', x) }}", LARGE),
    "join": ("{% set x = 'a' * 10**6 %}{{ range(99)|join(x) }}", LARGE),
    "join-method": ("{% set x = 'a' * 10**6 %}{{ x.join('abcdefghi') }}", LARGE),
    "json": ("{{ [1, [2]]|tojson(indent=10**9) }}", "it indents JSON too widely"),
    "percent": ("{{ '%999999999d' % 1 }}", LARGE),
    "percent-point": ("{{ '%.999999999f' % 1.5 }}", LARGE),
    "percent-star": ("{{ '%*d' % (999999999, 1) }}", "it takes the width of a text from a value"),
    "percent-filter": ("{{ '%999999999d'|format(1) }}", LARGE),
    "percent-names": ("{{ ('%(a)s' * 800) % {'a': 'x' * 3000000} }}", LARGE),
    "format": ("{{ '{:999999999}'.format(1) }}", LARGE),
    "format-map": ("{{ '{a:>99999999}'.format_map({'a': 1}) }}", LARGE),
    "format-nested": (
        "{{ '{:{}}'.format(1, 999999999) }}",
        "it takes the width of a text from a value",
    ),
    "round": ("{{ 1.5|round(10**9, 'ceil') }}", "it rounds to too many places"),
    "bytes": ("{{ (1).to_bytes(10**9, 'big') }}", "it uses a method that is not supported here"),
    "date": ("{{ strftime_now('%Y' * 100000) }}", "it formats the date with too long a text"),
    "keys": ("{{ dict.fromkeys(range(99999), 'x' * 10**6)|length }}", LARGE),
    "views": ("{% set d = dict(a='x' * 10**5) %}{{ [d.values()] * 1000 }}", LARGE),
    "output": ("{% for i in range(999) %}{{ 'a' * 40000 }}{% endfor %}", LARGE),
    "macro": (
        "{% macro m() %}{% for i in range(99999) %}"
        + "x" * 10**5
        + "{% endfor %}{% endmacro %}{% set a = m() %}",
        LONG,
    ),
}
TIME = {
    "slices": "{% set b = range(40000)|list %}"
    + "".join(f"{{% set a{index} = b[1:] %}}" for index in range(200)),
    "rounds": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "tests": "{% for i in range(99999) %}"
    "{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{% set a = m(n - 1) %}{% set a = m(n - 1) %}{% endif %}"
    "{% endmacro %}{{ m(60) }}",
    "appended": "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}"
    "{% set ns.x = ns.x + [i] %}{% endfor %}",
    "sum": "{{ range(99999)|batch(1)|sum(start=[])|length }}",
    "sorted": "{% set l = ['a' * 1000] * 999 %}{% for i in range(9999) %}{% set z = l|sort %}"
    "{% endfor %}",
    "compared": "{% set x = 'a' * 3000000 %}{% set y = 'a' * 3000000 %}{% for i in range(99999) %}"
    "{% if x == y %}{% endif %}{% endfor %}",
    "searched": "{% set x = range(60000)|list %}"
    "{% for i in range(99999) %}{% if 'b' in x %}{% endif %}"
    "{% endfor %}",
    "asked": "{% set x = range(60000)|list %}"
    "{% for i in range(99999) %}{% if x is eq x %}{% endif %}"
    "{% endfor %}",
}
FAILS = {
    "range": ("{% for i in range(10**9) %}{% endfor %}", "OverflowError: Range too big"),
    "macro": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    "block": ("{% block b %}{{ self.b() }}{% endblock %}", "RecursionError"),
    "loop": ("{% for x in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}", "RecursionError"),
    "parentheses": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "RecursionError"),
    "ifs": ("{% if 1 %}" * 3000 + "{% endif %}" * 3000, "RecursionError"),
    "fors": ("{% for i in [1] %}" * 60 + "{% endfor %}" * 60, "SyntaxError"),
    "sum": ("{{ 1" + "+1" * 50000 + " }}", "RecursionError"),
    "number": ("{{ " + "9" * 9999 + " }}", "ValueError"),
    "zero": ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
    "types": ("{{ 1 + 'a' }}", "TypeError: unsupported operand"),
    "import": ("{% import 'os' as os %}", "TypeError: no loader"),
    "syntax": ("{% for %}", "refuses the conversation: Expected an expression"),
    "index": ("{{ messages[5].x }}", "list object has no element 5"),
    "internals": ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__'"),
    "change": ("{{ messages.append(1) }}", "access to attribute 'append'"),
    "underscore": ("{{ namespace(_x=1) }}", "a namespace cannot have the variable '_x'"),
    "filter": ("{{ 'x'|urlize }}", "No filter named 'urlize'"),
    "lipsum": ("{{ lipsum() }}", "'lipsum' is undefined"),
    "raised": ("{{ raise_exception('a\n b' * 999) }}", "refuses the conversation: a ba b"),
    "long": ("x" * (1 << 19), "has 524288 characters; at most 262144 are allowed"),
}


@pytest.mark.parametrize("name", GROWTH)
def test_values_do_not_grow(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "_WORK", 1 << 27)
    source, expected = GROWTH[name]
    assert reason(source) == f"the chat template refuses the conversation: {expected}"


@pytest.mark.parametrize("name", TIME)
def test_work_ends(name: str) -> None:
    assert reason(TIME[name]) == f"the chat template refuses the conversation: {LONG}"


@pytest.mark.parametrize("name", FAILS)
def test_failures_are_one_line(name: str) -> None:
    source, expected = FAILS[name]
    assert expected in reason(source)


def test_work_ends_at_the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget, not the clock, ends a template."""
    monkeypatch.setattr(template_budget, "_WORK", 1 << 20)
    source = "{% for i in range(COUNT) %}{% set x = 'a' ~ i %}{% endfor %}done"

    def ends(count: int) -> bool:
        try:
            return text(source.replace("COUNT", str(count))) != "done"
        except InputError:
            return True

    low, high = 0, 99999
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if ends(middle) else (middle, high)
    assert 10 < high < 99999
    assert all(ends(high) and not ends(low) for _ in range(3))


def test_the_clock_ends_what_the_budget_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: Iterator[float] = itertools.count(step=0.001)
    monkeypatch.setattr(time, "thread_time", lambda: next(ticks))
    monkeypatch.setattr(template_budget, "_WORK", 1 << 60)
    monkeypatch.setattr(template_budget, "_SECONDS", 5.0)
    assert LONG in reason(TIME["rounds"])


def test_estimates_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an estimate, the text is made before its size is seen."""
    source = "{{ 'a'.center(10**6)|length }}"
    assert WIDE in reason(source)
    monkeypatch.setattr("suffice.text.template_sandbox.METHODS", {})
    assert text(source) == "1000000"


def test_long_conversations_have_room() -> None:
    """The budget grows with the input; a template that copies all messages for each has enough."""
    messages = [{"role": "user", "content": "word " * 400} for _ in range(400)]
    source = (
        "{% set ns = namespace(seen=[]) %}{% for m in messages %}{% set ns.seen = ns.seen + [m] %}"
        "{{ m.role ~ ': ' ~ m.content|trim ~ '\n' }}{% endfor %}{{ ns.seen|length }}"
    )
    shown = ChatTemplate(source, {}).text(messages, add_generation_prompt=False)
    assert shown.endswith("\n400") and len(shown) > 400 * 2000
