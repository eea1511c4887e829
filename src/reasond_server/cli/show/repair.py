"""Shows a repair to a person: candidates, verdicts, rounds, and the patch in colours."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from reasond_server.cli.show.live import Display, Line, LiveConsole, ShownProgress, count_to
from reasond_server.cli.terminal import fit_line, format_seconds, get_enum_name, get_seconds, sanitize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from reasond import (
        BaselineStep,
        CandidateStep,
        CheckReport,
        CritiqueStep,
        ReflectionStep,
        Repair,
        RepairStarted,
        RepairStepsResponse,
        ValidationStep,
        VoteStep,
    )

_NOTE_WIDTH: Final = 160
_MOST_TESTS: Final = 3
_MOST_VOTES: Final = 3
_LEVELS: Final = MappingProxyType(
    {"BWRAP": "held by bubblewrap", "LANDLOCK": "held by Landlock", "OFF": "no code is run"}
)
_VERIFICATIONS: Final = MappingProxyType(
    {
        "HELD_OUT": "it passes checks that the search never saw, too",
        "VISIBLE_ONLY": "it passes the checks that the search saw; no others were sent",
        "NONE": "nothing of it was run",
    }
)
_VERDICT_STYLES: Final = MappingProxyType({"PASSED": "green", "FAILED": "red"})


class RepairDisplay(Display):
    """Shows the events of one repair."""

    def __init__(self, live: LiveConsole, *, is_kept: bool = True) -> None:
        super().__init__(live, is_kept=is_kept)
        self._lines = RepairLines()
        self._candidates = 0
        self._most_candidates = 0

    def show(self, event: RepairStepsResponse) -> None:
        """Show `event`, if it is of a kind that people read."""
        kind = event.WhichOneof("event")
        if kind == "delta":
            self._live.add_written(event.delta.text)
        elif kind == "started":
            self._start(event.started)
        elif kind == "candidate":
            self._live.show_progress(self._count_candidates())
        elif kind == "completed" and self._live.is_folding:
            end = [*write_verdict(event.completed)]
            self.fold(end, event.completed.warnings, execution_id=event.execution_id)
        for line, style in self._lines.write(event):
            if kind == "started":
                self._live.print_head(line)
            else:
                self._live.print_step(line, style=style)
        if kind in {"baseline", "critique", "reflection"}:
            self._live.say_now("searching")

    def show_patch(self, result: Repair) -> None:
        """Print the patch or the plan whole."""
        if not result.patch:
            return
        is_plan = get_enum_name(result, "goal") == "PLAN"
        self._live.print()
        for line, style in [(sanitize(result.patch), "")] if is_plan else color_diff(result.patch):
            self._live.print(line, style=style, is_cropped=False)
        self._live.print()

    def show_end(self, result: Repair) -> None:
        """Print whether the patch was accepted, its cost and the warnings."""
        self.print_end(write_end(result))

    def _start(self, started: RepairStarted) -> None:
        config = json.loads(started.config_json or "{}")
        most = config.get("max_candidates")
        self._most_candidates = most if isinstance(most, int) else 0
        self._live.say_now("running the checks on the original")

    def _count_candidates(self) -> ShownProgress | None:
        if not self._most_candidates:
            return None
        self._candidates += 1
        return count_to(self._candidates, self._most_candidates, "candidate")


@dataclass(slots=True, kw_only=True)
class RepairLines:
    """Keeps the candidates of a repair that are not judged yet."""

    candidates: dict[str, CandidateStep] = field(default_factory=dict)

    def write(self, event: RepairStepsResponse) -> Iterator[Line]:
        """Yield the lines of one event; none for a delta, a heartbeat or the end, which is shown apart."""
        kind = event.WhichOneof("event")
        if kind == "started":
            yield _write_start(event.execution_id, event.started), "dim"
        elif kind == "baseline":
            yield from _write_baseline(event.baseline)
        elif kind == "candidate":
            yield from self._write_candidate(event.candidate)
        elif kind == "critique":
            yield from self._write_critique(event.critique)
        elif kind == "reflection":
            yield _write_reflection(event.reflection), "cyan"
        elif kind == "vote":
            yield _write_vote(event.vote), "cyan"
        elif kind == "validation":
            yield from _write_validation(event.validation)

    def _write_candidate(self, step: CandidateStep) -> Iterator[Line]:
        """Yield the line of a candidate that no check judges; others wait for their critique."""
        status = get_enum_name(step, "status")
        if status == "PROPOSED":
            self.candidates[step.candidate_id] = step
        elif status == "DUPLICATE":
            yield f"{_place(step.candidate_id)} duplicate: the same code was there before", "dim"
        else:
            yield f"{_place(step.candidate_id)} invalid: {fit_line(step.problem, _NOTE_WIDTH)}", "yellow"

    def _write_critique(self, step: CritiqueStep) -> Iterator[Line]:
        candidate = self.candidates.pop(step.candidate_id, None)
        if candidate is None and not step.reports:
            # Its line says already that it is invalid.
            return
        verdict = get_enum_name(step, "verdict")
        words = [verdict.lower().replace("_", " "), *_count_tests(step.reports), f"score {step.score:.0f}"]
        if candidate is not None and candidate.parent_id:
            words.append(f"from {sanitize(candidate.parent_id)}")
        words += [format_seconds(get_seconds(step.elapsed))]
        words += [_name_finding(finding.rule_id, finding.path, finding.line) for finding in step.findings[:1]]
        yield f"{_place(step.candidate_id)} {', '.join(words)}", _VERDICT_STYLES.get(verdict, "yellow")
        if candidate is not None and (changes := _write_changes(candidate.code_or_plan)):
            yield f"{'':>9} {fit_line(changes, _NOTE_WIDTH)}", "dim"


def write_end(result: Repair) -> Iterator[Line]:
    """Yield what follows a patch: its verdict, and the warnings.

    The error of a repair that failed is raised by its stream.
    """
    yield from write_verdict(result)
    yield from ((f"note: {sanitize(warning)}", "yellow") for warning in result.warnings)


def write_verdict(result: Repair) -> Iterator[Line]:
    """Yield whether a patch was accepted, what it was checked with, and its cost."""
    is_plan = get_enum_name(result, "goal") == "PLAN"
    noun = "plan" if is_plan else "patch"
    if result.is_accepted:
        yield f"accepted: {_VERIFICATIONS.get(get_enum_name(result, 'verification'), '')}", "green"
    elif result.patch:
        yield f"NOT accepted: this {noun} is only the best that was found", "bold red"
    else:
        yield f"no {noun} was found", "bold red"
    usage = result.usage
    words = [
        get_enum_name(result, "finish_reason").lower().replace("_", " "),
        f"{result.total_iterations} round{'' if result.total_iterations == 1 else 's'}",
        f"{usage.model_calls:,} model call{'' if usage.model_calls == 1 else 's'}",
        f"{usage.input_tokens + usage.output_tokens:,} tokens",
    ]
    if not is_plan:
        words.append(f"{result.checks:,} checks with {format_seconds(get_seconds(result.check_cpu))} of processor time")
    yield f"{', '.join(words)}, {format_seconds(get_seconds(result.elapsed))}", "dim"


def color_diff(patch: str) -> Iterator[Line]:
    """Yield the lines of a unified diff with their colours."""
    is_in_hunk = False
    for line in sanitize(patch).splitlines():
        if line.startswith("diff --git "):
            is_in_hunk = False
        elif line.startswith("@@"):
            is_in_hunk = True
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "") if is_in_hunk else "bold"
        yield line, style


def describe_level(level: str) -> str:
    """Return what holds the code, by the name of the level without its prefix."""
    return _LEVELS.get(level, level.lower())


def _write_start(execution_id: str, started: RepairStarted) -> str:
    words = [f"repair {sanitize(execution_id)}", f"model {sanitize(started.model)}"]
    if started.environment:
        words += [f"environment {sanitize(started.environment)}", describe_level(get_enum_name(started, "level"))]
    return ", ".join(words)


def _write_baseline(step: BaselineStep) -> Iterator[Line]:
    yield f"the checks on the original ({format_seconds(get_seconds(step.elapsed))}):", ""
    for report in step.reports:
        status = get_enum_name(report, "status")
        counts = ", ".join([status.lower().replace("_", " "), *_count_tests([report])])
        named = [sanitize(one) for one in report.failed[:_MOST_TESTS]]
        left = len(report.failed) - len(named)
        more = [f"{left} more"] if left > 0 else []
        failing = f"; fails: {', '.join([*named, *more])}" if named else ""
        yield f"   {sanitize(report.name)}: {counts}{failing}", "green" if status == "PASSED" else "red"
    if step.flaky:
        yield f"   left out, because two runs differed: {', '.join(map(sanitize, step.flaky))}", "yellow"


def _write_reflection(step: ReflectionStep) -> str:
    done = step.reflection
    best = max((one.score for one in done.critic_scores), default=0.0)
    count = len(done.candidate_ids)
    notes = f"; {fit_line(done.notes, _NOTE_WIDTH)}" if done.notes else ""
    return f"round {done.iteration}: {count} candidate{'' if count == 1 else 's'}, best score {best:.0f}{notes}"


def _write_vote(step: VoteStep) -> str:
    parts = [
        f"{sanitize(one.candidate_id)} {one.weight:.2f} ({one.cluster_size} alike)"
        for one in step.vote.votes[:_MOST_VOTES]
    ]
    decided = f"; decided by {', '.join(map(sanitize, step.vote.criteria))}" if step.vote.criteria else ""
    return f"vote: {', '.join(parts) or 'nobody to vote for'}{decided}"


def _write_validation(step: ValidationStep) -> Iterator[Line]:
    place = sanitize(step.candidate_id)
    if step.is_valid:
        yield f"the patch of {place} applies", "green"
    for report in step.reports:
        status = get_enum_name(report, "status")
        counts = ", ".join([status.lower().replace("_", " "), *_count_tests([report])])
        yield f"   held out, {sanitize(report.name)}: {counts}", "green" if status == "PASSED" else "red"
    if step.problem:
        yield f"{'' if step.is_valid else f'the patch of {place} is refused: '}{fit_line(step.problem, 400)}", "yellow"


def _count_tests(reports: Iterable[CheckReport]) -> list[str]:
    """Return how many tests passed over all checks; nothing where they report no single tests."""
    counted = [(report.passed, report.total) for report in reports if report.total]
    if not counted:
        return []
    return [f"{sum(passed for passed, _ in counted)} of {sum(total for _, total in counted)} tests pass"]


def _name_finding(rule: str, path: str, line: int) -> str:
    return f"{sanitize(rule)} in {sanitize(path)}:{line}"


def _write_changes(diff: str) -> str:
    """Return the changed lines of a diff on one line."""
    changed = [
        line
        for line in diff.splitlines()
        if line[:1] in {"+", "-"} and not line.startswith(("+++", "---")) and line[1:].strip()
    ]
    return "; ".join(f"{line[0]} {line[1:].strip()}" for line in changed)


def _place(candidate_id: str) -> str:
    return f"{sanitize(candidate_id):>9}"
