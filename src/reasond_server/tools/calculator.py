"""The built-in calculator: simpleeval's evaluator over a grammar of numbers, operators and some functions.

Nothing that can be written in it takes long: the expression is short, numbers are bounded in size before they are
computed, and there are no names but a few constants and functions.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from pydantic import Field
from simpleeval import InvalidExpression, SimpleEval  # type: ignore[import-untyped]  # it has no types

from reasond_server.errors import shown
from reasond_server.tools.tool import ModelledTool, ToolArguments, ToolContext, ToolFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MAX_EXPRESSION_CHARACTERS: Final = 500
_MAX_NODES = 300
_MAX_DEPTH = 60
_MAX_BITS = 4_096
_MAX_FACTORIAL = 170
_SAFE_INTEGER = 2**53
_SIGNIFICANT_DIGITS = 15
_ALLOWED = re.compile(r"[0-9A-Za-z_.,+\-*/%()\s]*")
# "1if" and its like make Python's own parser warn; only an exponent may follow a digit.
_LETTER_AFTER_DIGIT = re.compile(r"(?<![A-Za-z_0-9.])(?:\d[\d.]*|\.\d+)(?![eE][+-]?\d)[A-Za-z_]")
# In max(1,000, 5) Python sees three numbers; where the group does not begin with 0, nobody can tell.
_SEPARATED = re.compile(r"(?<![\d.])\d{1,3},0\d\d(?!\d)")
_UNSEPARATED = "a comma separates the arguments of a function; write 1000, not 1,000"
_NAMES: Mapping[str, float] = MappingProxyType({"pi": math.pi, "e": math.e, "tau": math.tau})
_NODES = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.Call, ast.Name, ast.Load, ast.operator, ast.unaryop)

Number = int | float


class Uncalculable(Exception):  # noqa: N818 - says of an expression what it is
    """The expression has no result; the text says why."""


class CalculatorArguments(ToolArguments):
    """What to work out."""

    expression: Annotated[
        str,
        Field(
            min_length=1,
            max_length=MAX_EXPRESSION_CHARACTERS,
            description="An arithmetic expression: + - * / // % (remainder) ** ( ), pi, e, tau, and sqrt, abs, round, "
            "min, max, floor, ceil, exp, log, log2, log10, sin, cos, tan, asin, acos, atan, factorial, gcd. "
            "12.5 percent of 640 is 12.5 / 100 * 640.",
        ),
    ]


class Calculator(ModelledTool[CalculatorArguments]):
    """Works out an arithmetic expression; numbers are those of Python, floats rounded to 15 digits."""

    name: ClassVar[str] = "calculator"
    description: ClassVar[str] = "Works out an arithmetic expression exactly as written. Use it for every calculation."
    arguments_type: ClassVar[type[ToolArguments]] = CalculatorArguments
    is_idempotent = True

    async def call(self, arguments: CalculatorArguments, context: ToolContext) -> object:  # noqa: ARG002 - the form
        """Return the expression and its result, a number; whole ones beyond 2^53 as text.

        Raises:
            ToolFailedError: the expression is none, or has no result within the limits.
        """
        try:
            value = calculate(arguments.expression)
        except Uncalculable as error:
            raise ToolFailedError(f"{shown(arguments.expression)} cannot be worked out: {error}") from None
        return {"expression": arguments.expression, "result": _shown(value)}


def calculate(expression: str) -> Number:
    """Return the value of `expression`.

    Raises:
        Uncalculable: it is no expression of the grammar, or has no result within the limits.
    """
    tree = _parsed(expression.replace("^", "**").replace("\N{MULTIPLICATION SIGN}", "*").replace("\u2212", "-"))
    try:
        # It keeps the text that it is given, for words of its own that nobody is shown.
        return _bounded(_evaluator().eval("", previously_parsed=tree.body))
    except Uncalculable:
        raise
    except ZeroDivisionError:
        raise Uncalculable("division by zero has no result") from None
    except OverflowError:
        raise Uncalculable("a number on the way is too large") from None
    except (InvalidExpression, TypeError, ValueError, ArithmeticError, RecursionError):
        raise Uncalculable("a function is unknown, or not defined for these arguments") from None


# Made for every call, each would be a cycle of references, and change the filters of warnings of the process.
@cache
def _evaluator() -> SimpleEval:
    return SimpleEval(operators=dict(_OPERATORS), functions=dict(_FUNCTIONS), names=dict(_NAMES))


def _parsed(text: str) -> ast.Expression:
    """Return the tree of `text`, which has nothing in it but what the grammar allows."""
    if len(text) > 2 * MAX_EXPRESSION_CHARACTERS:
        raise Uncalculable(f"it is longer than {MAX_EXPRESSION_CHARACTERS} characters")
    if not _ALLOWED.fullmatch(text):
        raise Uncalculable("only digits, names, + - * / % ( ) . and , may stand in it")
    if _LETTER_AFTER_DIGIT.search(text):
        raise Uncalculable("a letter stands after a digit; write * between factors")
    if _SEPARATED.search(text):
        raise Uncalculable(_UNSEPARATED)
    try:
        tree = ast.parse(" ".join(text.split()), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise Uncalculable("it is no arithmetic expression") from None
    for node in _nodes(tree):
        _require(node)
    return tree


def _require(node: ast.AST) -> None:
    """Refuse what is not of the grammar."""
    if isinstance(node, ast.Tuple):
        raise Uncalculable(_UNSEPARATED)
    if not isinstance(node, _NODES):
        raise Uncalculable("only numbers, operators, brackets and functions may stand in it")
    if isinstance(node, ast.Constant):
        if type(node.value) not in {int, float}:
            raise Uncalculable("only numbers may stand in it")
        _bounded(node.value)
    if isinstance(node, ast.Call) and (node.keywords or not isinstance(node.func, ast.Name)):
        raise Uncalculable("functions take plain arguments")
    if isinstance(node, ast.Name) and node.id not in _NAMES and node.id not in _FUNCTIONS:
        raise Uncalculable(f"the name {shown(node.id)} is not known; functions are {', '.join(sorted(_FUNCTIONS))}")


def _nodes(tree: ast.AST) -> Sequence[ast.AST]:
    """Return all nodes, level by level."""
    nodes, level, depth = [tree], [tree], 1
    while level := [child for node in level for child in ast.iter_child_nodes(node)]:
        nodes += level
        depth += 1
        if len(nodes) > _MAX_NODES or depth > _MAX_DEPTH:
            raise Uncalculable("it has too many parts")
    return nodes


def _bounded(value: Any) -> Number:  # noqa: ANN401 - whatever an operator gave
    """Return `value` if it is a real number of bearable size."""
    if type(value) is int:
        if value.bit_length() > _MAX_BITS:
            raise Uncalculable(f"a number on the way has more than {_MAX_BITS} bits")
        return value
    if type(value) is not float:
        raise Uncalculable("the result is no real number")
    if not math.isfinite(value):
        raise Uncalculable("a number on the way is too large")
    return value


def _checked(function: Callable[..., Any], *values: Number) -> Number:
    return _bounded(function(*map(_bounded, values)))


def _power(base: Number, exponent: Number) -> Number:
    """Return `base` to the power of `exponent`; how large the result is, is estimated before it is computed."""
    base, exponent = _bounded(base), _bounded(exponent)
    if isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1:
        if abs(exponent) * base.bit_length() > 2 * _MAX_BITS:
            raise Uncalculable(f"the result has more than {_MAX_BITS} bits")
        return _bounded(base**exponent)
    return _bounded(float(base) ** float(exponent)) if isinstance(exponent, float) else _bounded(base**exponent)


def _factorial(value: Number) -> Number:
    if type(value) is not int or not 0 <= value <= _MAX_FACTORIAL:
        raise Uncalculable(f"factorial takes whole numbers from 0 to {_MAX_FACTORIAL}")
    return math.factorial(value)


def _round(value: Number, digits: Number = 0) -> Number:
    if type(digits) is not int or abs(digits) > _SIGNIFICANT_DIGITS:
        raise Uncalculable(f"round takes a whole number of digits up to {_SIGNIFICANT_DIGITS}")
    return round(value, digits) if digits else round(value)


def _extreme(function: Callable[..., Number], *values: Number) -> Number:
    if not values:
        raise Uncalculable("min and max take at least one number")
    return function(values)


def _shown(value: Number) -> Number | str:
    """Return `value` as JSON carries it without loss: floats that are whole as such, long integers as text."""
    if isinstance(value, float):
        value = float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
        if not value.is_integer() or abs(value) >= _SAFE_INTEGER:
            return value
        value = int(value)
    return value if abs(value) <= _SAFE_INTEGER else str(value)


_OPERATORS: Mapping[type[ast.AST], Callable[..., Number]] = MappingProxyType(
    {
        ast.Add: partial(_checked, operator.add),
        ast.Sub: partial(_checked, operator.sub),
        ast.Mult: partial(_checked, operator.mul),
        ast.Div: partial(_checked, operator.truediv),
        ast.FloorDiv: partial(_checked, operator.floordiv),
        ast.Mod: partial(_checked, operator.mod),
        ast.Pow: _power,
        ast.USub: partial(_checked, operator.neg),
        ast.UAdd: partial(_checked, operator.pos),
    }
)
_FUNCTIONS: Mapping[str, Callable[..., Number]] = MappingProxyType(
    {
        **{
            name: partial(_checked, getattr(math, name))
            for name in (
                *("sqrt", "floor", "ceil", "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan"),
                "gcd",
            )
        },
        "abs": partial(_checked, abs),
        "round": _round,
        "min": partial(_extreme, min),
        "max": partial(_extreme, max),
        "factorial": _factorial,
    }
)
