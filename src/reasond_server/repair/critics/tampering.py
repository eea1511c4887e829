"""Signs that code deals with its checks instead of the fault.

A sign is evidence: what certainly cheats is HIGH and keeps a candidate out; what repairs do as well is MEDIUM, lowers
the score and is told. Each has a rule, by which operators and callers let it pass.
"""

from __future__ import annotations

import ast
import re
import sys
from typing import TYPE_CHECKING, Final

from reasond_server.repair.critics.known_cases import find_known_cases
from reasond_server.repair.edits.protection import is_protected_by_default
from reasond_server.repair.edits.python_sources import PythonSourceError, is_python, parse_python
from reasond_server.repair.results.gate import TAMPERING
from reasond_server.types.repairs import Finding, Severity, SourceFile

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    Sign = tuple[str, Severity, str]
    """Rule, severity and message."""

_HIGH, _MEDIUM = Severity.HIGH, Severity.MEDIUM


def _spread(rows: Mapping[tuple[str, Severity], str]) -> Mapping[str, tuple[str, Severity]]:
    return {name: sign for sign, names in rows.items() for name in names.split()}


_IMPORTED: Final = _spread(
    {
        ("runner", _HIGH): "pytest _pytest pluggy unittest nose nose2 hypothesis builtins sitecustomize usercustomize",
        ("runner", _MEDIUM): "doctest",
        ("exit", _HIGH): "atexit ctypes",
        ("introspection", _MEDIUM): "gc inspect",
    }
)
_ATTRIBUTES: Final = _spread(
    {
        ("exit", _HIGH): "_exit execv execve execvp execvpe execl forkpty killpg posix_spawn",
        ("introspection", _HIGH): "_getframe _current_frames __globals__ __builtins__ f_back f_locals f_globals "
        "tb_frame gi_frame cr_frame f_trace __subclasses__",
        ("runner", _HIGH): "settrace setprofile addaudithook meta_path path_hooks orig_argv excepthook unraisablehook",
        ("dynamic_code", _MEDIUM): "import_module",
    }
)
"""Attributes of whatever object; those of the system are common words elsewhere."""
_SYSTEM: Final = _spread(
    {
        ("exit", _HIGH): "os.abort os.fork posix.abort posix.fork posix.kill signal.raise_signal",
        ("exit", _MEDIUM): "os.kill",
        ("introspection", _HIGH): "gc.get_objects gc.get_referrers gc.get_referents sys.modules sys.__stdout__ "
        "sys.__stderr__",
        ("arguments", _MEDIUM): "sys.argv sys.path",
    }
)
_SYSTEM_MODULES: Final = frozenset(name.partition(".")[0] for name in _SYSTEM) | {"builtins", "subprocess", "importlib"}
_NAMES: Final = frozenset(("eval", "exec", "compile", "__import__", "__builtins__", "builtins"))
_TEXTS = re.compile(r"PYTEST_|_pytest|junitxml|/proc/|conftest|sitecustomize")
_COMPARISONS: Final = {
    **dict.fromkeys(("__eq__", "__lt__", "__le__", "__gt__", "__ge__"), False),
    **dict.fromkeys(("__instancecheck__", "__subclasscheck__"), False),
    "__ne__": True,
}
"""What such a method may always return, because it makes no test pass."""
_READERS: Final = _spread(
    {("test_files", _MEDIUM): "open Path PurePath join listdir scandir walk glob iglob rglob joinpath chdir /"}
)
_TEST_PATH = re.compile(r"(?:[^\s\"']{0,200}/)?(?:tests?|testdata|__tests__)/[^\s\"']{1,200}")
_MAIN_NAMES: Final = ("main", "_main", "cli", "run")
_LEAVING: Final = ("sys", "os", "builtins")
_STREAMS: Final = frozenset(("stdout", "stderr", "stdin"))
_COMPUTED: Final = "ends the process with an exit code that is computed, or in the main function"


class TamperingCritic:
    """Reads changed files; runs nothing.

    With `are_tests_named` every check reports its tests by name, so that none passes by leaving early: then exits are
    MEDIUM.
    """

    def __init__(self, *, are_tests_named: bool = False) -> None:
        self.name = TAMPERING
        self._are_tests_named = are_tests_named

    async def review(self, files: Mapping[str, SourceFile], changes: Mapping[str, bytes | None]) -> Sequence[Finding]:
        """Return the signs in the files of `changes`; see `Critic`."""
        return [
            Finding(rule_id=f"{TAMPERING}.{rule}", severity=severity, path=path, line=line, message=message)
            for path, content in changes.items()
            if content is not None
            for line, (rule, severity, message) in self._find(path, content, files)
        ]

    def _find(self, path: str, content: bytes, files: Mapping[str, SourceFile]) -> Iterator[tuple[int, Sign]]:
        if not is_python(path):
            yield from _find_in_text(path, content)
            return
        if path not in files and _is_shadow(path, files):
            yield 0, ("standard_module", _HIGH, "takes the place of a module of the standard library")
        try:
            tree = parse_python(content)
        except PythonSourceError:
            # Checks and lint say that it is no Python, if it is none for them.
            return
        worst: dict[int, Sign] = {}
        for line, (rule, severity, message) in _PythonSigns(tree, files).find():
            is_caught = self._are_tests_named and rule == "exit" and "exit code" in message
            if line not in worst or worst[line][1] is _MEDIUM:
                worst[line] = (rule, _MEDIUM if is_caught else severity, message)
        yield from worst.items()
        if known := find_known_cases(tree, files):
            line, count = known
            yield line, ("known_cases", _MEDIUM, f"holds {count} cases of the tests with their results")


def _is_shadow(path: str, files: Mapping[str, SourceFile]) -> bool:
    """Return whether a new file is imported instead of a standard module where its folder is on the path."""
    *folders, name = path.split("/")
    if name == "__init__.py" and folders:
        *folders, name = folders
    folder = "".join(f"{part}/" for part in folders)
    return name.partition(".")[0] in sys.stdlib_module_names and f"{folder}__init__.py" not in files


class _PythonSigns:
    """Finds the signs of one Python file beside `files`, the project."""

    def __init__(self, tree: ast.Module, files: Mapping[str, SourceFile]) -> None:
        self._tree = tree
        nodes = list(ast.walk(tree))
        imports = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        own = {part for path in files if not is_protected_by_default(path) for part in _split_module(path)}
        tests = [path for path in files if is_protected_by_default(path)]
        self._test_names = {name for path in tests for name in (path, path.rpartition("/")[2])}
        self._test_folders = {folder for path in tests for folder in path.split("/")[:-1]} - own
        self._test_modules = {part for path in tests if is_python(path) for part in _split_module(path)} - own
        self._modules = {alias.asname or alias.name.partition(".")[0]: alias.name for alias in imports}
        self._foreign = {name for name, full in self._modules.items() if full.partition(".")[0] not in own}
        self._foreign_names = {
            alias.asname or alias.name
            for node in nodes
            if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] not in own
            for alias in node.names
        }
        self._exits = {"SystemExit", "exit", "quit"} | {
            alias.asname or "exit"
            for node in nodes
            if isinstance(node, ast.ImportFrom) and node.module in _LEAVING
            for alias in node.names
            if alias.name == "exit"
        }
        self._main = _collect(node for node in tree.body if _is_main(node))
        self._named = _collect(
            node
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in _MAIN_NAMES
        )
        # `"numpy" in sys.modules` asks and changes nothing.
        self._asked = {
            id(each.comparators[0]) for each in nodes if isinstance(each, ast.Compare) and _is_membership(each)
        }

    def find(self) -> Iterator[tuple[int, Sign]]:
        """Yield lines and signs; one line may have several."""
        for node in ast.walk(self._tree):
            sign = self._inspect(node) or self._inspect_change(node) or self._inspect_comparison(node)
            if sign is None and id(node) not in self._main:
                sign = self._inspect_exit(node)
                sign = ("exit", _MEDIUM, _COMPUTED) if sign and id(node) in self._named else sign
            if sign is not None:
                yield getattr(node, "lineno", 0), sign

    def _inspect(self, node: ast.AST) -> Sign | None:
        sign: Sign | None = None
        match node:
            case ast.Import() | ast.ImportFrom():
                sign = self._inspect_import(node)
            case ast.Attribute(value=ast.Name(id=module), attr=name) if self._get_system(module, name):
                sign = None if id(node) in self._asked else (*self._get_system(module, name), f"uses {module}.{name}")
            case ast.Attribute(attr=name) if name in _ATTRIBUTES:
                sign = (*_ATTRIBUTES[name], f"uses {name}")
            case ast.Name(id=name) if name in _NAMES:
                sign = ("dynamic_code", _HIGH, f"uses {name}")
            case ast.Constant(value=str(text)) if _TEXTS.search(text):
                sign = ("runner", _HIGH, "names the runner of tests, or processes")
            case ast.Constant(value=str(text)) if _TEST_PATH.fullmatch(text) or text.lstrip("./") in self._test_names:
                sign = ("test_files", _MEDIUM, "names a file of the tests")
            case ast.Call() | ast.BinOp(op=ast.Div()):
                sign = self._inspect_call(node)
        return sign

    def _get_system(self, module: str, name: str) -> tuple[str, Severity] | tuple[()]:
        return _SYSTEM.get(f"{self._modules.get(module, '')}.{name}", ())

    def _inspect_import(self, node: ast.Import | ast.ImportFrom) -> Sign | None:
        if isinstance(node, ast.ImportFrom) and node.level:
            return None
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            sign = _SYSTEM.get(f"{modules[0]}.{alias.name}") or _ATTRIBUTES.get(alias.name)
            if sign or (alias.name == "*" and modules[0] in _SYSTEM_MODULES):
                return (*(sign or ("introspection", _HIGH)), f"imports {alias.name}")
        for module in modules:
            if sign := _IMPORTED.get(module.partition(".")[0]):
                return (*sign, f"imports {module}")
            if module.partition(".")[0] in self._test_modules:
                return ("test_files", _MEDIUM, f"imports {module} of the tests")
        return None

    def _inspect_call(self, node: ast.Call | ast.BinOp) -> Sign | None:
        values = node.args if isinstance(node, ast.Call) else [node.left, node.right]
        texts = [
            each.value.strip("./") for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
        called = _get_name(node.func) if isinstance(node, ast.Call) else "/"
        if called in _READERS and not self._test_folders.isdisjoint(texts):
            return ("test_files", _MEDIUM, "names a folder of the tests")
        if (
            called == "kill"
            and values
            and (isinstance(values[0], ast.Constant) or _get_name(values[0]) in {"getpid", "getppid"})
        ):
            return ("exit", _HIGH, "kills its own process")
        if called not in {"getattr", "setattr", "delattr", "vars"} or not values:
            return None
        module = self._modules.get(values[0].id, "") if isinstance(values[0], ast.Name) else ""
        name = str(values[1].value) if len(values) > 1 and isinstance(values[1], ast.Constant) else ""
        if sign := _ATTRIBUTES.get(name) or _SYSTEM.get(f"{module}.{name}"):
            return (*sign, f"uses {name}")
        is_changed = (
            called in {"setattr", "delattr", "vars"}
            and isinstance(values[0], ast.Name)
            and values[0].id in self._foreign
        )
        if is_changed or (not name and module in _SYSTEM_MODULES):
            return ("patching", _HIGH, "reaches an attribute of a module by its name")
        return None

    def _inspect_change(self, node: ast.AST) -> Sign | None:
        """Return how a node changes a module that is not the project's."""
        targets: Sequence[ast.AST] = ()
        if isinstance(node, ast.Assign | ast.Delete):
            targets = [
                one
                for each in node.targets
                for one in (each.elts if isinstance(each, ast.Tuple | ast.List) else [each])
            ]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For):
            targets = [node.target]
        elif isinstance(node, ast.Attribute) and node.attr == "__dict__":
            targets = [node]
        constant = node.value if isinstance(node, ast.Assign) else None
        is_setting = isinstance(constant, ast.Constant) and constant.value is not None
        for target in targets:
            match target:
                case ast.Attribute(value=ast.Name(id=module), attr=name) if module in self._foreign:
                    if name not in _STREAMS:
                        return ("patching", _MEDIUM if is_setting else _HIGH, f"assigns to {module}.{name}")
                case ast.Attribute(attr=name) if _get_root(target) in self._foreign | self._foreign_names:
                    return ("patching", _MEDIUM, f"assigns to {name} of what it imports")
        return None

    def _inspect_comparison(self, node: ast.AST) -> Sign | None:
        found: list[tuple[str, ast.AST | None]] = []
        match node:
            case ast.FunctionDef(name=name):
                found = [(name, node)]
            case ast.Assign(targets=[target], value=ast.Lambda() as value):
                found = [(_get_name(target), value)]
            case ast.Dict(keys=keys, values=values):
                found = [
                    (str(key.value), made)
                    for key, made in zip(keys, values, strict=True)
                    if isinstance(key, ast.Constant)
                ]
        for name, made in found:
            if not isinstance(made, ast.FunctionDef | ast.Lambda) or name not in _COMPARISONS:
                continue
            if _holds_always(made, harmless=_COMPARISONS[name]):
                return ("comparison", _HIGH, f"defines {name} so that it holds for everything")
        return None

    def _inspect_exit(self, node: ast.AST) -> Sign | None:
        """Return how a node may end the process as if all were well; an exit with an error is none."""
        args: Sequence[ast.expr] = ()
        match node:
            case ast.Raise(exc=ast.Name(id="SystemExit")):
                pass
            case ast.Call(func=ast.Name(id=name), args=args) if name in self._exits:
                pass
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="exit"), args=args) if (
                self._modules.get(name, name) in _LEAVING
            ):
                pass
            case _:
                return None
        if args and not isinstance(args[0], ast.Constant):
            return ("exit", _MEDIUM, _COMPUTED)
        if any(isinstance(one, ast.Constant) and one.value not in {0, None} for one in args[:1]):
            return None
        return ("exit", _HIGH, "may end the process with exit code 0")


def _split_module(path: str) -> Sequence[str]:
    return path.removesuffix(".py").split("/")


def _collect(nodes: Iterator[ast.AST]) -> Collection[int]:
    return {id(inner) for node in nodes for inner in ast.walk(node)}


def _get_name(node: ast.AST) -> str:
    """Return the last name of a name, an attribute or a call of one; empty for others."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _get_root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_main(node: ast.AST) -> bool:
    """Return whether a statement is `if __name__ == "__main__":`, which no import runs."""
    return isinstance(node, ast.If) and any(
        isinstance(one, ast.Name) and one.id == "__name__" for one in ast.walk(node.test)
    )


def _is_membership(node: ast.Compare) -> bool:
    is_runner = isinstance(node.left, ast.Constant) and node.left.value in _IMPORTED
    return len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.NotIn) and not is_runner


def _holds_always(node: ast.FunctionDef | ast.Lambda, *, harmless: bool) -> bool:
    """Return whether a comparison does not look at what it is compared with, and does not merely return `harmless`."""
    names = [*node.args.posonlyargs, *node.args.args]
    other = names[1].arg if len(names) > 1 else ""
    body = node.body if isinstance(node, ast.FunctionDef) else [node]
    inner = [one for each in body for one in ast.walk(each)]
    returned = [
        one.body if isinstance(one, ast.Lambda) else one.value
        for one in inner
        if isinstance(one, ast.Return | ast.Lambda)
    ]
    if any(isinstance(one, ast.Raise) for one in inner) or not returned:
        return False
    if all(_is_harmless(one, harmless) for one in returned):
        return False
    if any(_is_settled(one) for one in returned):
        return True
    compared = {
        id(part) for one in inner if isinstance(one, ast.Compare) and _is_with_itself(one) for part in ast.walk(one)
    }
    return not any(isinstance(one, ast.Name) and one.id == other and id(one) not in compared for one in inner)


def _is_harmless(node: ast.expr | None, harmless: bool) -> bool:  # noqa: FBT001 - a row of a table
    is_left = isinstance(node, ast.Name) and node.id == "NotImplemented"
    return is_left or node is None or (isinstance(node, ast.Constant) and bool(node.value) is harmless)


def _is_settled(node: ast.expr | None) -> bool:
    """Return whether `or` makes an expression true whatever else stands there."""
    if not isinstance(node, ast.BoolOp) or not isinstance(node.op, ast.Or):
        return False
    return any(isinstance(one, ast.Constant) and one.value for one in node.values)


def _is_with_itself(node: ast.Compare) -> bool:
    return any(ast.dump(node.left) == ast.dump(one) for one in node.comparators)


_OTHERS: Final = (
    (
        (".js", ".cjs", ".mjs", ".jsx", ".ts", ".cts", ".mts", ".tsx"),
        {
            ("exit", _HIGH): r"process\s*\??\.\s*(?:exit(?!Code)(?!\s*\(\s*[^)\s0])|abort|kill|reallyExit|binding|"
            r"exitCode\s*=\s*(?:0|false|null|undefined)\b)|process\s*(?:\?\.)?\s*\[\s*['\"`](?:exit|abort|kill|binding)",
            ("dynamic_code", _HIGH): r"(?<![.\w$])eval\s*\(|(?:globalThis|global|window)\s*\.\s*eval\b|"
            r"new\s+Function\b|\bvm\b.*\brun",
            ("runner", _HIGH): r"node:test|require\s*\.\s*cache|/proc/|NODE_TEST",
            ("exit", _MEDIUM): r"process\s*\??\.\s*(?:exit\s*\(\s*[A-Za-z_$]|exitCode\s*=\s*[A-Za-z_$]|"
            r"on\s*\(\s*['\"`](?:exit|beforeExit|uncaught))|process\s*(?:\?\.)?\s*\[|\bexit\b.*=\s*process\b|"
            r"=\s*process\s*;?\s*$|child_process",
            ("arguments", _MEDIUM): r"process\s*\??\.\s*argv",
        },
        re.compile(r"^\s*(?:async\s+)?function\s+main\s*\(|require\.main\s*===?\s*module"),
    ),
    (
        (".go",),
        {
            ("exit", _HIGH): r"os\s*\.\s*Exit(?!\s*\(\s*[^)\s0])|syscall\s*\.(?!\s*SIG[A-Z])|runtime\.Goexit",
            ("runner", _HIGH): r"\"testing\"|\"unsafe\"|go:linkname|/proc/|--- PASS",
            ("exit", _MEDIUM): r"os\s*\.\s*Exit\s*\(\s*[A-Za-z_]",
            ("arguments", _MEDIUM): r"os\s*\.\s*Args\b",
        },
        re.compile(r"^func\s+main\s*\("),
    ),
    (
        (".java", ".kt", ".scala", ".groovy"),
        {
            ("exit", _HIGH): r"System\s*\.\s*exit(?!\s*\(\s*[^)\s0])|\bhalt\s*\(|ProcessHandle",
            ("runner", _HIGH): r"org\.junit|/proc/|surefire",
            ("introspection", _HIGH): r"setAccessible|StackWalker",
            ("introspection", _MEDIUM): r"java\.lang\.reflect",
            ("exit", _MEDIUM): r"System\s*\.\s*exit\s*\(\s*[A-Za-z_]|addShutdownHook",
        },
        re.compile(r"\bstatic\s+void\s+main\s*\(|^\s*fun\s+main\s*\("),
    ),
)
"""By suffixes: signs in words of a line, and how the main function begins, which no test runs."""


def _find_in_text(path: str, content: bytes) -> Iterator[tuple[int, Sign]]:
    row = next((row for row in _OTHERS if path.endswith(row[0])), None)
    if row is None:
        return
    _, patterns, main = row
    in_main = -1
    for number, line in enumerate(_blank_comments(content.decode("utf-8", "replace")), start=1):
        indent = len(line) - len(line.lstrip())
        if main.search(line):
            in_main = indent if line.count("{") > line.count("}") else -1
        elif line.strip() and indent <= in_main:
            # Also where its last brace is missed: what stands outside of it is not excused.
            in_main = -1
        for (rule, severity), pattern in patterns.items():
            if found := re.search(pattern, line[:10_000]):
                is_left = in_main >= 0 and rule == "exit"
                yield number, (rule, _MEDIUM if is_left else severity, f"uses {found[0][:60]}")
                break


def _blank_comments(text: str) -> Iterator[str]:
    """Yield the lines without what is certainly a comment: no text that began before it can hold it."""
    is_certain, is_inside = True, False
    for line in text.splitlines():
        code = line
        if is_inside or (is_certain and line.lstrip().startswith("/*")):
            _, mark, code = line.partition("*/")
            is_inside = not mark
        is_certain = is_certain and not any(mark in code for mark in ("`", '"""')) and not code.endswith("\\")
        code, mark, comment = code.partition("//")
        if mark and (any(char in code for char in "\"'`/*") or comment.startswith("go:")):
            code = f"{code}//{comment}"
        yield code
