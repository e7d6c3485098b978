"""The sandbox in which chat templates run: a template is a program that came with a file.

jinja2's sandbox keeps templates from Python's internals, but not from time and memory; this one
counts both (see `template_budget`). Templates see the functions and filters that transformers gives
them, so that they render the same text.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, markup_join, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from suffice.text.template_budget import FILTERS, METHODS, Budget, check_product

_NODE = 16  # units of a node in a loop or macro, for each round
_SMALL = 64  # spaces of an indent, characters of a separator
_DATE = 1000  # characters of a format of dates
# Filters for web pages; some take time that grows with the square of the text
_NO_FILTERS = ("pprint", "striptags", "urlize", "wordwrap")
# Filters that look at no element, or at one by one as they are asked for
_AT_ONCE = {
    *("attr", "count", "d", "default", "first", "items", "last", "length", "map"),
    *("reject", "rejectattr", "safe", "select", "selectattr"),
}
_SCOPES = ("_loop_vars", "_block_vars")  # arguments that jinja2 itself adds to a call
_COMPARING = {
    *("!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt"),
    *("in", "le", "lessthan", "lt", "ne"),
}


class Sandbox(ImmutableSandboxedEnvironment):
    """jinja2's sandbox with the functions that chat templates expect, and a `budget`."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants would be computed outside the budget
            extensions=[_Generation, LoopControlExtension],
        )
        self.budget = Budget(0)
        del self.globals["lipsum"]
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": _Dict(),
            "namespace": _Namespace,
        }
        filters: dict[str, Any] = {**self.filters, "tojson": _tojson, "sum": _hook(self._sum)}
        self.filters = {
            name: self._counted(run, name, whole=name not in _AT_ONCE)
            for name, run in filters.items()
            if name not in _NO_FILTERS
        }
        tests: dict[str, Any] = self.tests
        self.tests = {
            name: self._counted(run, whole=name in _COMPARING) for name, run in tests.items()
        }
        # What _Counting puts into programs. Templates cannot name these.
        self.filters |= {
            "(joined)": _hook(self._joined),
            "(made)": _hook(lambda _, value: self.budget.made(value)),
            "(seen)": _hook(lambda _, value: self.budget.seen(value)),
            "(shown)": _hook(self._shown),
            "(step)": _hook(self._step),
        }

    def program(self, source: str) -> Any:
        """Compile a template; what is raised for a source that is none is of many kinds."""
        return self.from_string(_Counting().visit(self.parse(source)))

    def call(self, context: Context, called: Any, /, *args: Any, **named: Any) -> Any:
        """Call a function, a method or a macro, within the budget."""
        self.budget.step()
        if not isinstance(called, Macro | BlockReference | LoopContext):
            for name, each in (*enumerate(args), *named.items()):
                if name not in _SCOPES:
                    self.budget.seen(each)
            method = getattr(called, "__wrapped__", called)
            owner = getattr(method, "__self__", None)
            estimate = METHODS.get(getattr(method, "__name__", ""))
            if estimate is not None and isinstance(owner, str | bytes | int):
                args = estimate(self.budget, (owner, *args), named)[1:]
        return self.budget.made(super().call(context, called, *args, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Calculate, within the budget."""
        check_product(self.budget, operator, left, right)
        return self.budget.made(super().call_binop(context, operator, left, right))

    def _counted(
        self, run: Callable[..., Any], name: str = "", *, whole: bool
    ) -> Callable[..., Any]:
        """Return a filter or test that counts; `whole` tells whether it looks at whole values."""
        first = 1 if hasattr(run, "jinja_pass_arg") else 0
        estimate = FILTERS.get(name)

        @functools.wraps(run)
        def counted(*args: Any, **named: Any) -> Any:
            self.budget.step()
            if whole:
                for each in (*args[first:], *named.values()):
                    self.budget.seen(each)
            if estimate is not None:
                args = (*args[:first], *estimate(self.budget, args[first:], named))
            return self.budget.made(run(*args, **named))

        return counted

    def _joined(self, context: Context, parts: list[Any]) -> Any:
        """Return the texts of values, one after another."""
        self.budget.seen(parts)
        return self.budget.made((markup_join if context.eval_ctx.autoescape else str_join)(parts))

    def _shown(self, _: Context, value: Any) -> Any:
        """Return what is shown of a value."""
        self.budget.seen(value)
        return self.budget.made(value if isinstance(value, str) else str(value))

    def _step(self, _: Context, value: Any, cost: int) -> Any:
        self.budget.step(cost)
        return value

    def _sum(
        self,
        context: Context,
        iterable: Iterable[Any],
        attribute: str | int | None = None,
        start: Any = 0,
    ) -> Any:
        """Return the sum of values, or of an attribute of them."""
        if attribute is not None:
            iterable = self.filters["map"](context, iterable, attribute=attribute)
        for each in iterable:
            start = self.call_binop(context, "+", start, each)
        return start


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; it is shown as it is."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own annotation)

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the block as a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Dict:
    """`dict` of templates."""

    def __call__(self, *args: Any, **named: Any) -> dict[Any, Any]:
        """Return a dictionary."""
        return dict(*args, **named)

    def fromkeys(self, *args: Any, **named: Any) -> dict[Any, Any]:
        """Return a dictionary of keys with the same value."""
        return dict.fromkeys(*args, **named)


class _Namespace(Namespace):
    """`namespace` of templates: variables that loops may set."""

    def __init__(*args: Any, **named: Any) -> None:  # `self` may be a variable
        self, *given = args
        variables = dict(*given, **named)
        for name, value in variables.items():
            _check_variable(name, value)
        Namespace.__init__(self, variables)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_variable(name, value)
        Namespace.__setitem__(self, name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


class _Counting(NodeTransformer):
    """Puts the counting into a program where jinja2 has no hook for it.

    These are lists and the like, slices, `~`, comparisons, shown values, and the rounds of loops
    and macros. A round costs what its body has in nodes and in literal text.
    """

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802 (jinja2's names)
        self.generic_visit(node)
        node.nodes = [
            each if isinstance(each, nodes.TemplateData) else _filtered(each, "(shown)")
            for each in node.nodes
        ]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "(joined)")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filtered(node.expr, "(seen)")
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, "(seen)")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "(made)") if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.Expr) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "(made)")

    visit_Dict = visit_List  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "(made)") if node.ctx == "load" else node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        if node.test is not None:
            node.test = _filtered(node.test, "(step)", _cost([node.test]))
        return self.visit_Macro(node)

    def visit_Macro(self, node: Any) -> nodes.Node:  # noqa: N802
        cost = _cost(node.body)
        self.generic_visit(node)
        nothing = nodes.Const(None, lineno=node.lineno)
        step = nodes.ExprStmt(_filtered(nothing, "(step)", cost), lineno=node.lineno)
        node.body = [step, *node.body]
        return node  # type: ignore[no-any-return]

    visit_CallBlock = visit_Macro  # noqa: N815
    visit_Block = visit_Macro  # noqa: N815


def _hook(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that runs with the template, never when it is compiled."""
    return pass_context(lambda *args, **named: run(*args, **named))


def _filtered(node: Any, name: str, *args: int) -> nodes.Filter:
    given = [nodes.Const(each, lineno=node.lineno) for each in args]
    return nodes.Filter(node, name, given, [], None, None, lineno=node.lineno)


def _cost(body: list[Any]) -> int:
    """Return the units of one round of a body: its nodes and its literal text."""
    found = [each for part in body for each in (part, *part.find_all(nodes.Node))]
    texts = [each.data for each in found if isinstance(each, nodes.TemplateData)]
    return _NODE * len(found) + sum(map(len, texts))


def _check_variable(name: object, value: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have the variable {name!r}")
    if isinstance(value, Namespace):
        raise SecurityError("it puts a namespace into a namespace")


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(format: str) -> str:
    if len(format) > _DATE:
        raise SecurityError("it formats the date with too long a text")
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    widths = [indent if isinstance(indent, int) else len(indent or "")]
    widths += [len(each) for each in separators or ()]
    if max(widths) > _SMALL:
        raise SecurityError("it indents JSON too widely")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
