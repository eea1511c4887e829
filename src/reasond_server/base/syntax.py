"""Parses Python into syntax trees, in any thread.

CPython 3.11 counts the depth of a tree in one place for all threads, and says SystemError where two of them parse at
the same moment. The source is not at fault, so it is parsed again.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Final, TypeVar

TreeT = TypeVar("TreeT")
_ATTEMPTS: Final = 20


def parse_module_tree(source: str | bytes) -> ast.Module:
    """Return the tree of a module. Raises as `ast.parse`: SyntaxError, ValueError, RecursionError, MemoryError."""
    return _repeat(lambda: ast.parse(source))


def parse_expression_tree(text: str) -> ast.Expression:
    """Return the tree of an expression. Raises as `parse_module_tree`."""
    return _repeat(lambda: ast.parse(text, mode="eval"))


def _repeat(parse: Callable[[], TreeT]) -> TreeT:
    for _ in range(_ATTEMPTS - 1):
        try:
            return parse()
        except SystemError:
            continue
    return parse()
