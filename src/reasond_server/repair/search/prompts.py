"""The prompts of repairs. What does not change from call to call comes first, so that servers can cache it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from reasond_server.context.sections import FENCE_RULE, fence
from reasond_server.context.tags import neutralize
from reasond_server.context.text_calls import ACTION_RULE, bound_specs, write_tools
from reasond_server.llm.model import Message, Role
from reasond_server.repair.edits.edit_application import write_edit_format
from reasond_server.repair.search.look_ups import LOOK_UPS
from reasond_server.types.repairs import Check, CheckRole, CriticReport, SourceFile
from reasond_server.types.values import value

MOST_SHOWN: Final = 50
MOST_LISTED: Final = 200
_MOST_BYTES: Final = 256 * 1024
_PATH: Final = re.compile(r"[\w./\\-]{1,512}\.[A-Za-z0-9_]{1,16}")
_IMPORT: Final = re.compile(
    r"^\s{0,40}(?:from\s{1,8}([\w.]{1,200})\s{1,8}import|import\s{1,8}([\w.]{1,200}))", re.MULTILINE
)
_SOURCES: Final = frozenset(
    {
        *("c", "cc", "clj", "cpp", "cs", "css", "dart", "ex", "exs", "go", "h", "hpp", "html", "java", "jl", "js"),
        *("json", "jsx", "kt", "lua", "m", "md", "mjs", "ml", "php", "pl", "py", "r", "rb", "rs", "scala", "sh", "sql"),
        *("swift", "toml", "ts", "tsx", "txt", "vue", "xml", "yaml", "yml", "zig"),
    }
)


@value
class ShownFiles:
    """The texts that a prompt shows, by path in their order, and the paths of other files of the project.

    `example` is the file that the example of an edit names: one that may be changed.
    """

    texts: Mapping[str, str]
    others: Sequence[str] = ()
    example: str = "main.py"


def choose_files(
    files: Mapping[str, SourceFile],
    *,
    hints: Iterable[str],
    is_editable: Callable[[str], bool],
    room: int,
    count: Callable[[str], int],
) -> ShownFiles:
    """Return as many whole files as `room` tokens hold.

    First come files that `hints` (evidence, findings, the description) name, then files that those import, then other
    files that may be edited, small ones first; protected files come last. `count` counts the tokens of a text.
    """
    readable = {path: text for path, file in files.items() if (text := _read(file)) is not None}
    named = _find_named(readable, hints)
    imported = _find_imported(readable, named)
    rest = sorted(readable.keys() - set(named) - set(imported), key=lambda path: (len(readable[path]), path))
    wanted = [*named, *imported, *(path for path in rest if is_editable(path))]
    wanted += [path for path in rest if not is_editable(path)]
    shown: dict[str, str] = {}
    for path in wanted:
        if len(shown) == MOST_SHOWN:
            break
        tokens = count(readable[path])
        if tokens <= room:
            shown[path] = readable[path]
            room -= tokens
    others = [path for path in sorted(files) if path not in shown]
    example = next((path for path in [*shown, *sorted(files)] if is_editable(path)), ShownFiles.example)
    return ShownFiles(texts=shown, others=others[:MOST_LISTED], example=example)


def leave_out_held_out(
    files: Mapping[str, SourceFile], checks: Sequence[Check], *, is_protected: Callable[[str], bool]
) -> Mapping[str, SourceFile]:
    """Return the files without the protected ones that commands of held-out checks name, alone or by a folder.

    The search must not learn what the held-out checks ask for. Files that candidates may change stay, because such a
    command also names the code under repair; so do files that the command of another check names.
    """
    held_out = [check for check in checks if check.role is CheckRole.HELD_OUT]
    seen = _list_named([check for check in checks if check.role is not CheckRole.HELD_OUT])
    hidden = _list_named(held_out) - {"", "."}
    folders = tuple(f"{name}/" for name in hidden)
    return {
        path: file
        for path, file in files.items()
        if path in seen or not is_protected(path) or not (path in hidden or path.startswith(folders))
    }


def _list_named(checks: Iterable[Check]) -> set[str]:
    """Return the paths that the commands of checks may name; `tests/test_a.py::test_b` names its file."""
    return {argument.partition("::")[0].removeprefix("./").rstrip("/") for check in checks for argument in check.argv}


def _read(file: SourceFile) -> str | None:
    """Return the text of a file that is worth showing; None for others."""
    suffix = PurePosixPath(file.path).suffix[1:].lower()
    if len(file.content) > _MOST_BYTES or (suffix and suffix not in _SOURCES) or b"\0" in file.content:
        return None
    try:
        return file.content.decode()
    except UnicodeDecodeError:
        return None


def _find_named(texts: Mapping[str, str], hints: Iterable[str]) -> Sequence[str]:
    """Return the files that the hints name, by path or by its end, in the order in which they are named."""
    by_name: dict[str, list[str]] = {}
    for path in sorted(texts):
        by_name.setdefault(PurePosixPath(path).name, []).append(path)
    found: dict[str, None] = {}
    for hint in hints:
        for match in _PATH.finditer(hint):
            said = match[0].replace("\\", "/").lstrip("./")
            for path in by_name.get(PurePosixPath(said).name, ()):
                if said == path or said.endswith(f"/{path}") or path.endswith(f"/{said}"):
                    found[path] = None
    return list(found)


def _find_imported(texts: Mapping[str, str], named: Sequence[str]) -> Sequence[str]:
    """Return the Python modules that the named files import."""
    modules = {_find_module(path): path for path in texts if path.endswith(".py")}
    found: dict[str, None] = {}
    for path in named:
        for match in _IMPORT.finditer(texts[path]):
            wanted = (match[1] or match[2]).lstrip(".")
            for module, other in modules.items():
                if other not in named and (module == wanted or module.endswith(f".{wanted}")):
                    found[other] = None
    return list(found)


def _find_module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").removeprefix("src/").replace("/", ".")


_FIXER: Final = (
    "You are a senior developer who repairs code. Find the cause of the failures that are shown and write the smallest "
    "change that removes it. Do not change tests, and do not special-case their inputs."
)
_PLANNER: Final = (
    "You are a senior engineer who writes plans. Write a numbered list of steps. Each step names what is done, the "
    "files or components that it touches, and how to see that it is done."
)
_JUDGE: Final = (
    "You judge plans. Score each plan from 0 to 10: does it meet every requirement, in an order that works, without "
    "steps that nobody needs? Answer with one line for all plans and nothing else, such as: 1: 7, 2: 3"
)
_COPY: Final = (
    "Name the faulty lines, then write the blocks that repair them. What stands above ======= is copied from the files "
    "above, not from the example."
)
_REWRITE: Final = (
    "Name the faulty lines, then write the path of each file to change, and below it the whole corrected file."
)
_MOST_LINES_WHOLE: Final = 80
"""Of all files that are shown: as many are written whole, because small models copy the example of a block instead."""
_UNREAD: Final = "An earlier reply could not be used, for this reason:"
_REFLECT: Final = (
    "Reflect on these issues: first say in one or two sentences why the previous candidate failed, then generate an "
    "improved one. Its edits apply to the original files above, not to the previous candidate."
)
_REFLECT_PLAN: Final = "Reflect on these issues, then write the whole plan again without them."
_NOTES: Final = "Other candidates changed this, and failed; do not repeat them:"
_EVIDENCE: Final = "What the checks say of the original code:"


@value
class PreviousCandidate:
    """A candidate that is to be improved: its diff, its score, and what the critics say of it."""

    diff: str
    score: float
    evidence: str


@value
class RepairPrompts:
    """The prompts of one repair; `files` are those shown, `evidence` is that of the original code."""

    nonce: str
    description: str
    report: CriticReport
    files: ShownFiles
    evidence: str = ""

    def write_generation(
        self,
        number: int,
        *,
        previous: PreviousCandidate | None = None,
        unread: str = "",
        notes: str = "",
        may_look_up: bool = False,
    ) -> Sequence[Message]:
        """Return the prompt of candidate `number`, which counts from 1; with `previous` one that improves it.

        `unread` says why the reply before could not be used, `notes` how other candidates failed. With `may_look_up`
        the prompt offers the look-ups.
        """
        parts = [*self._write_task(), build_cot_prompt(self.report, 1)]
        if self.evidence:
            parts.append(f"{_EVIDENCE}\n{self._fence('observation', self.evidence)}")
        if notes:
            parts.append(f"{_NOTES}\n{self._fence('observation', notes)}")
        if previous is not None:
            parts.append(self._write_previous(previous, _REFLECT))
        if unread:
            parts.append(f"{_UNREAD}\n{self._fence('observation', unread)}")
        is_whole = sum(text.count("\n") + 1 for text in self.files.texts.values()) <= _MOST_LINES_WHOLE
        parts.append(f"{_REWRITE if is_whole else _COPY}\n\nAttempt {number}")
        tools = f"\n{ACTION_RULE}{write_tools(bound_specs(LOOK_UPS))}" if may_look_up else ""
        # Behind the files its example was copied as the repair, 4 of 4 times by a model of 1.5 billion parameters.
        form = write_edit_format(_write_line(self.files.example), is_whole=is_whole).strip()
        system = f"{_FIXER}\n{FENCE_RULE.strip()}\n\n{form}{tools}"
        return (Message(role=Role.SYSTEM, content=system), Message(role=Role.USER, content="\n\n".join(parts)))

    def write_plan(self, number: int, previous: PreviousCandidate | None = None) -> Sequence[Message]:
        """Return the prompt of plan `number`, which counts from 1; with `previous` one that improves it."""
        system = f"{_PLANNER}\n{FENCE_RULE.strip()}"
        shown = [] if previous is None else [self._write_previous(previous, _REFLECT_PLAN)]
        text = "\n\n".join([*self._write_task(), *shown, f"Attempt {number}"])
        return (Message(role=Role.SYSTEM, content=system), Message(role=Role.USER, content=text))

    def write_judging(self, plans: Sequence[str]) -> Sequence[Message]:
        """Return the prompt that asks for a score of each plan."""
        shown = [f"Plan {place}:\n{self._fence('passage', plan)}" for place, plan in enumerate(plans, 1)]
        system = f"{_JUDGE}\n{FENCE_RULE.strip()}"
        text = "\n\n".join([*self._write_task(), *shown])
        return (Message(role=Role.SYSTEM, content=system), Message(role=Role.USER, content=text))

    def _write_task(self) -> Sequence[str]:
        parts = [
            f"File {_write_line(path)}:\n{self._fence('material', text)}" for path, text in self.files.texts.items()
        ]
        if self.files.others:
            parts.append(f"Other files, not shown: {', '.join(map(_write_line, self.files.others))}")
        if self.description:
            parts.append(f"What is wanted:\n{self._fence('question', self.description)}")
        return parts

    def _write_previous(self, previous: PreviousCandidate, wanted: str) -> str:
        return (
            f"PreviousCandidate:\n{self._fence('passage', previous.diff or 'It held no usable edit.')}\n"
            f"CriticScore: {previous.score:.0f}/100\n{self._fence('observation', previous.evidence)}\n{wanted}"
        )

    def _fence(self, tag: str, text: str) -> str:
        return fence(tag, text, nonce=self.nonce)


def build_cot_prompt(report: CriticReport, count: int) -> str:
    """Return the request for `count` candidates with all that the client's report says (seed 004)."""
    lines = []
    if report.issues or report.test_outcomes:
        lines.append("CriticReport:")
    for issue in report.issues:
        place = f" at {issue.path}:{issue.line}" if issue.line else f" in {issue.path}" if issue.path else ""
        lines.append(_write_line(f"- {issue.severity.upper()} {issue.rule_id}{place}: {issue.message}"))
    lines += [
        _write_line(f"- {suite.suite_name}: {'passed' if suite.is_passed else 'FAILED'}")
        for suite in report.test_outcomes
    ]
    noun = "patch" if count == 1 else "patches"
    lines.append(
        f"Generate {count} candidate {noun} using chain-of-thought reasoning. For each candidate, explain your logic "
        "before providing the patch."
    )
    return "\n".join(lines)


def _write_line(text: str) -> str:
    """Return an untrusted text outside a fence: without tags, and with all lines but the first one indented."""
    return neutralize("\n  ".join(text.splitlines()))
