"""Reads arithmetic as people write it: `$80,000 * 1.5`, `3 x 4`, `18 ÷ 3`, `20% of 50`, `12 * 3 =`.

An expression with two possible meanings is refused, because a wrong number is worse than a second call. Every refusal
says what to write instead.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from reasond_server.base.syntax import parse_expression_tree
from reasond_server.errors.base import show

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

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
            f"{show(unknown[0])} may not stand in it; write it with digits, + - * / // % ** ( ) and functions"
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
            f"the name {show(node.id)} is not known; write numbers without units, * for times; functions are "
            f"{', '.join(sorted(functions))}"
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
