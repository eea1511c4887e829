"""The critics of one repair: the checks on the original, on candidates and on the winner, and static analysis."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from reasond_server.errors.base import InternalError
from reasond_server.repair.critics.code_reviews import Reviews, digest_changes, perform_directly
from reasond_server.repair.critics.linting import LintCritic
from reasond_server.repair.edits.python_sources import PythonSourceError, is_python, parse_python
from reasond_server.repair.results.baseline import CheckRuns, conclude_baseline
from reasond_server.repair.results.check_runner import CheckRunner
from reasond_server.repair.results.gate import TAMPERING, compare_with_baseline, counts, judge_candidate
from reasond_server.repair.results.outcomes import read_outcome, write_outcome
from reasond_server.search.waves import run_wave
from reasond_server.telemetry.observers import UNOBSERVED
from reasond_server.types.repairs import CheckRole, CheckStatus, Finding, Severity

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from reasond_server.repair.critics.code_reviews import Perform
    from reasond_server.repair.critics.critic_port import Critic
    from reasond_server.repair.results.outcomes import Baseline, CheckOutcome, Critique
    from reasond_server.sandbox.sandbox import ExecutionEnvironment, Sandbox
    from reasond_server.sandbox.workspaces import SourceTree
    from reasond_server.telemetry.observers import RepairObserver
    from reasond_server.types.repairs import Check
    from reasond_server.types.snapshots import SourceFile

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
_REVIEWED: Final = frozenset(
    ("uses sys.argv", "imports argv", "imports inspect", "uses import_module", "imports import_module")
)
_MAY_EXIT: Final = "ends the process with an exit code that is computed, or in the main function"
_READS_TESTS: Final = "names a file of the tests"
"""What repairs do as well: it is told, and a person should look at it."""
_TEST_PATH = re.compile(r"(?:[^\s\"']{0,200}/)?(?:tests?|testdata|__tests__)/[^\s\"']{1,200}")
_MAIN_NAMES: Final = ("main", "_main", "cli", "run")
_STREAMS: Final = frozenset(("stdout", "stderr", "stdin"))
_OTHERS: Final = (
    (
        (".js", ".cjs", ".mjs", ".jsx", ".ts", ".cts", ".mts", ".tsx"),
        re.compile(
            r"process\s*\.\s*(?:exit(?!\s*\(\s*[^)\s0])|abort|kill|reallyExit|binding|"
            r"on\s*\(\s*['\"`](?:exit|beforeExit|uncaught))|\beval\s*\(|new\s+Function\b|"
            r"node:test|child_process|require\s*\.\s*cache|\bvm\b.*\brun|/proc/|NODE_TEST"
        ),
        re.compile(r"process\s*\.\s*(?:argv|exit\s*\(\s*[A-Za-z_$])"),
    ),
    (
        (".go",),
        re.compile(
            r"os\s*\.\s*Exit(?!\s*\(\s*[^)\s0])|syscall\s*\.|\"testing\"|\"unsafe\"|go:linkname|/proc/|--- PASS|"
            r"runtime\.Goexit"
        ),
        re.compile(r"os\s*\.\s*(?:Args\b|Exit\s*\(\s*[A-Za-z_])"),
    ),
    (
        (".java", ".kt", ".scala", ".groovy"),
        re.compile(
            r"System\s*\.\s*exit(?!\s*\(\s*[^)\s0])|\bhalt\s*\(|addShutdownHook|org\.junit|java\.lang\.reflect|"
            r"setAccessible|ProcessHandle|/proc/|StackWalker|surefire"
        ),
        re.compile(r"System\s*\.\s*exit\s*\(\s*[A-Za-z_]"),
    ),
)
"""By suffixes: what certainly cheats, and what repairs do as well."""


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
                own = {part for each in files for part in each.removesuffix(".py").split("/")}
                found.extend(_make(path, line, message) for line, message in _find_in_python(content, own))
            else:
                found.extend(_find_in_text(path, content))
        return found


def _make(path: str, line: int, message: str, severity: Severity | None = None) -> Finding:
    """Return a finding: HIGH for what certainly cheats, MEDIUM for what needs a person's eyes."""
    is_certain = message not in _REVIEWED and message not in {_MAY_EXIT, _READS_TESTS}
    severity = severity or (Severity.HIGH if is_certain else Severity.MEDIUM)
    return Finding(rule_id=TAMPERING, severity=severity, path=path, line=line, message=message)


def _is_shadow(path: str, files: Mapping[str, SourceFile]) -> bool:
    """Return whether a new file is imported instead of a standard module where its folder is on the path."""
    *folders, name = path.split("/")
    if name == "__init__.py" and folders:
        *folders, name = folders
    folder = "".join(f"{part}/" for part in folders)
    return name.partition(".")[0] in sys.stdlib_module_names and f"{folder}__init__.py" not in files


def _find_in_python(content: bytes, own: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield lines and messages, at most one for each line; `own` are names of the project's modules."""
    try:
        tree = parse_python(content)
    except PythonSourceError:
        # Checks and lint say that it is no Python, if it is none for them.
        return
    imports = [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    system = {alias.asname or alias.name: _SYSTEM[alias.name] for alias in imports if alias.name in _SYSTEM}
    foreign = {alias.asname or alias.name.partition(".")[0] for alias in imports} - set(own)
    main = {id(inner) for node in tree.body if _is_main(node) for inner in ast.walk(node)}
    named = {
        id(inner)
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in _MAIN_NAMES
        for inner in ast.walk(node)
    }
    told: set[int] = set()
    for node in ast.walk(tree):
        message = _inspect(node, system) or _inspect_assignment(node, foreign)
        if not message and id(node) not in main:
            message = _inspect_exit(node)
            message = _MAY_EXIT if message and id(node) in named else message
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
        case ast.Constant(value=str(text)) if _TEST_PATH.fullmatch(text):
            message = _READS_TESTS
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
        case (
            ast.Call(func=ast.Name(id="SystemExit" | "exit" | "quit"), args=args)
            | ast.Call(func=ast.Attribute(value=ast.Name(id="sys" | "os" | "builtins"), attr="exit"), args=args)
        ):
            if args and not isinstance(args[0], ast.Constant):
                return _MAY_EXIT
            is_error = any(isinstance(one, ast.Constant) and one.value not in {0, None} for one in args[:1])
            return "" if is_error else "may end the process with exit code 0"
    return ""


def _inspect_assignment(node: ast.AST, foreign: Collection[str]) -> str:
    """Return how a node changes a module that is not the project's; empty if it does not."""
    targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else ()
    for target in targets:
        match target:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in foreign and name not in _STREAMS:
                return f"assigns to {module}.{name}"
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
    if isinstance(returned, ast.Constant):
        return returned.value is (node.name != "__ne__")
    # An expression that reads nothing, such as bool(1) or 1 == 1, is a constant too.
    names = [one.id for one in ast.walk(returned) if isinstance(one, ast.Name)] if returned else [""]
    return all(name in {"bool", "int", "not"} for name in names)


def _find_in_text(path: str, content: bytes) -> Iterator[Finding]:
    patterns = next((row[1:] for row in _OTHERS if path.endswith(row[0])), ())
    if not patterns:
        return
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
        code = _cut_comment(line[:10_000])
        for pattern, severity in zip(patterns, (Severity.HIGH, Severity.MEDIUM), strict=True):
            found = pattern.search(code)
            if found:
                yield _make(path, number, f"uses {found[0][:60]}", severity)
                break


def _cut_comment(line: str) -> str:
    """Return a line without its comment, if it is certain where that begins: nothing before it can hold a text."""
    code, mark, _ = line.partition("//")
    is_certain = bool(mark) and not any(char in code for char in "\"'`/*")
    return code if is_certain and not line.lstrip().startswith("//go:") else line


ResultT = TypeVar("ResultT")
CHECK: Final = "check"
"""Kind of the effect of one run of a check."""

_NO_LINT: Final = "Static analysis was left out: ruff is not installed on this server (extra `repair`)."
_PYTHON_ONLY: Final = "Static analysis covers Python alone; the other changed files were judged by checks only."


class Critics:
    """Judges the candidates of one repair.

    Args:
        sandbox: runs the checks.
        environment: where they run.
        tree: the files of the snapshot on the disk.
        files: the same files by path.
        checks: all checks of the task, each with its `argv`.
        permits: bounds the runs of checks of the whole server (`max_parallel_checks`).
        critic_timeout_ms: the least time limit of a check.
        allow_unreproduced: whether it is no error that no check fails on the original.
        linter: absolute path of ruff; None leaves static analysis out, with a warning.
        critics: further critics, which packages have added.
        perform: makes each run of a check, and each review, an effect of the run.
        observer: receives each run of a check that was really made.

    Attributes:
        level: the level of the sandbox.
        checks_run: how many runs of checks were made, recorded ones included.
        check_cpu_s: their processor time.
    """

    def __init__(
        self,
        *,
        sandbox: Sandbox,
        environment: ExecutionEnvironment,
        tree: SourceTree,
        files: Mapping[str, SourceFile],
        checks: Sequence[Check],
        permits: asyncio.Semaphore,
        critic_timeout_ms: int = 2000,
        allow_unreproduced: bool = False,
        linter: Path | None = None,
        critics: Sequence[Critic] = (),
        perform: Perform = perform_directly,
        observer: RepairObserver = UNOBSERVED,
    ) -> None:
        self.level = sandbox.level
        self._observer = observer
        self._runner = CheckRunner(sandbox=sandbox, environment=environment, tree=tree, permits=permits)
        self._cpu_limit_s = environment.limits.cpu_s
        self._checks = {check.name: check for check in checks}
        self._least_s = critic_timeout_ms / 1000
        self._allow_unreproduced = allow_unreproduced
        self._has_linter = linter is not None
        self._perform = perform
        lint = [LintCritic(program=linter, sandbox=sandbox, tree=tree, permits=permits)] if linter else []
        self._reviews = Reviews(critics=[*lint, TamperingCritic(), *critics], files=files, perform=perform)
        self._baseline: Baseline | None = None
        self._has_other_files = False
        self._has_python = any(is_python(path) for path in files)
        self.checks_run = 0
        self.check_cpu_s = 0.0

    @property
    def warnings(self) -> Sequence[str]:
        """What the caller should know of what was judged so far."""
        return (
            *(self._baseline.warnings if self._baseline else ()),
            *((_NO_LINT,) if self._has_python and not self._has_linter else ()),
            *((_PYTHON_ONLY,) if self._has_other_files else ()),
            *self._reviews.warnings,
        )

    @property
    def worst_cost(self) -> Mapping[str, float]:
        """The most that judging one candidate takes, in the resources of `search.Cost`; to be reserved before."""
        count = len(self._list_checks(is_held_out=False))
        return {"checks": count, "check_cpu_s": count * self._cpu_limit_s}

    async def measure_baseline(self) -> Baseline:
        """Run every check twice on the original and return what follows for candidates.

        One that did not end in time is not run again: that would cost its limit twice and tell nothing new.

        Raises:
            CheckUnusableError: a check cannot be run, or its result cannot be read.
            NotReproducedError: no check of the role REPRODUCE fails.
        """
        checks = list(self._checks.values())
        pairs = await _run_all([partial(self._run_twice, check) for check in checks])
        self._baseline = conclude_baseline(
            pairs,
            timeouts_s={pair.check.name: self._limit_candidates(pair) for pair in pairs},
            allow_unreproduced=self._allow_unreproduced,
        )
        return self._baseline

    def resume_from(self, baseline: Baseline) -> None:
        """Judge by a baseline that was measured before."""
        self._baseline = baseline

    async def judge(self, changes: Mapping[str, bytes | None]) -> Critique:
        """Return what checks and critics say of the original with `changes`; held-out checks are not run.

        Raises:
            InternalError: the baseline was not measured.
        """
        baseline = self._require_baseline()
        self._has_other_files |= any(not is_python(path) for path in changes)
        checks = self._list_checks(is_held_out=False)
        outcomes: list[CheckOutcome] = []
        findings: list[Finding] = []

        async def run_checks() -> None:
            outcomes.extend(await _run_all([partial(self._run_compared, check, changes) for check in checks]))

        async def review() -> None:
            findings.extend(await self._reviews.find_new(changes))

        await _run_all([run_checks, review])
        return judge_candidate(outcomes, findings, baseline)

    async def judge_held_out(self, changes: Mapping[str, bytes | None]) -> Sequence[CheckOutcome]:
        """Return how the held-out checks end on the original with `changes`; none if there are none that count.

        Only the winner may be judged so, once, and nothing of it may reach the model.

        Raises:
            InternalError: the baseline was not measured.
        """
        self._require_baseline()
        checks = self._list_checks(is_held_out=True)
        return await _run_all([partial(self._run_compared, check, changes) for check in checks])

    async def _run_twice(self, check: Check) -> CheckRuns:
        run = partial(self._run, check, {}, limit_s=self._runner.limit_first(check))
        first = await run()
        second = first if first.status is CheckStatus.TIMED_OUT else await run()
        return CheckRuns(check=check, first=first, second=second)

    def _require_baseline(self) -> Baseline:
        if self._baseline is None:
            raise InternalError("candidates were judged before the baseline was measured")
        return self._baseline

    def _list_checks(self, *, is_held_out: bool) -> Sequence[Check]:
        """Return the checks that say something of candidates: the held-out ones, or those that the search may see."""
        baseline = self._require_baseline()
        return [
            check
            for check in self._checks.values()
            if (check.role is CheckRole.HELD_OUT) is is_held_out and counts(check.name, baseline)
        ]

    def _limit_candidates(self, pair: CheckRuns) -> float:
        longest_s = max(pair.first.elapsed_s, pair.second.elapsed_s)
        return self._runner.limit_later(pair.check, baseline_s=longest_s, least_s=self._least_s)

    async def _run_compared(self, check: Check, changes: Mapping[str, bytes | None]) -> CheckOutcome:
        baseline = self._require_baseline()
        outcome = await self._run(check, changes, limit_s=baseline.timeouts_s[check.name])
        return compare_with_baseline(outcome, baseline)

    async def _run(self, check: Check, changes: Mapping[str, bytes | None], *, limit_s: float) -> CheckOutcome:
        """Run a check as an effect; the limit is no part of its digest, because it depends on times."""
        row = [check.name, check.role, list(check.argv), check.format, digest_changes(changes)]
        digest = hashlib.sha256(json.dumps(row).encode()).hexdigest()

        async def run() -> str:
            outcome = await self._runner.run(check, changes, limit_s=limit_s)
            self._observer.check_ended(self.level.value, outcome.status.value, outcome.elapsed_s)
            return write_outcome(outcome)

        outcome = read_outcome(await self._perform(CHECK, digest, run))
        self.checks_run += outcome.runs
        self.check_cpu_s += outcome.cpu_s
        return outcome


async def _run_all(calls: Sequence[Callable[[], Awaitable[ResultT]]]) -> Sequence[ResultT]:
    """Return the results of all `calls` in order; the permits bound how many run at once."""
    return await run_wave(calls, at_once=max(len(calls), 1), failures=())
