"""Parses Python sources that nobody trusts: within bounds of size and depth, without warnings, never run."""

from __future__ import annotations

import ast
import threading
import warnings
from functools import cache
from typing import TYPE_CHECKING, Final

from reasond_server.base.syntax import parse_module_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_BYTES: Final = 4 * 1024 * 1024
_MAX_DEPTH: Final = 500
# The filters of warnings belong to the process: two threads that change them at once would not put them back.
_FILTERING: Final = threading.Lock()
_SUFFIXES: Final = (".py", ".pyi")


class PythonSourceError(Exception):
    """A text that is no Python of this interpreter, or nested too deeply; the text says where."""


def is_python(path: str) -> bool:
    """Return whether the name is that of a Python file."""
    return path.endswith(_SUFFIXES)


def parse_python(source: bytes) -> ast.Module:
    """Return the syntax tree of a source, at most 500 levels deep.

    The bound on the depth makes the result independent of how deep the caller's own stack is.

    Raises:
        PythonSourceError: it cannot be parsed.
    """
    if len(source) > _MAX_BYTES:
        raise PythonSourceError(f"has {len(source)} bytes; at most {_MAX_BYTES} are parsed")
    try:
        with _FILTERING, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = parse_module_tree(source)
    except SyntaxError as error:
        raise PythonSourceError(f"line {error.lineno or 1}: {error.msg}") from None
    except ValueError:
        raise PythonSourceError("contains characters that no Python source has") from None
    except (RecursionError, MemoryError):
        raise PythonSourceError("is nested too deeply") from None
    _check_depth(tree)
    return tree


def _check_depth(tree: ast.Module) -> None:
    level: list[ast.AST] = [tree]
    for _ in range(_MAX_DEPTH):
        parts = [getattr(node, name, None) for node in level for name in _list_inner_fields(node._fields)]
        level = [part for part in parts if isinstance(part, ast.AST)]
        level += [each for part in parts if isinstance(part, list) for each in part if isinstance(each, ast.AST)]
        if not level:
            return
    raise PythonSourceError(f"is nested more than {_MAX_DEPTH} levels deep")


@cache
def _list_inner_fields(names: tuple[str, ...]) -> Sequence[str]:
    """Return those fields of a node that may hold nodes with nodes below them."""
    return [name for name in names if name not in {"ctx", "op", "ops", "id", "attr", "name", "arg"}]
