"""The built-in calculator: simpleeval's evaluator over a grammar of numbers, operators and some functions.

The time of an evaluation is bounded: the length of an expression is limited, the size of each number is checked before
it is computed, and only a few constants and functions can be named.
"""

from __future__ import annotations

import ast
import math
import operator
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field
from simpleeval import InvalidExpression, SimpleEval  # type: ignore[import-untyped]  # it has no types

from reasond_server.errors.base import show
from reasond_server.tools.expressions import (
    MAX_EXPRESSION_CHARACTERS,
    CalculationError,
    ExpressionError,
    normalize_expression,
    parse_expression,
)
from reasond_server.tools.tool import (
    ArgumentsRefusedError,
    ModelledTool,
    ToolArguments,
    ToolContext,
    ToolFailedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MAX_BITS = 4_096
_MAX_FACTORIAL = 170
_SAFE_INTEGER = 2**53
_SIGNIFICANT_DIGITS = 15
_NAMES: Mapping[str, float] = MappingProxyType({"pi": math.pi, "e": math.e, "tau": math.tau})

Number = int | float


class CalculatorArguments(ToolArguments):
    """Arguments of the calculator."""

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
    """Evaluates an arithmetic expression with the numbers of Python; floats are rounded to 15 digits."""

    name: ClassVar[str] = "calculator"
    description: ClassVar[str] = "Works out an arithmetic expression exactly as written. Use it for every calculation."
    arguments_type: ClassVar[type[ToolArguments]] = CalculatorArguments
    is_idempotent = True

    async def call(self, arguments: CalculatorArguments, context: ToolContext) -> object:  # noqa: ARG002 - the form
        """Return the expression and its result: a number, or text for an integer beyond 2^53.

        `read_as` is added if the expression was rewritten to fit the grammar.

        Raises:
            ArgumentsRefusedError: the grammar does not allow the expression.
            ToolFailedError: the expression has no result within the limits.
        """
        try:
            text = normalize_expression(arguments.expression)
            value = calculate(text)
        except CalculationError as error:
            kind = ArgumentsRefusedError if isinstance(error, ExpressionError) else ToolFailedError
            raise kind(f"{show(arguments.expression)} cannot be worked out: {error}") from None
        answer = {"expression": arguments.expression, "result": _to_json_number(value)}
        return answer if text == " ".join(arguments.expression.split()) else answer | {"read_as": text}


def calculate(text: str) -> Number:
    """Return the value of `text`, an expression as `normalize_expression` returns it.

    Raises:
        ExpressionError: the grammar does not allow `text`.
        CalculationError: the expression has no result within the limits.
    """
    tree = parse_expression(text, names=_NAMES, functions=_FUNCTIONS)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            _require_bounded(node.value)
    try:
        # simpleeval uses the text only in its error messages, which are never shown.
        return _require_bounded(_build_evaluator().eval("", previously_parsed=tree.body))
    except CalculationError:
        raise
    except ZeroDivisionError:
        raise CalculationError("division by zero has no result") from None
    except OverflowError:
        raise CalculationError("a number on the way is too large") from None
    except (InvalidExpression, TypeError, ValueError, ArithmeticError, RecursionError):
        raise CalculationError("a function is unknown, or not defined for these arguments") from None


# All calls share one evaluator: each evaluator is a reference cycle and changes the warning filters of the process.
@cache
def _build_evaluator() -> SimpleEval:
    return SimpleEval(operators=dict(_OPERATORS), functions=dict(_FUNCTIONS), names=dict(_NAMES))


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
    """Return `value` so that JSON keeps it without loss: a whole float as an integer, a long integer as text."""
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
