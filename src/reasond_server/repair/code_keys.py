"""Keys by which candidates count as the same code.

A key is never equal for a fault and its repair: names and constants are part of it. Similarity of texts would drop
right answers, because a fault and its repair differ by few characters.
"""

from __future__ import annotations

import ast
import hashlib
from typing import TYPE_CHECKING

from reasond_server.repair.python_sources import PythonSourceError, is_python, parse_python

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reasond_server.types.snapshots import SourceFile


def key_of(changes: Mapping[str, bytes | None], files: Mapping[str, SourceFile]) -> str:
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
    forms = _list_forms(path, new)
    known = _list_forms(path, old) if old is not None else ()
    for rank, (form, before) in enumerate(zip(forms, known or ("",) * len(forms), strict=False)):
        if form != before:
            return 3 - rank, form
    return 1, forms[-1]


def _list_forms(path: str, content: bytes) -> tuple[str, str, str]:
    """Return digests of the code, of the code with its docstrings, and of the bytes."""
    exact = f"bytes {hashlib.sha256(content).hexdigest()}"
    if is_python(path):
        try:
            tree = parse_python(content)
        except PythonSourceError:
            pass
        else:
            return _digest_tree(tree, has_docstrings=False), _digest_tree(tree, has_docstrings=True), exact
    lines = b"\n".join(line.rstrip() for line in content.split(b"\n")).rstrip(b"\n")
    text = f"text {hashlib.sha256(lines).hexdigest()}"
    return text, text, exact


def _digest_tree(tree: ast.Module, *, has_docstrings: bool) -> str:
    digest = hashlib.sha256()
    for word in _write_tree(tree, has_docstrings=has_docstrings):
        digest.update(word.encode() + b"\0")
    return f"tree {digest.hexdigest()}"


def _write_tree(tree: ast.Module, *, has_docstrings: bool) -> Iterator[str]:
    """Yield the words of a tree, from which it could be made again but for positions; needs no recursion."""
    stack: list[object] = [tree]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            yield f"[{len(item)}"
            stack += reversed(item)
        elif isinstance(item, ast.Constant):
            yield f"{type(item.value).__name__} {_write_constant(item.value)}"
        elif isinstance(item, ast.AST):
            yield type(item).__name__
            skipped = 0 if has_docstrings else _count_docstrings(item)
            fields = [(name, getattr(item, name, None)) for name in item._fields if name != "type_comment"]
            parts = [part[skipped:] if name == "body" and isinstance(part, list) else part for name, part in fields]
            stack += reversed(parts)
        else:
            yield ascii(item)


def _count_docstrings(node: ast.AST) -> int:
    """Return 1 for a node whose body begins with a docstring, otherwise 0."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or not node.body:
        return 0
    first = node.body[0]
    return int(
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )


def _write_constant(constant: object) -> str:
    # The decimal digits of a huge number take long, and Python refuses to write more than 4,300 of them.
    return hex(constant) if type(constant) is int else ascii(constant)
