"""Measure the sizes that keep the code readable, and fail where they are over budget.

A module counts all its lines. A function counts its lines of code from `def` to its end: no docstring, no
blank line, no line that is only a comment. The comment share is comment-only lines over code lines.
Generated code is left out. Tests, benchmarks and examples keep the hard limits alone.
"""

from __future__ import annotations

import ast
import io
import math
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("src", "clients", "scripts")
OTHER_ROOMS = ("tests", "benchmarks", "examples")
LAYOUT_TOKENS = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """The sizes of one module: lines, code lines, comment lines, and code lines by function."""

    path: Path
    lines: int
    code: int
    comments: int
    functions: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure beside its limit."""

    name: str
    value: float
    limit: float
    detail: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether the figure is within its limit."""
        return self.value <= self.limit


def percentile(values: list[int], share: float) -> int:
    """Return the smallest of `values` that at least `share` of them do not exceed; 0 for none."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else 0


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the numbers of all lines that docstrings take."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def token_lines(source: str) -> tuple[set[int], set[int]]:
    """Return the numbers of the lines that hold code and of those that hold a comment."""
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in LAYOUT_TOKENS:
            code.update(range(token.start[0], token.end[0] + 1))
    return code, comments


def measured(path: Path, source: str) -> Module:
    """Return the sizes of `source`."""
    tree = ast.parse(source)
    with_tokens, comments = token_lines(source)
    code = with_tokens - docstring_lines(tree)
    functions = {
        f"{node.name}:{node.lineno}": len(code.intersection(range(node.lineno, (node.end_lineno or node.lineno) + 1)))
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return Module(
        path=path,
        lines=len(source.splitlines()),
        code=len(code),
        comments=len(comments - with_tokens),
        functions=functions,
    )


def measures(modules: list[Module]) -> list[Measure]:
    """Return every figure of the budget for `modules`."""
    lines = [module.lines for module in modules]
    functions = {f"{module.path} {name}": size for module in modules for name, size in module.functions.items()}
    sizes = list(functions.values())
    longest_module = max(modules, key=lambda module: module.lines)
    longest_function = max(functions, key=lambda name: functions[name], default="")
    share = 100 * sum(module.comments for module in modules) / max(1, sum(module.code for module in modules))
    return [
        Measure(name="module lines, p90", value=percentile(lines, 0.9), limit=350),
        Measure(name="module lines, most", value=max(lines), limit=500, detail=str(longest_module.path)),
        Measure(name="function code, p90", value=percentile(sizes, 0.9), limit=20),
        Measure(name="function code, p99", value=percentile(sizes, 0.99), limit=45),
        Measure(name="function code, most", value=max(sizes, default=0), limit=60, detail=longest_function),
        Measure(name="comments per 100 lines", value=round(share, 1), limit=6, detail="2-4 is the aim"),
    ]


def collected(root: Path, rooms: Sequence[str] = ROOMS) -> list[Module]:
    """Return the sizes of all modules below the `rooms` of `root` that a person wrote."""
    paths = sorted(path for room in rooms for path in (root / room).rglob("*.py") if "_pb2" not in path.name)
    return [measured(path.relative_to(root), path.read_text(encoding="utf-8")) for path in paths]


def over_budget(modules: list[Module], *, lines: int = 500, code: int = 60) -> list[str]:
    """Return a line for each module and function that is over the hard limit by itself."""
    long_modules = [f"{module.path}: {module.lines} lines" for module in modules if module.lines > lines]
    return long_modules + [
        f"{module.path} {name}: {size} lines of code"
        for module in modules
        for name, size in module.functions.items()
        if size > code
    ]


def main() -> int:
    """Print the table and return 1 where a figure is over its limit."""
    modules = collected(ROOT)
    figures = measures(modules)
    print(f"{len(modules)} modules, {sum(len(module.functions) for module in modules)} functions")
    for figure in figures:
        mark = "ok  " if figure.is_kept else "OVER"
        print(f"  {mark} {figure.name:<24} {figure.value:>6g}  limit {figure.limit:>4g}  {figure.detail}")
    over = over_budget(modules) + over_budget(collected(ROOT, OTHER_ROOMS))
    print("\n".join(over))
    return 0 if all(figure.is_kept for figure in figures) and not over else 1


if __name__ == "__main__":
    sys.exit(main())
