"""The built-in calculator: simpleeval's evaluator over a grammar of numbers, operators and some functions.

The time of an evaluation is bounded: the length of an expression is limited, the size of each number is checked before
it is computed, and only a few constants and functions can be named.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field
from simpleeval import InvalidExpression, SimpleEval  # type: ignore[import-untyped]  # it has no types

from reasond_server.base.syntax import parse_expression_tree
from reasond_server.errors.base import show
from reasond_server.tools.tool import ArgumentsRefusedError, ModelledTool, ToolArguments, ToolContext, ToolFailedError

MAX_EXPRESSION_CHARACTERS: Final = 500
_MAX_NODES = 300
_MAX_DEPTH = 60
_SIGNS = str.maketrans(
    {
        "^": "**",
        **dict.fromkeys("\u00d7\u00b7\u22c5\u2219\u2715\u2716", "*"),
        **dict.fromkeys("\u00f7\u2044\u2215", "/"),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-"),
        # A space keeps the digits on both sides apart.
        **dict.fromkeys("$\u00a3\u20ac\u00a5", " "),
    }
)
_ALLOWED = re.compile(r"[0-9A-Za-z_.,+\-*/%()\s]*")
_EQUALS_AT_END = re.compile(r"\s*=[\s?]*$")
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
# 80,000 and 1,234,567, and the Indian form 1,00,000.
_GROUPED = re.compile(r"(?<![\w.,])(?:\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d{2})+,\d{3})(?![\d,])")
# In the arguments of a function, 1,000 may be two numbers. Only a group that begins with 0 is surely a separator.
_GROUPED_ARGUMENT = re.compile(r"(?<![\d.])\d{1,3},0\d\d(?!\d)")
# 3 x 4 and 3x4 are products; 0x1f is a hexadecimal number, and 3x - 4 is algebra.
_TIMES = re.compile(r"(?<=[\w.)%])\s+[xX]\s+(?=[\w.(])|(?<=[\d.)%])(?<!(?<![\d.])0)\s*[xX]\s*(?=[\d.(])")
# A percentage is followed by the end, a bracket, a comma, a factor or "of"; a % before a number is the remainder.
_PERCENTAGE = re.compile(rf"(?<![\w.])({_NUMBER})\s*%(?:\s*of\b|(?=\s*(?:$|[)*/,])))")
_PERCENT_OF = re.compile(r"%\s*of$")
_SUM_WITH_PERCENTAGE = re.compile(rf"%\s*[+-]|(?<=[\w.)])\s*[+-]\s*{_NUMBER}\s*%\s*(?:$|[)*/,+-]|of\b)")
# Python's parser warns about text such as "1if", so the only letter after a digit may be that of an exponent.
_LETTER_AFTER_DIGIT = re.compile(r"(?<![A-Za-z_0-9.])(?:\d[\d.]*|\.\d+)(?![eE][+-]?\d)[A-Za-z_]")
_COMMA = "a comma separates the arguments of a function; write 1000, not 1,000, and 3.5, not 3,5"
_FACTORS = "write * between factors, and numbers without units"
_NODES = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.Call, ast.Name, ast.Load, ast.operator, ast.unaryop)


class CalculationError(Exception):
    """The expression has no result; the text says why."""


class ExpressionError(CalculationError):
    """The grammar does not allow the text; the error says what to write instead."""


def normalize_expression(text: str) -> str:
    """Return `text` with the operators of Python, without currency signs and thousands separators.

    Raises:
        ExpressionError: `text` is too long, has an unknown sign, or could mean two things.
    """
    if len(text) > MAX_EXPRESSION_CHARACTERS:
        raise ExpressionError(f"it is longer than {MAX_EXPRESSION_CHARACTERS} characters; work it out in parts")
    plain = _EQUALS_AT_END.sub("", text).translate(_SIGNS)
    if "=" in plain:
        raise ExpressionError("an = stands in it; write only what is to be worked out, without names and results")
    if unknown := _ALLOWED.sub("", plain, count=1):
        raise ExpressionError(
            f"{show(unknown[0])} may not stand in it; write it with digits, + - * / // % ** ( ) and functions; "
            "look other values up before"
        )
    plain = _join_groups(_TIMES.sub(" * ", " ".join(plain.split())))
    if _SUM_WITH_PERCENTAGE.search(plain):
        raise ExpressionError(
            "a percentage beside + or - could mean two things; write 5/100 for 5%, 200 * (1 + 5/100) for 200 and 5% "
            "more, and 17 % (-5) for a remainder"
        )
    return _PERCENTAGE.sub(_divide_by_100, plain)


def parse_expression(text: str, *, names: Collection[str], functions: Collection[str]) -> ast.Expression:
    """Return the syntax tree of `text`, which must come from `normalize_expression`.

    Raises:
        ExpressionError: the grammar does not allow `text`, or it uses a name outside `names` and `functions`.
    """
    if _LETTER_AFTER_DIGIT.search(text):
        raise ExpressionError(f"a letter stands after a digit; {_FACTORS}")
    if _GROUPED_ARGUMENT.search(text):
        raise ExpressionError(_COMMA)
    try:
        tree = parse_expression_tree(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ExpressionError(f"it is no arithmetic expression; write it like (3 + 4.5) * 2, {_FACTORS}") from None
    for node in _collect_nodes(tree):
        _require_allowed(node, names=names, functions=functions)
    return tree


def _join_groups(text: str) -> str:
    """Return `text` without thousands separators; the commas between the arguments of a function stay."""
    if "," not in text:
        return text
    opened: list[bool] = []
    is_argument = []
    for at, sign in enumerate(text):
        if sign == "(":
            opened.append(text[:at].rstrip()[-1:].isalnum())
        elif sign == ")" and opened:
            opened.pop()
        is_argument.append(bool(opened) and opened[-1])
    return _GROUPED.sub(lambda found: found[0] if is_argument[found.start()] else found[0].replace(",", ""), text)


def _divide_by_100(percentage: re.Match[str]) -> str:
    """Return a percentage as a fraction in brackets, so that 50 / 20% divides by the whole fraction."""
    return f"({percentage[1]} / 100)" + (" *" if _PERCENT_OF.search(percentage[0]) else "")


def _require_allowed(node: ast.AST, *, names: Collection[str], functions: Collection[str]) -> None:
    """Refuse a node that the grammar does not allow."""
    if isinstance(node, ast.Tuple):
        raise ExpressionError(_COMMA)
    if not isinstance(node, _NODES):
        raise ExpressionError("only numbers, operators, brackets and functions may stand in it; write * between them")
    if isinstance(node, ast.Constant) and type(node.value) not in {int, float}:
        raise ExpressionError("only numbers may stand in it; write 1 and 0 for true and false")
    if isinstance(node, ast.Call) and (node.keywords or not isinstance(node.func, ast.Name)):
        raise ExpressionError(f"a bracket follows a number or a bracket; {_FACTORS}")
    if isinstance(node, ast.Name) and node.id not in names and node.id not in functions:
        raise ExpressionError(
            f"the name {show(node.id)} is not known; look its value up before, and write numbers without units, * for "
            f"times; functions are {', '.join(sorted(functions))}"
        )


def _collect_nodes(tree: ast.AST) -> Sequence[ast.AST]:
    """Return all nodes in breadth-first order."""
    nodes, level, depth = [tree], [tree], 1
    while level := [child for node in level for child in ast.iter_child_nodes(node)]:
        nodes += level
        depth += 1
        if len(nodes) > _MAX_NODES or depth > _MAX_DEPTH:
            raise ExpressionError("it has too many parts; work it out in several calls")
    return nodes


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
            "min, max, floor, ceil, exp, log, log2, log10, sin, cos, tan, asin, acos, atan, factorial, gcd.",
        ),
    ]


class Calculator(ModelledTool[CalculatorArguments]):
    """Evaluates an arithmetic expression with the numbers of Python; floats are rounded to 15 digits."""

    name: ClassVar[str] = "calculator"
    description: ClassVar[str] = "Works out an arithmetic expression of numbers, exactly as written."
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
