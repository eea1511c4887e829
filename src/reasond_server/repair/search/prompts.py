"""The prompts of repairs. What does not change from call to call comes first, so that servers can cache it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond_server.context.fences import fence, write_fence_rule
from reasond_server.context.tags import neutralize
from reasond_server.context.text_calls import ACTION_RULE, bound_specs, write_tools
from reasond_server.llm.model import Message, Role
from reasond_server.repair.edits.edit_application import EDIT_FORMAT
from reasond_server.repair.search.look_ups import LOOK_UPS
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.repair.search.file_choice import ShownFiles
    from reasond_server.types.repairs import CriticReport

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
        self, number: int, *, previous: PreviousCandidate | None = None, may_look_up: bool = False
    ) -> Sequence[Message]:
        """Return the prompt of candidate `number`, which counts from 1; with `previous` one that improves it.

        With `may_look_up` it offers the look-ups.
        """
        parts = [*self._write_task(), build_cot_prompt(self.report, 1)]
        if self.evidence:
            parts.append(f"{_EVIDENCE}\n{self._fence('observation', self.evidence)}")
        if previous is not None:
            parts.append(self._write_previous(previous))
        parts.append(f"Attempt {number}")
        tools = f"\n{ACTION_RULE}{write_tools(bound_specs(LOOK_UPS))}" if may_look_up else ""
        system = f"{_FIXER}\n\n{EDIT_FORMAT}\n{write_fence_rule(self.nonce).strip()}{tools}"
        return (Message(role=Role.SYSTEM, content=system), Message(role=Role.USER, content="\n\n".join(parts)))

    def write_plan(self, number: int) -> Sequence[Message]:
        """Return the prompt of plan `number`, which counts from 1."""
        system = f"{_PLANNER}\n{write_fence_rule(self.nonce).strip()}"
        text = "\n\n".join([*self._write_task(), f"Attempt {number}"])
        return (Message(role=Role.SYSTEM, content=system), Message(role=Role.USER, content=text))

    def write_judging(self, plans: Sequence[str]) -> Sequence[Message]:
        """Return the prompt that asks for a score of each plan."""
        shown = [f"Plan {place}:\n{self._fence('passage', plan)}" for place, plan in enumerate(plans, 1)]
        system = f"{_JUDGE}\n{write_fence_rule(self.nonce).strip()}"
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

    def _write_previous(self, previous: PreviousCandidate) -> str:
        return (
            f"PreviousCandidate:\n{self._fence('passage', previous.diff or 'It held no usable edit.')}\n"
            f"CriticScore: {previous.score:.0f}/100\n{self._fence('observation', previous.evidence)}\n"
            "Reflect on these issues: first say in one or two sentences why the previous candidate failed, then "
            "generate an improved one. Its edits apply to the original files above, not to the previous candidate."
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
