"""Measure how many small faults a real model repairs: `python -m benchmarks.model_repairs --model NAME`.

Twenty projects (repairs.jsonl beside this file: a Python file whose docstring says what it does, with a fault, and its
tests) are repaired in two ways, and a row is printed for each: projects that are fixed, replies that could not be used,
replies that were not taken although they have a right fix, calls, and the tokens that the model read and wrote.

- The plain question shows file, tests and what they say, once, and asks for the corrected file. The last fenced block
  of Python that defines the tested function is put behind the text of the file, where it replaces what is there.
- A repair is the product's: its prompts, its readers, the search with its defaults, and the checks in the sandbox, with
  at most `--calls` calls of the model.
- A project is fixed if all tests pass; by a repair, if its patch is accepted.
- A reply could not be used if it has no such block, or if the repair refused it as a candidate. What repeats an
  earlier candidate counts once.
- A reply has a right fix if the tests pass with any of its fenced blocks of Python behind the text of the file. It was
  not taken if what was read of it does not pass.

`--url URL` and `--record FILE` are as in `benchmarks.prompts`: an interrupted run goes on, and checks alone are made
again. Needs a sandbox and git. Writes results/model_repairs.json beside this file.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.machine import write_report
from benchmarks.planted import print_table
from benchmarks.prompts import (
    HERE,
    NONCE,
    PACKAGES,
    PLAIN,
    RecordedModel,
    bound_share,
    build_parser,
    connect,
    read_record,
)
from reasond_server.assembly.core import make_system_clock
from reasond_server.assembly.workshops import open_workshop
from reasond_server.config.repairs import RepairEnvironmentSettings, RepairSettings
from reasond_server.dialects.code_blocks import choose_python, read_blocks
from reasond_server.llm.model import ChatRequest, Message, Role, Text
from reasond_server.repair.critics.check_judge import Critics
from reasond_server.repair.critics.code_reviews import perform_directly
from reasond_server.repair.edits.protection import build_protection
from reasond_server.repair.results.gate import list_faults, write_evidence
from reasond_server.repair.search.candidate_writer import CandidateWriter
from reasond_server.repair.search.repair_policy import RepairParameters
from reasond_server.repair.search.repair_run import RepairRun
from reasond_server.repair.search.repair_site import RepairSite
from reasond_server.repair.service.repair_work import LocalActivities
from reasond_server.runs.run_trace import RunTrace
from reasond_server.types import Budget
from reasond_server.types.repairs import (
    CandidateStatus,
    CandidateStep,
    Check,
    CheckRole,
    CheckStatus,
    RepairTask,
    SourceFile,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from reasond_server.repair.service.workbench import Workshop

PROJECTS: Final = HERE / "repairs.jsonl"
RESULTS: Final = HERE / "results" / "model_repairs.json"
REPAIR: Final = "repair"
_PYTEST: Final = ("python", "-m", "pytest", "-q", "--disable-plugin-autoload", "--junitxml={report}")
CHECK: Final = Check(name="tests", role=CheckRole.REPRODUCE, argv=_PYTEST)


@dataclass(slots=True, kw_only=True)
class Figures:
    """What one way of repairing came to, over all projects."""

    way: str
    projects: int
    fixed: int = 0
    unusable: int = 0
    not_taken: int = 0
    calls: int = 0
    tokens_read: int = 0
    tokens_written: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A file with a fault, and its tests; see `open_projects`."""

    path: str
    files: Mapping[str, SourceFile]
    critics: Critics
    evidence: str

    async def passes(self, content: str) -> bool:
        """Return whether all tests pass with another content of the file."""
        critique = await self.critics.judge({self.path: content.encode()})
        return all(report.status is CheckStatus.PASSED for report in critique.reports)

    def add(self, block: str) -> str:
        """Return the text of the file with a block behind it."""
        return f"{self.files[self.path].content.decode()}\n\n{block}"

    async def has_fix(self, reply: str) -> bool:
        """Return whether a reply has a right fix."""
        return any([await self.passes(self.add(block)) for block in list_python(reply)])


def list_python(reply: str) -> Sequence[str]:
    """Return the fenced blocks of Python in a reply."""
    return [block.text for block in choose_python(read_blocks(reply))]


@asynccontextmanager
async def open_project(row: Mapping[str, str], workshop: Workshop) -> AsyncGenerator[Project, None]:
    """Return a context with a project whose tests were run."""
    assert workshop.workspaces is not None  # noqa: S101 - `measure` has looked
    texts = {f"{row['name']}.py": row["code"], f"test_{row['name']}.py": row["tests"]}
    files = {path: SourceFile(path=path, content=text.encode()) for path, text in texts.items()}
    tree = await workshop.workspaces.write_tree(tuple(files.values()))
    try:
        critics = Critics(
            sandbox=workshop.sandbox,
            environment=workshop.environments["python"],
            tree=tree,
            files=files,
            checks=[CHECK],
            permits=workshop.permits,
            linter=workshop.linter,
        )
        baseline = await critics.measure_baseline()
        yield Project(
            path=next(iter(files)), files=files, critics=critics, evidence=write_evidence(list_faults(baseline), ())
        )
    finally:
        await tree.remove()


async def ask_plainly(project: Project, model: RecordedModel, figures: Figures, options: argparse.Namespace) -> None:
    """Ask once for the corrected file."""
    shown = [f"{path}:\n```python\n{file.content.decode()}```" for path, file in project.files.items()]
    text = "\n\n".join(
        [*shown, f"The tests say:\n```\n{project.evidence}\n```", f"Write the whole corrected {project.path}."]
    )
    request = ChatRequest(
        messages=(Message(role=Role.USER, content=text),),
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        label=PLAIN,
    )
    reply = "".join([event.text async for event in model.stream(request) if isinstance(event, Text)])
    defined = [block for block in list_python(reply) if f"def {project.path.removesuffix('.py')}(" in block]
    is_fixed = bool(defined) and await project.passes(project.add(defined[-1]))
    figures.fixed += is_fixed
    figures.unusable += not defined
    figures.not_taken += not is_fixed and await project.has_fix(reply)


async def repair(project: Project, model: RecordedModel, figures: Figures, options: argparse.Namespace) -> None:
    """Let the product repair it."""
    parameters, trace = RepairParameters(max_tokens=options.max_tokens), RunTrace()
    site = RepairSite(
        tenant="bench",
        execution_id=project.path,
        nonce=NONCE,
        trace=trace,
        publish=lambda _index, _text: None,
        wait_for_room=_return,
        perform=perform_directly,
    )
    writer = CandidateWriter(
        site=site,
        model=model,
        task=RepairTask(files=tuple(project.files.values()), checks=[CHECK]),
        parameters=parameters,
        files=project.files,
        is_protected=build_protection(()),
        nonce=NONCE,
        clock=make_system_clock(),
    )
    events: list[Any] = []
    run = RepairRun(
        parameters=parameters,
        budget=Budget(max_model_calls=options.calls),
        activities=LocalActivities(writer=writer, critics=project.critics, files=project.files, trace=trace),
        emit=events.append,
        pause=_go_on,
    )
    outcome = await run.work()
    figures.fixed += outcome is not None and outcome.is_accepted
    steps = [event for event in events if isinstance(event, CandidateStep)]
    invalid = {step.candidate_id for step in steps if step.status is CandidateStatus.INVALID}
    figures.unusable += len(invalid)
    # What repeats another candidate is not judged again.
    settled = {step.candidate_id for step in steps if step.status is CandidateStatus.DUPLICATE}
    settled |= {one.candidate.candidate_id for one in run.judged if one.critique.is_solution}
    for label, reply in model.taken:
        figures.not_taken += label not in settled and await project.has_fix(reply["text"])


async def _return() -> None:
    """Return: nothing has to be waited for."""


async def _go_on() -> bool:
    return False


async def measure(options: argparse.Namespace) -> list[Figures]:
    """Repair all projects in both ways."""
    rows = [json.loads(line) for line in PROJECTS.read_text("utf-8").splitlines()][: options.projects]
    record, connected = read_record(options.record), connect((options.url or [""])[0], options.model)
    opened = await open_workshop(
        RepairSettings(environments={"python": RepairEnvironmentSettings(preset="python", root=sys.prefix)})
    )
    found = [Figures(way=way, projects=len(rows)) for way in (PLAIN, REPAIR)]
    places = asyncio.Semaphore(options.at_once)

    async def work_on(row: Mapping[str, str]) -> None:
        async with places, open_project(row, opened.workshop) as project:
            for figures, work in zip(found, (ask_plainly, repair), strict=True):
                model = RecordedModel(model=connected, record=record, path=options.record)
                await work(project, model, figures, options)
                model.count_into(figures)
        print(row["name"], *(figures.fixed for figures in found), flush=True)

    try:
        if opened.workshop.workspaces is None:
            raise SystemExit("no sandbox works here")
        async with asyncio.TaskGroup() as group:
            for row in rows:
                group.create_task(work_on(row))
    finally:
        await opened.aclose()
        await connected.aclose()
    return found


def main() -> None:
    """Measure, print and write the results."""
    parser = build_parser(__doc__)
    parser.add_argument("--projects", type=int, default=None)
    parser.add_argument("--calls", type=int, default=6)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--temperature", type=float, default=0.0, help="of the plain question")
    options = parser.parse_args()
    found = asyncio.run(measure(options))
    print_table(found)
    rows = [{**asdict(each), **bound_share(each.fixed, each.projects)} for each in found]
    write_report(RESULTS, PACKAGES, model=options.model, digest=options.digest, calls=options.calls, figures=rows)


if __name__ == "__main__":
    main()
