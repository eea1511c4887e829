"""Tables of the visible cases: code that holds inputs of tests with their results instead of working them out."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from reasond_server.repair.edits.protection import is_protected_by_default
from reasond_server.repair.edits.python_sources import PythonSourceError, is_python, parse_python

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from reasond_server.types.repairs import SourceFile

    Case = tuple[str, str]
    """The arguments of a call and its result, as they are written in Python."""

_FEWEST: Final = 2
_MOST_BYTES: Final = 256 * 1024
_MOST_FILES: Final = 50


def find_known_cases(tree: ast.Module, files: Mapping[str, SourceFile]) -> tuple[int, int] | None:
    """Return the line of a table of cases of the tests and how many it holds; None if there is none.

    A table is a dictionary, or what a function compares with and returns; at least half of it are such cases.
    """
    tables = [(line, cases) for line, cases in _list_tables(tree) if len(cases) >= _FEWEST]
    known = set(_list_test_cases(files)) if tables else set()
    for line, cases in tables:
        count = len(known.intersection(cases))
        if count >= _FEWEST and 2 * count >= len(cases):
            return line, count
    return None


def _list_tables(tree: ast.Module) -> Iterator[tuple[int, Sequence[Case]]]:
    for node in ast.walk(tree):
        pairs: Iterable[tuple[Sequence[ast.AST | None], ast.AST | None]] = ()
        if isinstance(node, ast.Dict):
            pairs = [([key], result) for key, result in zip(node.keys, node.values, strict=True)]
        elif isinstance(node, ast.FunctionDef):
            pairs = [pair for inner in ast.walk(node) for pair in _list_branches(inner)]
        yield getattr(node, "lineno", 0), [case for keys, result in pairs for case in _make_case(keys, result)]


def _list_branches(node: ast.AST) -> Iterator[tuple[Sequence[ast.AST | None], ast.AST | None]]:
    """Yield what a branch compares with, and what it gives."""
    match node:
        case ast.If(test=test, body=[ast.Return(value=result)]) | ast.IfExp(test=test, body=result):
            tests = test.values if isinstance(test, ast.BoolOp) else [test]
            yield [one.comparators[0] for one in tests if isinstance(one, ast.Compare)], result
        case ast.match_case(pattern=ast.MatchValue(value=key), body=[ast.Return(value=result)]):
            yield [key], result
        case ast.match_case(pattern=ast.MatchSequence(patterns=keys), body=[ast.Return(value=result)]):
            yield [one.value for one in keys if isinstance(one, ast.MatchValue)], result


def _list_test_cases(files: Mapping[str, SourceFile]) -> Iterator[Case]:
    tests = [file for path, file in files.items() if is_python(path) and is_protected_by_default(path)]
    for file in tests[:_MOST_FILES]:
        try:
            tree = parse_python(file.content) if len(file.content) <= _MOST_BYTES else None
        except PythonSourceError:
            continue
        for node in ast.walk(tree) if tree else ():
            match node:
                case ast.Compare(left=ast.Call(args=args), ops=[ast.Eq() | ast.Is()], comparators=[result]):
                    yield from _make_case(args, result)
                case (
                    ast.Call(args=[ast.Call(args=args), result, *_]) | ast.Call(args=[result, ast.Call(args=args), *_])
                ):
                    yield from _make_case(args, result)
                case ast.Tuple(elts=[*args, result]) | ast.List(elts=[*args, result]):
                    yield from _make_case(args, result)


def _make_case(keys: Sequence[ast.AST | None], result: ast.AST | None) -> Iterator[Case]:
    """Yield the case, if all of it is written out."""
    try:
        values = [ast.literal_eval(key) for key in keys if isinstance(key, ast.expr)]
        given = ast.literal_eval(result) if isinstance(result, ast.expr) else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return
    if values and len(values) == len(keys) and given is not None:
        if len(values) == 1 and isinstance(values[0], tuple):
            values = list(values[0])
        yield repr(values), repr(given)
