"""Cases for `benchmarks.repair_search`: real functions with one or two faults, their tests, and the known repair.

The functions are read from the standard library of the Python that runs this (licensed under the PSF License Version 2;
nothing of it is copied into this repository): each subject is some functions with all they need of their module, as
`ast.unparse` writes them, without docstrings. A fault is one edit by `reasond_server.demo.mutations` that makes a
visible test fail. A test is an expression whose value is that of the unharmed functions; every other one is held out.
repair_subjects.jsonl beside this file has functions and tests.

Code is run in a forked process with limits on time and memory. That is no sandbox: it is enough for code that was made
from the standard library by edits of operators, names and constants.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import os
import random
import resource
import select
import signal
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from reasond_server.demo.mutations import find_mutations
from reasond_server.repair.edits.python_sources import PythonSourceError, compute_code_key, parse_python

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import ModuleType


SUBJECTS: Final = Path(__file__).resolve().parent / "repair_subjects.jsonl"
PATH: Final = "code.py"
CASES_OF_SUBJECT: Final = 6
DOUBLES_OF_SUBJECT: Final = 2
WRONG_EDITS: Final = 30
_CPU_S: Final = 0.15
_WALL_S: Final = 20.0
_MEMORY_BYTES: Final = 2 * 1024**3
_MAX_VALUE: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Functions of a module of the standard library, and expressions that test them."""

    module: str
    names: tuple[str, ...]
    tests: tuple[str, ...]


def read_subjects() -> Sequence[Subject]:
    """Return the subjects that cases are made of."""
    rows = map(json.loads, SUBJECTS.read_text("utf-8").splitlines())
    return [Subject(module=row["module"], names=tuple(row["names"]), tests=tuple(row["tests"])) for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A faulty source with its tests.

    `stages` are the sources by the set of faults that are repaired, as bits: 0 is the faulty one, the last one the
    repair. `wrong` are other edits by the same set, as many as a proposer may choose from.
    """

    name: str
    module: str
    visible: Mapping[str, str]
    held_out: Mapping[str, str]
    stages: Sequence[str]
    wrong: Sequence[Sequence[str]]

    @property
    def faults(self) -> int:
        """How many edits are needed."""
        return (len(self.stages) - 1).bit_length()


@dataclass(slots=True)
class Laboratory:
    """Runs tests, once for each source and set of tests with one key."""

    runs: int = 0
    _results: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def run(self, source: str, tests: Mapping[str, str] | Sequence[str]) -> Mapping[str, str]:
        """Return the values of the tests as text, by expression; a test without a value is left out."""
        asked = tuple(tests)
        key = hashlib.sha256("\0".join((key_of_source(source), *asked)).encode()).hexdigest()
        if key not in self._results:
            self.runs += 1
            self._results[key] = _run_forked(source, asked)
        return self._results[key]

    def list_failing(self, source: str, tests: Mapping[str, str]) -> list[str]:
        """Return the tests that have another value than they should."""
        values = self.run(source, tests)
        return [test for test, wanted in tests.items() if values.get(test) != wanted]


@cache
def key_of_source(source: str) -> str:
    """Return the key by which candidates count as the same code."""
    return compute_code_key({PATH: source.encode()}, {})


def build_cases(laboratory: Laboratory, *, faults: int, limit: int = 10_000) -> list[Case]:
    """Return the cases with one or two faults, the same ones in every run with one version of Python."""
    cases: list[Case] = []
    for subject in read_subjects():
        if len(cases) < limit:
            cases += _build_cases_of(subject, laboratory, faults=faults)
    return cases[:limit]


def _build_cases_of(subject: Subject, laboratory: Laboratory, *, faults: int) -> Iterator[Case]:
    source = _extract(subject)
    values = laboratory.run(source, subject.tests)
    # A value that holds an address or the order of a set is no test.
    tests = [test for test in subject.tests if test in values and " at 0x" not in values[test]]
    visible = {test: values[test] for test in tests[::2]}
    held_out = {test: values[test] for test in tests[1::2]}
    name = f"{subject.module}.{subject.names[0]}"
    lot = random.Random(f"{name}:{faults}")  # noqa: S311 - a benchmark, no secret
    edits = _draw_edits(source, lot)
    found: dict[str, Case] = {}
    most = CASES_OF_SUBJECT if faults == 1 else DOUBLES_OF_SUBJECT
    for stages in _list_stages(source, edits, faults=faults):
        if len(found) == most:
            break
        failing = [set(laboratory.list_failing(stage, visible)) for stage in stages]
        is_harmed = all(failing[:-1]) and not failing[-1]
        # Each repair of one of two faults must be progress that a test can see.
        is_seen = faults == 1 or all(len(some) < len(failing[0]) for some in failing[1:])
        key = key_of_source(stages[0])
        if not is_harmed or not is_seen or key in found:
            continue
        found[key] = Case(
            name=f"{name} {faults}#{len(found) + 1}",
            module=subject.module,
            visible=visible,
            held_out=held_out,
            stages=stages,
            wrong=[_list_wrong(stage, source, lot) for stage in stages[:-1]],
        )
    yield from found.values()


def _list_stages(source: str, edits: Sequence[tuple[int, int, str]], *, faults: int) -> Iterator[Sequence[str]]:
    """Yield the stages of possible cases, which are still to be tried."""
    single = [(edit, _apply(source, [edit])) for edit in edits]
    if faults == 1:
        yield from ((changed, source) for _, changed in single if _is_changed(source, changed))
        return
    for (first, one), (second, other) in zip(single[::2], single[1::2], strict=False):
        if first[1] < second[0] or second[1] < first[0]:
            both = _apply(source, [first, second])
            if all(_is_changed(source, changed) for changed in (one, other, both)):
                yield both, other, one, source


def _draw_edits(source: str, lot: random.Random) -> Sequence[tuple[int, int, str]]:
    """Return the edits of a source, mixed; some change nothing, or leave no Python."""
    edits = [*dict.fromkeys((each.start, each.end, each.text) for each in find_mutations(source))]
    lot.shuffle(edits)
    return edits


def _list_wrong(stage: str, source: str, lot: random.Random) -> Sequence[str]:
    """Return sources one edit away from `stage`, all different, none the repair."""
    known, wrong = {key_of_source(source)}, []
    for edit in _draw_edits(stage, lot):
        changed = _apply(stage, [edit])
        if _is_changed(stage, changed) and (key := key_of_source(changed)) not in known:
            known.add(key)
            wrong.append(changed)
        if len(wrong) == WRONG_EDITS:
            break
    return wrong


def _apply(source: str, edits: Sequence[tuple[int, int, str]]) -> str:
    content = source.encode()
    for start, end, text in sorted(edits, reverse=True):
        content = content[:start] + text.encode() + content[end:]
    return content.decode()


def _is_changed(source: str, changed: str) -> bool:
    try:
        parse_python(changed.encode())
    except PythonSourceError:
        return False
    return key_of_source(changed) != key_of_source(source)


def _extract(subject: Subject) -> str:
    """Return the functions of a subject and what they need of their module, as one source."""
    tree, defined = _read_module(subject.module)
    needed, waiting = set[int](), list(subject.names)
    known = set(waiting)
    while waiting:
        for place in defined.get(waiting.pop(), ()):
            if place in needed:
                continue
            needed.add(place)
            names = {node.id for node in ast.walk(tree.body[place]) if isinstance(node, ast.Name)}
            waiting += names - known
            known |= names
    kept = [tree.body[place] for place in sorted(needed)]
    return ast.unparse(ast.Module(body=kept, type_ignores=[])) + "\n"


@cache
def _read_module(name: str) -> tuple[ast.Module, Mapping[str, Sequence[int]]]:
    """Return the tree of a module without docstrings, and which of its statements define each name."""
    file = _import_module(name).__file__
    if file is None:
        raise SystemExit(f"the standard library of {sys.version} has no source of {name}")
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    defined: dict[str, list[int]] = {}
    for place, statement in enumerate(tree.body):
        # What is imported at the end in a `try` takes the place of functions by faster ones.
        if not isinstance(statement, ast.Try | ast.If):
            for each in _list_names(statement):
                defined.setdefault(each, []).append(place)
    return tree, defined


def _import_module(name: str) -> ModuleType:
    # Since Python 3.12 the module in Python has a name of its own.
    return importlib.import_module("_pydatetime" if name == "datetime" and sys.version_info >= (3, 12) else name)


def _list_names(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from ((each.asname or each.name).partition(".")[0] for each in statement.names)
    else:
        yield from (
            node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )


def _run_forked(source: str, tests: Sequence[str]) -> Mapping[str, str]:
    """Return the values of tests by expression, computed in a process with limits that is ended in any case."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.close(reading)
        _answer_and_exit(source, tests, writing)
    os.close(writing)
    parts = []
    try:
        while select.select([reading], [], [], _WALL_S)[0] and (part := os.read(reading, 65_536)):
            parts.append(part)
    finally:
        os.close(reading)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    lines = [json.loads(line) for line in b"".join(parts).split(b"\n")[:-1]]
    return {tests[place]: value for place, value in lines}


def _answer_and_exit(source: str, tests: Sequence[str], writing: int) -> None:
    """Write a line for each test; the time is up by a signal, which ends the process."""
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, _CPU_S)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        names: dict[str, Any] = {"__name__": "code"}
        exec(compile(source, PATH, "exec"), names)  # noqa: S102 - made by this module from the standard library
        for place, test in enumerate(tests):
            os.write(writing, (json.dumps([place, _evaluate(test, names)]) + "\n").encode())
        status = 0
    finally:
        os._exit(status)


def _evaluate(test: str, names: dict[str, Any]) -> str:
    try:
        value = eval(test, dict(names))  # noqa: S307 - the tests stand below
        return repr(value)[:_MAX_VALUE]
    except Exception as error:  # noqa: BLE001 - what it raises is the value of the test
        return f"raises {type(error).__name__}"
