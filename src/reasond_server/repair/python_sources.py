"""Parses Python sources that nobody trusts: within bounds of size and depth, without warnings, never run."""

from __future__ import annotations

import ast
import warnings
from typing import Final

_MAX_BYTES: Final = 4 * 1024 * 1024
_MAX_DEPTH: Final = 500
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
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
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise PythonSourceError(f"is nested more than {_MAX_DEPTH} levels deep")
