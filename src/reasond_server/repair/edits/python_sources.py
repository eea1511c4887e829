"""Parses Python sources that nobody trusts: within bounds of size and depth, without warnings, never run."""

from __future__ import annotations

import ast
import hashlib
import threading
import warnings
from functools import cache
from typing import TYPE_CHECKING, Final

from reasond_server.base.syntax import parse_module_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reasond_server.types.repairs import SourceFile


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


_HAVE_DOCSTRINGS: Final = frozenset({ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef})


def compute_code_key(changes: Mapping[str, bytes | None], files: Mapping[str, SourceFile]) -> str:
    """Return a key that is equal for changes of `files` with the same effect on the code, as far as that is certain.

    In Python comments, layout and docstrings make no difference, in other texts white space at the end of lines. If
    changes differ from the original in nothing else, that makes the difference: it may be all that is wrong.
    """
    differences = [(path, *_find_difference(path, files.get(path), changes[path])) for path in sorted(changes)]
    strongest = max((rank for _, rank, _ in differences), default=0)
    digest = hashlib.sha256()
    for path, rank, form in differences:
        if rank == strongest and rank:
            digest.update(f"{path}\0{rank}\0{form}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _find_difference(path: str, file: SourceFile | None, new: bytes | None) -> tuple[int, str]:
    """Return how much a change changes, 3 code, 2 docstrings, 1 layout, 0 nothing, and a form of the new file."""
    old = None if file is None else file.content
    if new == old:
        return 0, ""
    if new is None:
        return 3, "deleted"
    before = iter(()) if old is None else _write_forms(path, old)
    for rank, form in zip((3, 2), _write_forms(path, new), strict=True):
        if form != next(before, ""):
            return rank, form
    return 1, hashlib.sha256(new).hexdigest()


def _write_forms(path: str, content: bytes) -> Iterator[str]:
    """Yield digests of the code without and with its docstrings; the same twice for a text."""
    try:
        tree = parse_python(content) if is_python(path) else None
    except PythonSourceError:
        tree = None
    if tree is None:
        lines = b"\n".join(line.rstrip() for line in content.split(b"\n")).rstrip(b"\n")
        yield from [f"text {hashlib.sha256(lines).hexdigest()}"] * 2
    else:
        yield _digest_tree(tree, has_docstrings=False)
        yield _digest_tree(tree, has_docstrings=True)


def _digest_tree(tree: ast.Module, *, has_docstrings: bool) -> str:
    words = "\0".join(_list_words(tree, has_docstrings=has_docstrings))
    return f"tree {hashlib.sha256(words.encode()).hexdigest()}"


def _list_words(tree: ast.Module, *, has_docstrings: bool) -> Sequence[str]:
    """Return the words of a tree, from which it could be made again but for positions; needs no recursion.

    Contexts, load or store, follow from the place of a node.
    """
    words: list[str] = []
    stack: list[object] = [tree]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            words.append(f"[{len(item)}")
            stack += item
        elif isinstance(item, ast.Constant):
            words.append(f"{type(item.value).__name__} {_write_constant(item.value)}")
        elif isinstance(item, ast.AST):
            kind = type(item)
            words.append(kind.__name__)
            if kind in _HAVE_DOCSTRINGS and not has_docstrings and (skipped := _count_docstrings(item)):
                stack += [
                    getattr(item, name)[skipped:] if name == "body" else getattr(item, name)
                    for name in _list_fields(item._fields)
                ]
            else:
                stack += [getattr(item, name, None) for name in _list_fields(item._fields)]
        else:
            words.append(ascii(item))
    return words


@cache
def _list_fields(names: tuple[str, ...]) -> Sequence[str]:
    return [name for name in names if name not in {"ctx", "type_comment"}]


def _count_docstrings(node: ast.AST) -> int:
    """Return 1 if the body of a definition begins with a docstring, otherwise 0."""
    body = getattr(node, "body", ())
    first = body[0] if body else None
    return int(
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )


def _write_constant(constant: object) -> str:
    # The decimal digits of a huge number take long, and Python refuses to write more than 4,300 of them.
    return hex(constant) if type(constant) is int else ascii(constant)
