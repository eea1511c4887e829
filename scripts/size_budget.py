"""Measure the sizes that keep the code readable, and fail if they are over budget.

A module counts all its lines. A function counts its lines of code from `def` to its end: no docstring, no
blank line, no line that is only a comment. The comment share is comment-only lines over code lines.
Generated code is left out. Tests, benchmarks and examples keep the hard limits alone.

A module of declarations, such as errors, settings, types and kinds, has no maximum: who adds the next class adds it
where its sisters are. Most of its code are the fields of classes, and none of its functions is long.

A class of the core counts its methods and its attributes together with those of its bases in the core. Attributes are
the names in `__slots__`, the annotated fields without `ClassVar`, and what its methods assign to `self`.
"""

from __future__ import annotations

import ast
import gc
import io
import math
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("src", "clients", "scripts")
OTHER_ROOMS = ("tests", "benchmarks", "examples")
CORE = tuple(f"src/reasond_server/{room}" for room in ("eventlog", "runs", "reasoning"))
MAX_MEMBERS = 20
MAX_LINES = 700
MAX_CODE = 60
MOST_CODE_BESIDE_DECLARATIONS = 10
LEAST_DECLARED_SHARE = 0.6
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
LAYOUT_TOKENS = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """The sizes of one module: lines, code lines, comment lines, code lines by function, those of fields of classes."""

    path: Path
    lines: int
    code: int
    comments: int
    functions: dict[str, int]
    classes: tuple[Class, ...] = ()
    declared: int = 0

    @property
    def is_declarations(self) -> bool:
        """Whether the module only declares classes."""
        is_plain = max(self.functions.values(), default=0) <= MOST_CODE_BESIDE_DECLARATIONS
        return is_plain and self.declared >= LEAST_DECLARED_SHARE * self.code > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Class:
    """The members that a class defines itself, and the names of its bases."""

    name: str
    bases: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure and its limit."""

    name: str
    value: float
    limit: float
    detail: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether the figure is within its limit."""
        return self.value <= self.limit


def percentile(values: list[int], share: float) -> int:
    """Return the smallest of `values` that at least the given share does not exceed; 0 for no values."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else 0


def walk_definitions(tree: ast.Module) -> Iterator[Definition]:
    """Yield every class and function of a module, at any depth.

    Only statements are visited, because no expression contains one: `ast.walk` takes six times as long.
    """
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, Definition):
            yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            pending += getattr(node, part, ())


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the numbers of all lines of docstrings."""
    lines: set[int] = set()
    for node in (tree, *walk_definitions(tree)):
        if node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def token_lines(source: str) -> tuple[set[int], set[int]]:
    """Return the numbers of the lines that contain code and of those that contain a comment."""
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in LAYOUT_TOKENS:
            code.update(range(token.start[0], token.end[0] + 1))
    return code, comments


def class_of(node: ast.ClassDef) -> Class:
    """Return the members that `node` defines itself."""
    methods = [entry for entry in node.body if isinstance(entry, ast.FunctionDef | ast.AsyncFunctionDef)]
    named = {entry.name for entry in methods}
    attributes = {*find_fields(node), *(name for method in methods for name in find_assigned(method))}
    return Class(
        name=node.name,
        bases=frozenset(find_name(base) for base in node.bases),
        methods=frozenset(named),
        attributes=frozenset(attributes - named),
    )


def find_name(base: ast.expr) -> str:
    """Return the last part of the name in `base`: `Port` for `store.Port[Event]`."""
    plain = base.value if isinstance(base, ast.Subscript) else base
    return plain.attr if isinstance(plain, ast.Attribute) else getattr(plain, "id", "")


def find_fields(node: ast.ClassDef) -> Iterator[str]:
    """Yield the names in the `__slots__` of a class and those of its annotated fields."""
    for entry in node.body:
        if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name):
            if "ClassVar" not in ast.unparse(entry.annotation):
                yield entry.target.id
        elif isinstance(entry, ast.Assign) and any(ast.unparse(target) == "__slots__" for target in entry.targets):
            slots = ast.literal_eval(entry.value)
            yield from [slots] if isinstance(slots, str) else slots


def find_assigned(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Yield the names of the attributes that `method` assigns to its first parameter."""
    parameters = [*method.args.posonlyargs, *method.args.args]
    for entry in ast.walk(method):
        if not isinstance(entry, ast.Attribute) or not isinstance(entry.ctx, ast.Store):
            continue
        if parameters and isinstance(entry.value, ast.Name) and entry.value.id == parameters[0].arg:
            yield entry.attr


def measure(path: Path, source: str) -> Module:
    """Return the sizes of `source`."""
    tree = ast.parse(source)
    with_tokens, comments = token_lines(source)
    code = with_tokens - docstring_lines(tree)
    classes = [node for node in walk_definitions(tree) if isinstance(node, ast.ClassDef)]
    bodies = [node for node in walk_definitions(tree) if not isinstance(node, ast.ClassDef)]
    functions = {f"{node.name}:{node.lineno}": len(code & list_lines([node])) for node in bodies}
    return Module(
        path=path,
        lines=len(source.splitlines()),
        code=len(code),
        comments=len(comments - with_tokens),
        functions=functions,
        classes=tuple(map(class_of, classes)),
        declared=len((code & list_lines(classes)) - list_lines(bodies)),
    )


def list_lines(nodes: Iterable[Definition]) -> set[int]:
    """Return the numbers of the lines of `nodes`."""
    return {line for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def list_measures(modules: list[Module]) -> list[Measure]:
    """Return every figure of the budget, measured over `modules`."""
    lines = [module.lines for module in modules]
    functions = {f"{module.path} {name}": size for module in modules for name, size in module.functions.items()}
    sizes = list(functions.values())
    bounded = [module for module in modules if not module.is_declarations]
    longest_module = max(bounded or modules, key=lambda module: module.lines)
    longest_function = max(functions, key=lambda name: functions[name], default="")
    share = 100 * sum(module.comments for module in modules) / max(1, sum(module.code for module in modules))
    return [
        Measure(name="module lines, p90", value=percentile(lines, 0.9), limit=450),
        Measure(
            name="module lines, most",
            value=longest_module.lines if bounded else 0,
            limit=MAX_LINES,
            detail=str(longest_module.path),
        ),
        Measure(name="function code, p90", value=percentile(sizes, 0.9), limit=20),
        Measure(name="function code, p99", value=percentile(sizes, 0.99), limit=45),
        Measure(name="function code, most", value=max(sizes, default=0), limit=MAX_CODE, detail=longest_function),
        Measure(name="comments per 100 lines", value=round(share, 1), limit=6, detail="2-4 is the aim"),
    ]


def read_sources(root: Path, rooms: Sequence[str]) -> dict[Path, str]:
    """Return the text of all hand-written modules below the `rooms` of `root`, by their path from there."""
    paths = sorted(path for room in rooms for path in (root / room).rglob("*.py") if "_pb2" not in path.name)
    return {path.relative_to(root): path.read_text(encoding="utf-8") for path in paths}


def read_modules(root: Path, rooms: Sequence[str] = ROOMS) -> list[Module]:
    """Return the sizes of all hand-written modules below the `rooms` of `root`."""
    return [measure(path, source) for path, source in read_sources(root, rooms).items()]


def read_large_modules(root: Path, rooms: Sequence[str]) -> list[Module]:
    """Return the sizes of those modules below the `rooms` of `root` that may exceed a hard limit.

    They are found by the lines of their functions, comments included: to count only code takes most of the time.
    """
    return [measure(path, source) for path, source in read_sources(root, rooms).items() if is_large(source)]


def is_large(source: str) -> bool:
    """Return whether a module, or one of its definitions, has more lines than the hard limit."""
    definitions = walk_definitions(ast.parse(source))
    return source.count("\n") >= MAX_LINES or any(
        (node.end_lineno or node.lineno) - node.lineno >= MAX_CODE for node in definitions
    )


def over_budget(modules: list[Module], *, lines: int = MAX_LINES, code: int = MAX_CODE) -> list[str]:
    """Return a line for each module and each function that exceeds its hard limit; declarations have none."""
    long_modules = [
        f"{module.path}: {module.lines} lines"
        for module in modules
        if module.lines > lines and not module.is_declarations
    ]
    return long_modules + [
        f"{module.path} {name}: {size} lines of code"
        for module in modules
        for name, size in module.functions.items()
        if size > code
    ]


def too_wide(modules: list[Module], core: Sequence[str] = CORE) -> list[str]:
    """Return a line for each class of the `core` with more than 20 attributes or methods, inherited ones included."""
    inside = [module for module in modules if any(module.path.is_relative_to(room) for room in core)]
    known = {entry.name: entry for module in inside for entry in module.classes}
    lines = []
    for module in inside:
        for entry in module.classes:
            family = [entry, *find_bases(entry, known)]
            for kind in ("attributes", "methods"):
                members = frozenset[str]().union(*(getattr(one, kind) for one in family))
                if len(members) > MAX_MEMBERS:
                    lines.append(f"{module.path} {entry.name}: {len(members)} {kind}, the limit is {MAX_MEMBERS}")
    return lines


def find_bases(entry: Class, known: Mapping[str, Class]) -> list[Class]:
    """Return all known bases of `entry`, direct and indirect."""
    bases = [known[name] for name in sorted(entry.bases) if name in known and known[name] is not entry]
    return [*bases, *(above for base in bases for above in find_bases(base, known))]


def main() -> int:
    """Print the table and return 1 if a figure is over its limit."""
    gc.disable()  # It would look through each syntax tree many times while the tree grows.
    modules = read_modules(ROOT)
    figures = list_measures(modules)
    print(f"{len(modules)} modules, {sum(len(module.functions) for module in modules)} functions")
    for figure in figures:
        mark = "ok  " if figure.is_kept else "OVER"
        print(f"  {mark} {figure.name:<24} {figure.value:>6g}  limit {figure.limit:>4g}  {figure.detail}")
    over = over_budget(modules) + over_budget(read_large_modules(ROOT, OTHER_ROOMS)) + too_wide(modules)
    print("\n".join(over))
    return 0 if all(figure.is_kept for figure in figures) and not over else 1


if __name__ == "__main__":
    sys.exit(main())
