"""The workbench of one repair: its code, the writer of its candidates, and their critics."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from reasond_server.errors.executions import NotResumableError
from reasond_server.errors.repairs import SandboxUnavailableError
from reasond_server.repair.critics.check_judge import Critics
from reasond_server.repair.edits.protection import build_protection
from reasond_server.repair.search.candidate_writer import CandidateWriter
from reasond_server.runs.plan import make_nonces
from reasond_server.sandbox.sandbox import ExecutionEnvironment, Sandbox, SandboxFailedError, Workspaces
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.types.values import value

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from reasond_server.base.clock import Clock
    from reasond_server.llm.model import ChatModel
    from reasond_server.repair.critics.critic_port import Critic
    from reasond_server.repair.search.repair_policy import RepairPolicy
    from reasond_server.repair.search.repair_site import RepairSite
    from reasond_server.repair.service.assignments import RepairAssignment
    from reasond_server.snapshots.snapshot_keeper import SnapshotKeeper
    from reasond_server.types.repairs import RepairTask, SourceFile

_log = logging.getLogger("reasond.repair")


@value
class Workshop:
    """What all repairs of a server share to run checks.

    `workspaces` are None where no sandbox works. `permits` bounds the checks at once, `linter` is the path of ruff if
    it is installed, `critics` are those that packages added.
    """

    sandbox: Sandbox
    workspaces: Workspaces | None
    environments: Mapping[str, ExecutionEnvironment]
    permits: asyncio.Semaphore
    linter: Path | None = None
    critics: Sequence[Critic] = ()


@dataclass(eq=False, kw_only=True)
class Workbench:
    """Opens the code of repairs; the arguments are those of `RepairKind`."""

    clock: Clock
    policy: RepairPolicy
    snapshots: SnapshotKeeper
    workshop: Workshop
    observer: Observer = UNOBSERVED

    @property
    def folder(self) -> Path | None:
        """Where patches are made and tried; None: in the folder of the system."""
        workspaces = self.workshop.workspaces
        return None if workspaces is None else workspaces.private

    def write_out_commands(self, assignment: RepairAssignment) -> RepairAssignment:
        """Return an assignment whose checks have the arguments that their names stand for.

        Raises:
            NotResumableError: a command is not configured any more.
        """
        known, task = self.policy.commands, assignment.task
        if gone := [check.command for check in task.checks if not check.argv and check.command not in known]:
            raise NotResumableError(f"the command {gone[0]!r} is not configured any more")
        checks = [replace(check, argv=tuple(check.argv or known[check.command]), command="") for check in task.checks]
        return replace(assignment, task=replace(task, checks=checks))

    async def load(self, tenant: str, task: RepairTask) -> Mapping[str, SourceFile]:
        """Return the code by path; none for a plan without code.

        Raises:
            SnapshotNotFoundError: the code is not kept any more.
        """
        return await self.snapshots.load(tenant, task.snapshot_id) if task.snapshot_id else {}

    def make_writer(
        self, site: RepairSite, model: ChatModel, assignment: RepairAssignment, files: Mapping[str, SourceFile]
    ) -> CandidateWriter:
        """Return what asks `model` for candidates."""
        return CandidateWriter(
            site=site,
            model=model,
            task=assignment.task,
            parameters=assignment.parameters,
            files=files,
            is_protected=build_protection(assignment.task.editable),
            nonce=make_nonces(site.nonce)(),
            clock=self.clock,
            folder=self.folder,
        )

    @asynccontextmanager
    async def open_critics(
        self, site: RepairSite, assignment: RepairAssignment, files: Mapping[str, SourceFile]
    ) -> AsyncIterator[Critics]:
        """Return a context with the critics of a repair, whose code is on the disk meanwhile.

        Raises:
            SandboxUnavailableError: no sandbox works here.
            NotResumableError: the environment is not configured any more.
        """
        workshop, task, parameters = self.workshop, assignment.task, assignment.parameters
        if workshop.workspaces is None:
            raise SandboxUnavailableError("No sandbox works on this server any more, so no code is run")
        if task.environment not in workshop.environments:
            raise NotResumableError(f"the environment {task.environment!r} is not configured any more")
        try:
            tree = await workshop.workspaces.write_tree(tuple(files.values()))
        except SandboxFailedError as error:
            _log.exception("code was not written to the disk", extra={"execution_id": site.execution_id})
            raise SandboxUnavailableError("The code could not be written to the disk of the server") from error
        try:
            yield Critics(
                sandbox=workshop.sandbox,
                environment=workshop.environments[task.environment],
                tree=tree,
                files=files,
                checks=task.checks,
                permits=workshop.permits,
                critic_timeout_ms=parameters.critic_timeout_ms,
                allow_unreproduced=parameters.allow_unreproduced,
                linter=workshop.linter,
                critics=workshop.critics,
                reported=task.report.issues,
                signs={str(rule): ruling for rule, ruling in self.policy.signs.items()},
                perform=site.perform,
                observer=self.observer,
            )
        finally:
            await tree.remove()
