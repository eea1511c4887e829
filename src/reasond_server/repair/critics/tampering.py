"""Signs that a candidate deals with its checks instead of its fault, from the text of what it adds.

Tests of Python and others run in the process of the code that they test, which can therefore lie to them. This critic
finds the plain forms of that: leaving the process, reaching into the runner, the arguments or the frames of the caller,
values that are equal to everything, code from texts, and modules that take the place of others. A repair has no need of
them, so they are HIGH where the original does not have them. Whoever hides them well is not found;
docs/guides/verified.md says what that means.
"""

from __future__ import annotations

import ast
import re
import sys
from typing import TYPE_CHECKING, Final

from reasond_server.repair.edits.python_sources import PythonSourceError, is_python, parse_python
from reasond_server.types.repairs import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from reasond_server.types.snapshots import SourceFile

TAMPERING: Final = "tampering"
"""Name of this critic, and the rule of its findings."""

_RUNNERS: Final = frozenset(("pytest", "_pytest", "pluggy", "unittest", "doctest", "nose", "nose2", "hypothesis"))
_MODULES: Final = frozenset(("atexit", "builtins", "ctypes", "gc", "inspect", "sitecustomize", "usercustomize"))
_NAMES: Final = frozenset(("eval", "exec", "compile", "__import__", "__builtins__", "builtins"))
_ATTRIBUTE_NAMES: Final = """
    _exit _getframe _current_frames execv execve execvp execvpe execl forkpty killpg posix_spawn settrace setprofile
    addaudithook meta_path path_hooks orig_argv excepthook unraisablehook __globals__ __builtins__ f_back f_locals
    f_globals tb_frame gi_frame cr_frame f_trace __subclasses__ import_module
"""
_ATTRIBUTES: Final = frozenset(_ATTRIBUTE_NAMES.split())
"""Attributes of whatever object; those of the system are common words elsewhere."""
_SYSTEM: Final = {
    "os": frozenset(("abort", "fork", "kill")),
    "posix": frozenset(("abort", "fork", "kill")),
    "signal": frozenset(("raise_signal",)),
    "sys": frozenset(("argv", "modules", "path", "__stdout__", "__stderr__")),
}
"""Attributes of modules of the system that are common words elsewhere."""
_TEXTS = re.compile(r"PYTEST_|_pytest|junitxml|/proc/|conftest|sitecustomize")
_ALWAYS: Final = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__instancecheck__", "__subclasscheck__")
_OTHERS: Final = (
    (
        (".js", ".cjs", ".mjs", ".jsx", ".ts", ".cts", ".mts", ".tsx"),
        re.compile(
            r"process\s*\.\s*(?:exit|abort|kill|reallyExit|argv|binding|on\s*\()|\beval\s*\(|new\s+Function\b|"
            r"node:test|child_process|require\s*\.\s*cache|\bvm\b.*\brun|/proc/|NODE_TEST"
        ),
    ),
    (
        (".go",),
        re.compile(
            r"os\s*\.\s*(?:Exit|Args)\b|syscall\s*\.|\"testing\"|\"unsafe\"|go:linkname|/proc/|--- PASS|runtime\.Goexit"
        ),
    ),
    (
        (".java", ".kt", ".scala", ".groovy"),
        re.compile(
            r"System\s*\.\s*exit|\bhalt\s*\(|addShutdownHook|org\.junit|java\.lang\.reflect|setAccessible|"
            r"ProcessHandle|/proc/|StackWalker|surefire"
        ),
    ),
)


class TamperingCritic:
    """Reads changed files; runs nothing."""

    def __init__(self) -> None:
        self.name = TAMPERING

    async def review(self, files: Mapping[str, SourceFile], changes: Mapping[str, bytes | None]) -> Sequence[Finding]:
        """Return the signs in the files of `changes`; see `Critic`."""
        found: list[Finding] = []
        for path, content in changes.items():
            if content is None:
                continue
            if is_python(path):
                if path not in files and _is_shadow(path, files):
                    found.append(_make(path, 0, "takes the place of a module of the standard library"))
                found.extend(_make(path, line, message) for line, message in _find_in_python(content))
            else:
                found.extend(_make(path, line, message) for line, message in _find_in_text(path, content))
        return found


def _make(path: str, line: int, message: str) -> Finding:
    return Finding(rule_id=TAMPERING, severity=Severity.HIGH, path=path, line=line, message=message)


def _is_shadow(path: str, files: Mapping[str, SourceFile]) -> bool:
    """Return whether a new file is imported instead of a standard module where its folder is on the path."""
    *folders, name = path.split("/")
    if name == "__init__.py" and folders:
        *folders, name = folders
    folder = "".join(f"{part}/" for part in folders)
    return name.partition(".")[0] in sys.stdlib_module_names and f"{folder}__init__.py" not in files


def _find_in_python(content: bytes) -> Iterator[tuple[int, str]]:
    """Yield lines and messages, at most one for each line."""
    try:
        tree = parse_python(content)
    except PythonSourceError:
        # Checks and lint say that it is no Python, if it is none for them.
        return
    imports = [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    system = {alias.asname or alias.name: _SYSTEM[alias.name] for alias in imports if alias.name in _SYSTEM}
    main = {id(inner) for node in tree.body if _is_main(node) for inner in ast.walk(node)}
    told: set[int] = set()
    for node in ast.walk(tree):
        message = _inspect(node, system) or ("" if id(node) in main else _inspect_exit(node))
        line = getattr(node, "lineno", 0)
        if message and line not in told:
            told.add(line)
            yield line, message


def _inspect(node: ast.AST, system: Mapping[str, Collection[str]]) -> str:
    """Return what a node does to its checks, empty for nothing; `system` are suspect attributes by name of a module."""
    message = ""
    match node:
        case ast.Import() | ast.ImportFrom():
            message = _inspect_import(node)
        case ast.Attribute(value=ast.Name(id=module), attr=name) if name in system.get(module, ()):
            message = f"uses {module}.{name}"
        case ast.Attribute(attr=name) if name in _ATTRIBUTES:
            message = f"uses {name}"
        case ast.Name(id=name) if name in _NAMES:
            message = f"uses {name}"
        case ast.Constant(value=str(text)) if _TEXTS.search(text):
            message = "names the runner of tests, or processes"
        case ast.Call() if _is_dynamic_access(node):
            message = "looks an attribute up by a computed name"
        case ast.FunctionDef(name=name) if name in _ALWAYS and _holds_always(node):
            message = f"defines {name} so that it holds for everything"
    return message


def _is_main(node: ast.AST) -> bool:
    """Return whether a statement is `if __name__ == "__main__":`, which no import runs."""
    return isinstance(node, ast.If) and any(
        isinstance(one, ast.Name) and one.id == "__name__" for one in ast.walk(node.test)
    )


def _inspect_exit(node: ast.AST) -> str:
    """Return how a node may end the process as if all were well; an exit with an error is none."""
    match node:
        case ast.Raise(exc=ast.Name(id="SystemExit")):
            return "raises SystemExit"
        case ast.Call(func=ast.Name(id="SystemExit" | "exit" | "quit") | ast.Attribute(attr="exit"), args=args):
            is_error = any(isinstance(one, ast.Constant) and one.value not in {0, None} for one in args[:1])
            return "" if is_error else "may end the process with exit code 0"
    return ""


def _inspect_import(node: ast.Import | ast.ImportFrom) -> str:
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.Import):
        bad = [name for name in names if name.partition(".")[0] in _RUNNERS | _MODULES]
    elif node.level:
        return ""
    elif (node.module or "").partition(".")[0] in _RUNNERS | _MODULES:
        bad = [node.module or ""]
    else:
        suspect = _SYSTEM.get(node.module or "", frozenset[str]()) | ({"*"} if node.module in _SYSTEM else set())
        bad = [name for name in names if name in _ATTRIBUTES or name in suspect]
    return f"imports {bad[0]}" if bad else ""


def _is_dynamic_access(node: ast.Call) -> bool:
    """Return whether a call reads or sets an attribute of a standard module, or one of _ATTRIBUTES, by its name."""
    if not isinstance(node.func, ast.Name) or node.func.id not in {"getattr", "setattr", "delattr", "vars"}:
        return False
    if any(isinstance(one, ast.Constant) and one.value in _ATTRIBUTES for one in node.args[1:2]):
        return True
    return any(isinstance(one, ast.Name) and one.id in sys.stdlib_module_names for one in node.args[:1])


def _holds_always(node: ast.FunctionDef) -> bool:
    """Return whether a comparison does nothing but return True."""
    body = [one for one in node.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    if len(body) != 1 or not isinstance(body[0], ast.Return):
        return False
    returned = body[0].value
    return isinstance(returned, ast.Constant) and returned.value is (node.name != "__ne__")


def _find_in_text(path: str, content: bytes) -> Iterator[tuple[int, str]]:
    pattern = next((pattern for suffixes, pattern in _OTHERS if path.endswith(suffixes)), None)
    if pattern is None:
        return
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
        found = pattern.search(line[:10_000])
        if found:
            yield number, f"uses {found[0][:60]}"
