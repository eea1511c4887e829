"""The built-in calculator: simpleeval's evaluator over a grammar of numbers, operators and some functions.

No expression takes long: its length is bounded, the size of numbers is bounded before they are computed, and the only
names are a few constants and functions.
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

from reasond_server.errors import show
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
# Python's parser warns about text such as "1if"; only an exponent may follow a digit.
_LETTER_AFTER_DIGIT = re.compile(r"(?<![A-Za-z_0-9.])(?:\d[\d.]*|\.\d+)(?![eE][+-]?\d)[A-Za-z_]")
# Python reads max(1,000, 5) as three numbers. Only a group that begins with 0 shows the mistake.
_SEPARATED = re.compile(r"(?<![\d.])\d{1,3},0\d\d(?!\d)")
_UNSEPARATED = "a comma separates the arguments of a function; write 1000, not 1,000"
_NAMES: Mapping[str, float] = MappingProxyType({"pi": math.pi, "e": math.e, "tau": math.tau})
_NODES = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.Call, ast.Name, ast.Load, ast.operator, ast.unaryop)

Number = int | float


class CalculationError(Exception):
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
        except CalculationError as error:
            raise ToolFailedError(f"{show(arguments.expression)} cannot be worked out: {error}") from None
        return {"expression": arguments.expression, "result": _to_json_number(value)}


def calculate(expression: str) -> Number:
    """Return the value of `expression`.

    Raises:
        CalculationError: it is no expression of the grammar, or has no result within the limits.
    """
    tree = _parse(expression.replace("^", "**").replace("\N{MULTIPLICATION SIGN}", "*").replace("\u2212", "-"))
    try:
        # The text is only for its own error messages, which nobody sees.
        return _require_bounded(_build_evaluator().eval("", previously_parsed=tree.body))
    except CalculationError:
        raise
    except ZeroDivisionError:
        raise CalculationError("division by zero has no result") from None
    except OverflowError:
        raise CalculationError("a number on the way is too large") from None
    except (InvalidExpression, TypeError, ValueError, ArithmeticError, RecursionError):
        raise CalculationError("a function is unknown, or not defined for these arguments") from None


# One for all calls: each one is a cycle of references and changes the warning filters of the process.
@cache
def _build_evaluator() -> SimpleEval:
    return SimpleEval(operators=dict(_OPERATORS), functions=dict(_FUNCTIONS), names=dict(_NAMES))


def _parse(text: str) -> ast.Expression:
    """Return the tree of `text`, which contains only what the grammar allows."""
    if len(text) > 2 * MAX_EXPRESSION_CHARACTERS:
        raise CalculationError(f"it is longer than {MAX_EXPRESSION_CHARACTERS} characters")
    if not _ALLOWED.fullmatch(text):
        raise CalculationError("only digits, names, + - * / % ( ) . and , may stand in it")
    if _LETTER_AFTER_DIGIT.search(text):
        raise CalculationError("a letter stands after a digit; write * between factors")
    if _SEPARATED.search(text):
        raise CalculationError(_UNSEPARATED)
    try:
        tree = ast.parse(" ".join(text.split()), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise CalculationError("it is no arithmetic expression") from None
    for node in _collect_nodes(tree):
        _require_allowed(node)
    return tree


def _require_allowed(node: ast.AST) -> None:
    """Refuse a node that the grammar does not allow."""
    if isinstance(node, ast.Tuple):
        raise CalculationError(_UNSEPARATED)
    if not isinstance(node, _NODES):
        raise CalculationError("only numbers, operators, brackets and functions may stand in it")
    if isinstance(node, ast.Constant):
        if type(node.value) not in {int, float}:
            raise CalculationError("only numbers may stand in it")
        _require_bounded(node.value)
    if isinstance(node, ast.Call) and (node.keywords or not isinstance(node.func, ast.Name)):
        raise CalculationError("functions take plain arguments")
    if isinstance(node, ast.Name) and node.id not in _NAMES and node.id not in _FUNCTIONS:
        raise CalculationError(f"the name {show(node.id)} is not known; functions are {', '.join(sorted(_FUNCTIONS))}")


def _collect_nodes(tree: ast.AST) -> Sequence[ast.AST]:
    """Return all nodes, level by level."""
    nodes, level, depth = [tree], [tree], 1
    while level := [child for node in level for child in ast.iter_child_nodes(node)]:
        nodes += level
        depth += 1
        if len(nodes) > _MAX_NODES or depth > _MAX_DEPTH:
            raise CalculationError("it has too many parts")
    return nodes


def _require_bounded(value: Any) -> Number:  # noqa: ANN401 - whatever an operator gave
    """Return `value` if it is a real number within the size limits."""
    if type(value) is int:
        if value.bit_length() > _MAX_BITS:
            raise CalculationError(f"a number on the way has more than {_MAX_BITS} bits")
        return value
    if type(value) is not float:
        raise CalculationError("the result is no real number")
    if not math.isfinite(value):
        raise CalculationError("a number on the way is too large")
    return value


def _apply_bounded(function: Callable[..., Any], *values: Number) -> Number:
    return _require_bounded(function(*map(_require_bounded, values)))


def _raise_to_power(base: Number, exponent: Number) -> Number:
    """Return `base` to the power of `exponent`; the size of the result is estimated before it is computed."""
    base, exponent = _require_bounded(base), _require_bounded(exponent)
    if isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1:
        if abs(exponent) * base.bit_length() > 2 * _MAX_BITS:
            raise CalculationError(f"the result has more than {_MAX_BITS} bits")
        return _require_bounded(base**exponent)
    return _require_bounded(float(base) ** float(exponent) if isinstance(exponent, float) else base**exponent)


def _compute_factorial(value: Number) -> Number:
    if type(value) is not int or not 0 <= value <= _MAX_FACTORIAL:
        raise CalculationError(f"factorial takes whole numbers from 0 to {_MAX_FACTORIAL}")
    return math.factorial(value)


def _round_number(value: Number, digits: Number = 0) -> Number:
    if type(digits) is not int or abs(digits) > _SIGNIFICANT_DIGITS:
        raise CalculationError(f"round takes a whole number of digits up to {_SIGNIFICANT_DIGITS}")
    return round(value, digits) if digits else round(value)


def _find_extreme(function: Callable[..., Number], *values: Number) -> Number:
    if not values:
        raise CalculationError("min and max take at least one number")
    return function(values)


def _to_json_number(value: Number) -> Number | str:
    """Return `value` in a form that JSON keeps without loss: whole floats as integers, long integers as text."""
    if isinstance(value, float):
        value = float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
        if not value.is_integer() or abs(value) >= _SAFE_INTEGER:
            return value
        value = int(value)
    return value if abs(value) <= _SAFE_INTEGER else str(value)


_OPERATORS: Mapping[type[ast.AST], Callable[..., Number]] = MappingProxyType(
    {
        ast.Add: partial(_apply_bounded, operator.add),
        ast.Sub: partial(_apply_bounded, operator.sub),
        ast.Mult: partial(_apply_bounded, operator.mul),
        ast.Div: partial(_apply_bounded, operator.truediv),
        ast.FloorDiv: partial(_apply_bounded, operator.floordiv),
        ast.Mod: partial(_apply_bounded, operator.mod),
        ast.Pow: _raise_to_power,
        ast.USub: partial(_apply_bounded, operator.neg),
        ast.UAdd: partial(_apply_bounded, operator.pos),
    }
)
_FUNCTIONS: Mapping[str, Callable[..., Number]] = MappingProxyType(
    {
        **{
            name: partial(_apply_bounded, getattr(math, name))
            for name in (
                *("sqrt", "floor", "ceil", "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan"),
                "gcd",
            )
        },
        "abs": partial(_apply_bounded, abs),
        "round": _round_number,
        "min": partial(_find_extreme, min),
        "max": partial(_find_extreme, max),
        "factorial": _compute_factorial,
    }
)
