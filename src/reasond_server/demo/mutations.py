"""One-line edits of Python code: the mistakes that people make most, undone, over the syntax tree.

Each edit replaces a piece of the text and has a cost: common mistakes come first. Nothing is random, and no edit is
chosen because it is right: `repair_replies` tries one after the other.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from reasond_server.base.syntax import parse_module_tree
from reasond_server.types.values import value

Function = ast.FunctionDef | ast.AsyncFunctionDef

_COMPARISONS: Final[Mapping[type[ast.cmpop], tuple[str, Sequence[str]]]] = {
    ast.Lt: ("<", ("<=", ">", ">=")),
    ast.LtE: ("<=", ("<", ">=", ">", "==")),
    ast.Gt: (">", (">=", "<", "<=")),
    ast.GtE: (">=", (">", "<=", "<", "==")),
    ast.Eq: ("==", ("!=", "<=", ">=")),
    ast.NotEq: ("!=", ("==", "<", ">")),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
}
_OPERATORS: Final[Mapping[type[ast.operator], tuple[str, Sequence[str]]]] = {
    ast.Add: ("+", ("-", "*")),
    ast.Sub: ("-", ("+", "*")),
    ast.Mult: ("*", ("/", "+", "**", "//")),
    ast.Div: ("/", ("//", "*")),
    ast.FloorDiv: ("//", ("/", "%")),
    ast.Mod: ("%", ("//", "/")),
    ast.Pow: ("**", ("*",)),
    ast.BitAnd: ("&", ("|", "^")),
    ast.BitOr: ("|", ("&", "^")),
    ast.BitXor: ("^", ("&", "|")),
    ast.LShift: ("<<", (">>",)),
    ast.RShift: (">>", ("<<",)),
}
_TWINS: Final = (
    "any all",
    "min max",
    "append extend",
    "lower upper",
    "lstrip rstrip",
    "startswith endswith",
    "floor ceil",
    "keys values",
    "find rfind",
    "add discard",
    "union intersection",
)
_TWIN_OF: Final = {a: b for pair in _TWINS for a, b in (pair.split(), reversed(pair.split()))}
_GUARDED_VALUES: Final = ("0", "None", "1", "[]", "False")
_MOST_NAMES = 8
_BUILT_IN: Final = frozenset(dir(builtins))
_ATOMS = (ast.Name, ast.Call, ast.Subscript, ast.Attribute)


@value
class Mutation:
    """One edit: the bytes from `start` to `end` of the source become `text`; a low `cost` is a common mistake.

    `line` counts from 1, and `function` is the innermost function around it, empty outside of all.
    """

    start: int
    end: int
    text: str
    cost: float
    line: int
    function: str


def find_mutations(source: str) -> Sequence[Mutation]:
    """Return all edits of a module in the order of its syntax tree; none if it cannot be parsed."""
    try:
        tree = parse_module_tree(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return [*_Finder(source, tree).find()]


class _Finder:
    """Finds the edits of one module."""

    def __init__(self, source: str, tree: ast.Module) -> None:
        self._bytes = source.encode()
        self._tree = tree
        # As the parser counts lines: no form feed or Unicode separator ends one.
        self._starts = [0, *(match.end() for match in re.finditer(rb"\r\n|\n|\r", self._bytes))]
        self._function: Function | None = None
        self._attributes = sorted({node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)})
        functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
        # Methods of several classes may have one name.
        self._functions = {node.name: node for node in functions}
        self._names: Mapping[Function, Sequence[str]] = {node: _list_names(node) for node in functions}
        self._methods: Mapping[type[ast.AST], Callable[[Any], Iterator[Mutation]]] = {
            ast.Compare: self._mutate_comparison,
            ast.Constant: self._mutate_constant,
            ast.BinOp: self._mutate_operation,
            ast.BoolOp: self._mutate_junction,
            ast.UnaryOp: self._drop_sign,
            ast.Call: self._mutate_call,
            ast.Subscript: self._mutate_subscript,
            ast.Name: self._mutate_name,
            ast.Attribute: self._mutate_attribute,
            ast.List: self._mutate_list,
            ast.IfExp: self._negate_choice,
            ast.comprehension: self._negate_filters,
        }

    def find(self) -> Iterator[Mutation]:
        """Yield the edits of all statements."""
        for statement in self._tree.body:
            yield from self._visit(statement)

    def _visit(self, node: ast.AST) -> Iterator[Mutation]:
        outer = self._function
        if isinstance(node, Function):
            self._function = node
            yield from self._mutate_function(node)
        if isinstance(node, ast.stmt):
            yield from self._mutate_statement(node)
        if method := self._methods.get(type(node)):
            yield from method(node)
        for child in _list_children(node):
            yield from self._visit(child)
        self._function = outer

    def _mutate_comparison(self, node: ast.Compare) -> Iterator[Mutation]:
        operands = [node.left, *node.comparators]
        for operator, (left, right) in zip(node.ops, pairwise(operands), strict=True):
            old, others = _COMPARISONS[type(operator)]
            for place, new in enumerate(others):
                yield from self._replace_between(left, right, old, new, 0.5 * place)
            if isinstance(right, _ATOMS):
                yield from self._shift(right, 2.5)
            if isinstance(right, ast.Constant) and type(right.value) is int and old == "==":
                low, high = right.value, right.value + 1
                yield from self._replace_between(left, right, "==", "<=", 3, text=str(high))
                yield from self._replace_between(left, right, "==", "<=", 3.5, text=str(low - 1))

    def _mutate_constant(self, node: ast.Constant) -> Iterator[Mutation]:
        value = node.value
        if isinstance(value, bool):
            yield self._replace(node, str(not value), 2)
            yield from (self._replace(node, name, 4) for name in self._list_names_here())
        elif isinstance(value, int):
            yield self._replace(node, str(value + 1), 1)
            yield self._replace(node, str(value - 1), 1)
            if value not in {0, 1}:
                yield self._replace(node, "0", 3.5)
                yield self._replace(node, "1", 3.5)
            if value:
                yield self._replace(node, f"-{value}", 3.5)
        elif isinstance(value, str) and value.strip() != value:
            yield self._replace(node, repr(value.strip()), 5)
        elif value == "":
            yield self._replace(node, repr(" "), 5)

    def _mutate_operation(self, node: ast.BinOp) -> Iterator[Mutation]:
        old, others = _OPERATORS.get(type(node.op), ("", ()))
        for place, new in enumerate(others):
            yield from self._replace_between(node.left, node.right, old, new, 1 + 0.5 * place)
        left, right = self._get_text(node.left), self._get_text(node.right)
        if old:
            yield self._replace(node, f"{self._enclose(node.right)} {old} {self._enclose(node.left)}", 2)
        yield self._replace(node, left, 2.5)
        yield self._replace(node, right, 2.5)
        if isinstance(node.right, _ATOMS):
            yield from self._shift(node.right, 3)
            yield self._replace(node.right, f"{right} ** 2", 5)

    def _mutate_junction(self, node: ast.BoolOp) -> Iterator[Mutation]:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in pairwise(node.values):
            yield from self._replace_between(left, right, old, new, 0.5)
        texts = [self._get_text(operand) for operand in node.values]
        for place, operand in enumerate(node.values):
            rest = f" {old} ".join(texts[:place] + texts[place + 1 :])
            yield self._replace(node, f"({rest})", 3)
            if not isinstance(operand, ast.UnaryOp):
                yield self._replace(operand, f"(not {texts[place]})", 2.5)

    def _drop_sign(self, node: ast.UnaryOp) -> Iterator[Mutation]:
        yield self._replace(node, self._get_text(node.operand), 1)

    def _mutate_list(self, node: ast.List) -> Iterator[Mutation]:
        if not node.elts:
            yield self._replace(node, "[[]]", 5)
            yield from (self._replace(node, f"[{name}]", 5.5) for name in self._list_names_here())

    def _negate_choice(self, node: ast.IfExp) -> Iterator[Mutation]:
        yield self._replace(node.test, f"not ({self._get_text(node.test)})", 2)

    def _negate_filters(self, node: ast.comprehension) -> Iterator[Mutation]:
        yield from (self._replace(test, f"not ({self._get_text(test)})", 3) for test in node.ifs)

    def _mutate_call(self, node: ast.Call) -> Iterator[Mutation]:
        plain = [one for one in node.args if not isinstance(one, ast.Starred)]
        for left, right in pairwise(plain):
            between = self._slice(self._end(left), self._start(right))
            text = f"{self._get_text(right)}{between}{self._get_text(left)}"
            yield self._make_mutation(left, self._start(left), self._end(right), text, 1.5)
        is_range = isinstance(node.func, ast.Name) and node.func.id == "range"
        for argument in plain:
            if isinstance(argument, _ATOMS):
                yield from self._shift(argument, 1 if is_range else 2.5)
            elif isinstance(argument, ast.BinOp):
                yield from self._shift(argument, 2.5)
            if isinstance(argument, ast.Name):
                yield self._replace(argument, f"{argument.id}[1:]", 5)
                yield self._replace(argument, f"{argument.id}[:-1]", 5)
        if len(plain) == 1 == len(node.args):
            yield self._replace(node, self._get_text(plain[0]), 3)
        if isinstance(node.func, ast.Name) and node.func.id == "sorted" and not node.keywords:
            yield self._make_mutation(node, self._end(node) - 1, self._end(node), ", reverse=True)", 4)

    def _mutate_subscript(self, node: ast.Subscript) -> Iterator[Mutation]:
        value = self._get_text(node.value)
        index = node.slice
        if isinstance(index, ast.Slice):
            lower, upper = (self._get_text(bound) if bound else "" for bound in (index.lower, index.upper))
            for bound in (index.lower, index.upper):
                if bound is not None and not isinstance(bound, ast.Constant):
                    yield from self._shift(bound, 1.5)
            yield self._replace(node, value, 4)
            if lower or upper:
                yield self._replace(index, f"{upper}:{lower}", 2.5)
            yield self._replace(index, f"{lower or 1}:{upper}", 4)
            yield self._replace(index, f"{lower}:{upper or -1}", 4)
            return
        elements = index.elts if isinstance(index, ast.Tuple) else [index]
        for element in elements:
            if not isinstance(element, ast.Constant | ast.UnaryOp | ast.Slice):
                yield from self._shift(element, 1.5)
        if isinstance(node.ctx, ast.Load) and not isinstance(index, ast.Tuple):
            yield self._replace(node, f"{value}.get({self._get_text(index)}, 0)", 5)

    def _mutate_name(self, node: ast.Name) -> Iterator[Mutation]:
        if not isinstance(node.ctx, ast.Load):
            return
        if node.id in _TWIN_OF:
            yield self._replace(node, _TWIN_OF[node.id], 1)
        if node.id in _BUILT_IN:
            return
        if node.id in self._functions:
            alike = [name for name in self._functions if name != node.id]
            yield from (self._replace(node, name, 4 + 0.25 * place) for place, name in enumerate(alike[:_MOST_NAMES]))
            return
        for place, name in enumerate(self._list_names_here()):
            if name != node.id:
                yield self._replace(node, name, 2.5 + 0.25 * place)

    def _mutate_attribute(self, node: ast.Attribute) -> Iterator[Mutation]:
        if not isinstance(node.ctx, ast.Load):
            return
        start = self._end(node) - len(node.attr.encode())
        if node.attr in _TWIN_OF:
            yield self._make_mutation(node, start, self._end(node), _TWIN_OF[node.attr], 1)
        near = sorted(
            (name for name in self._attributes if name != node.attr), key=lambda name: -_count_alike(name, node.attr)
        )
        for place, name in enumerate(near[:_MOST_NAMES]):
            yield self._make_mutation(node, start, self._end(node), name, 3.5 + 0.25 * place)

    def _mutate_statement(self, node: ast.stmt) -> Iterator[Mutation]:
        if isinstance(node, ast.If | ast.While):
            yield from self._mutate_condition(node)
        elif isinstance(node, ast.AugAssign):
            old, others = _OPERATORS.get(type(node.op), ("", ()))
            for place, new in enumerate(others):
                yield from self._replace_between(node.target, node.value, f"{old}=", f"{new}=", 1 + 0.5 * place)
            yield from self._replace_between(node.target, node.value, f"{old}=", "=", 3.5)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            yield from self._mutate_assignment(node.targets[0], node.value)
        elif isinstance(node, ast.Return) and isinstance(node.value, (*_ATOMS, ast.BinOp)):
            yield from self._shift(node.value, 3)
            yield self._replace(node.value, f"not {self._get_text(node.value)}", 4)
        elif isinstance(node, ast.Break):
            yield self._replace(node, "continue", 2)
        elif isinstance(node, ast.Continue):
            yield self._replace(node, "break", 2)
        if isinstance(node, ast.For | ast.While):
            yield from self._mutate_loop(node)
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Name):
            yield self._replace(node.iter, f"{node.iter.id}[1:]", 4)

    def _mutate_condition(self, node: ast.If | ast.While) -> Iterator[Mutation]:
        text = self._get_text(node.test)
        if not isinstance(node.test, ast.Constant):
            yield self._replace(node.test, f"not ({text})", 1.5)
            for name in self._list_names_here():
                yield self._replace(node.test, f"{text} or not {name}", 5.5)
                yield self._replace(node.test, f"{name} and {text}", 5.5)

    def _mutate_assignment(self, target: ast.expr, value: ast.expr) -> Iterator[Mutation]:
        text = self._get_text(value)
        if isinstance(value, (*_ATOMS, ast.BinOp)):
            yield from self._shift(value, 3)
        if isinstance(target, ast.Name | ast.Subscript | ast.Attribute) and self._function is not None:
            name = self._get_text(target)
            yield from self._replace_between(target, value, "=", "+=", 3)
            yield self._replace(value, f"max({name}, {text})", 4.5)
            yield self._replace(value, f"min({name}, {text})", 5)
            yield self._replace(value, f"max(0, {text})", 5)

    def _mutate_loop(self, node: ast.For | ast.While) -> Iterator[Mutation]:
        """Yield the loop with its last statement behind it, where that is a `return`."""
        last = node.body[-1]
        if isinstance(last, ast.Return) and last.col_offset > node.col_offset and last.lineno > node.lineno:
            start = self._starts[last.lineno - 1]
            text = f"{' ' * node.col_offset}{self._get_text(last)}"
            yield self._make_mutation(last, start, self._end(last), text, 2)

    def _mutate_function(self, node: Function) -> Iterator[Mutation]:
        """Yield the function with a `return` that is missing at its end, or with a guard at its beginning."""
        last = node.body[-1]
        has_value = any(isinstance(one, ast.Return) and one.value is not None for one in ast.walk(node))
        indent = " " * last.col_offset
        if isinstance(last, ast.Expr) and not isinstance(last.value, ast.Constant | ast.Yield | ast.YieldFrom):
            yield self._replace(last, f"return {self._get_text(last)}", 2 if not has_value else 4)
        if not isinstance(last, ast.Return | ast.Raise) and node.name != "__init__":
            for place, name in enumerate(reversed(self._names[node])):
                text = f"{self._get_text(last)}\n{indent}return {name}"
                yield self._replace(last, text, (2.5 if not has_value else 4.5) + 0.25 * place)
        first = node.body[1] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body[0]
        if first.lineno == node.lineno:
            return
        margin = " " * first.col_offset
        for name in _list_parameters(node):
            for place, returned in enumerate((name, *_GUARDED_VALUES)):
                guard = f"if not {name}:\n{margin}    return {returned}\n{margin}"
                yield self._make_mutation(first, self._start(first), self._start(first), guard, 4 + 0.25 * place)

    def _shift(self, node: ast.expr, cost: float) -> Iterator[Mutation]:
        """Yield `node` plus and minus one."""
        text = self._get_text(node)
        text = text if isinstance(node, (*_ATOMS, ast.BinOp)) else f"({text})"
        yield self._replace(node, f"{text} + 1", cost)
        yield self._replace(node, f"{text} - 1", cost)

    def _replace_between(
        self, left: ast.expr, right: ast.expr, old: str, new: str, cost: float, *, text: str | None = None
    ) -> Iterator[Mutation]:
        """Yield the operator `old` between two operands as `new`; `text` takes the place of the right one."""
        start, end = self._end(left), self._start(right)
        between = self._slice(start, end)
        pattern = r"\s+".join(map(re.escape, old.split()))
        found = re.search(pattern, between)
        if found is None:
            return
        changed = f"{between[: found.start()]}{new}{between[found.end() :]}"
        if text is not None:
            changed, end = changed + text, self._end(right)
        yield self._make_mutation(left, start, end, changed, cost)

    def _replace(self, node: ast.stmt | ast.expr, text: str, cost: float) -> Mutation:
        return self._make_mutation(node, self._start(node), self._end(node), text, cost)

    def _make_mutation(self, node: ast.stmt | ast.expr, start: int, end: int, text: str, cost: float) -> Mutation:
        function = "" if self._function is None else self._function.name
        return Mutation(start=start, end=end, text=text, cost=cost, line=node.lineno, function=function)

    def _list_names_here(self) -> Sequence[str]:
        """Return the names of the function that is being visited, at most 8."""
        return () if self._function is None else self._names[self._function][:_MOST_NAMES]

    def _start(self, node: ast.stmt | ast.expr) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.stmt | ast.expr) -> int:
        return self._starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)

    def _get_text(self, node: ast.stmt | ast.expr) -> str:
        return self._slice(self._start(node), self._end(node))

    def _enclose(self, node: ast.expr) -> str:
        """Return the text of an operand that keeps its meaning beside any operator."""
        return self._get_text(node) if isinstance(node, (*_ATOMS, ast.Constant)) else f"({self._get_text(node)})"

    def _slice(self, start: int, end: int) -> str:
        return self._bytes[start:end].decode()


def _list_children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may be edited below `node`: no annotations, no decorators, no docstrings, no parts of f-strings."""
    for name, part in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "type_params"} or isinstance(node, ast.JoinedStr):
            continue
        for child in part if isinstance(part, list) else [part]:
            is_docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if isinstance(child, ast.AST) and not is_docstring:
                yield child


def _list_names(function: Function) -> Sequence[str]:
    """Return the parameters of a function and what it assigns, each once, in the order of the text."""
    stored = [one for one in ast.walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]
    stored.sort(key=lambda one: (one.lineno, one.col_offset))
    return [*dict.fromkeys([*_list_parameters(function), *(one.id for one in stored)])]


def _list_parameters(function: Function) -> Sequence[str]:
    arguments = function.args
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return [name for name in names if name not in {"self", "cls"}]


def _count_alike(left: str, right: str) -> int:
    """Return how many letters two names have in common at their ends."""
    common = next((place for place, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), 0)
    behind = next((place for place, (a, b) in enumerate(zip(left[::-1], right[::-1], strict=False)) if a != b), 0)
    return common + behind
