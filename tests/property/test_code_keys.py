"""A function and the same function with one edit never have one key; a comment or another layout changes no key."""

from __future__ import annotations

import ast
import bisect
import copy
import fractions
import heapq
import inspect
import statistics
import textwrap
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reasond_server.repair.edits.python_sources import compute_code_key
from reasond_server.types.repairs import SourceFile

MODULES = (bisect, fractions, heapq, statistics, textwrap)
COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)


@cache
def list_functions() -> list[str]:
    trees = [ast.parse(inspect.getsource(module)) for module in MODULES]
    return [ast.unparse(node) for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def key(source: str) -> str:
    return compute_code_key({"a.py": source.encode()}, {"a.py": SourceFile(path="a.py", content=b"")})


def list_places(tree: ast.AST) -> list[ast.AST]:
    kinds = (ast.Compare, ast.BinOp, ast.Constant, ast.Name, ast.If, ast.While, ast.Return, ast.Call, ast.BoolOp)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def edit(node: ast.AST, choice: int) -> None:
    """Change one thing about `node`, which is a real change whatever `choice` is."""
    if isinstance(node, ast.Compare):
        others = [kind for kind in COMPARISONS if not isinstance(node.ops[0], kind)]
        node.ops[0] = others[choice % len(others)]()
    elif isinstance(node, ast.BinOp):
        others_of = [kind for kind in OPERATORS if not isinstance(node.op, kind)]
        node.op = others_of[choice % len(others_of)]()
    elif isinstance(node, ast.Constant):
        node.value = node.value + 1 if isinstance(node.value, int | float) else f"{node.value!r}{choice}"
    elif isinstance(node, ast.Name):
        node.id += "_"
    elif isinstance(node, ast.If | ast.While):
        node.test = ast.UnaryOp(op=ast.Not(), operand=node.test)
    elif isinstance(node, ast.Return):
        node.value = None if node.value is not None else ast.Constant(value=0)
    elif isinstance(node, ast.Call):
        node.args = node.args[:-1] if node.args else [ast.Constant(value=0)]
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()


@pytest.mark.slow
@given(function=st.integers(0, 10_000), place=st.integers(0, 10_000), choice=st.integers(0, 100))
@settings(deadline=None, max_examples=300)
def test_one_edit_always_changes_the_key(function: int, place: int, choice: int) -> None:
    functions = list_functions()
    original = ast.parse(functions[function % len(functions)])
    changed = copy.deepcopy(original)
    places = [node for node in list_places(changed) if not is_docstring(changed, node)]
    if places:
        edit(places[place % len(places)], choice)
        assert key(ast.unparse(original)) != key(ast.unparse(changed))


def is_docstring(tree: ast.AST, node: ast.AST) -> bool:
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    return any(isinstance(first := each.body[0], ast.Expr) and first.value is node for each in functions)


@given(function=st.integers(0, 10_000), line=st.integers(0, 10_000))
@settings(deadline=None)
def test_comments_and_layout_change_no_key(function: int, line: int) -> None:
    functions = list_functions()
    source = functions[function % len(functions)]
    lines = source.split("\n")
    place = line % (len(lines) + 1)
    commented = [*lines[:place], "# a comment", "", *lines[place:]]
    if '"""' not in source and "'''" not in source:
        assert key("\n".join(commented)) == key(source)
    assert key(f"{source}  # more\n\n\n") == key(source)
