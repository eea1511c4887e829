"""Opens what repairs and programs of models need: the sandbox with its workspaces, the linter, installed critics."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from reasond_server.assembly.sandboxes import open_sandboxes
from reasond_server.errors.base import SettingsError
from reasond_server.repair.critics.critic_port import CRITICS
from reasond_server.repair.critics.linting import find_ruff
from reasond_server.repair.edits.patches import find_git
from reasond_server.repair.service.workbench import Workshop
from reasond_server.sandbox.sandbox import SandboxFailedError
from reasond_server.types.repairs import SandboxLevel
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.config.repairs import RepairSettings
    from reasond_server.sandbox.levels import OpenedSandbox

_log = logging.getLogger("reasond.repair")


@value
class OpenedWorkshop:
    """A workshop, and what is closed with it."""

    workshop: Workshop
    opened: OpenedSandbox

    async def aclose(self) -> None:
        """Remove all workspaces; no repair may run any more."""
        await self.opened.close()


async def open_workshop(settings: RepairSettings) -> OpenedWorkshop:
    """Open the sandbox that [repair] describes, proved by its self-test, and find linter and critics.

    Programs of models run in it too, whether repairs are offered or not; only repairs need git.

    Where no level works, no code is run, and the log says why.

    Raises:
        SettingsError: repairs are offered and git is missing, the folder for workspaces cannot be used, or a critic
            cannot be loaded.
    """
    if settings.enabled and find_git() is None:
        raise SettingsError(
            "Repairs need git, which is not installed",
            remedy="Install git: patches are made and tried with it. Or set enabled = false in [repair].",
        )
    critics = CRITICS.load(settings.critics)
    try:
        opened, environments = await open_sandboxes(settings)
    except SandboxFailedError as error:
        raise SettingsError(
            f"The folder for workspaces cannot be used: {error}", remedy="Name another one in [repair.sandbox] folder."
        ) from error
    level = opened.sandbox.level
    if level is SandboxLevel.OFF:
        _log.warning("no sandbox works, so no code is run: %s", opened.reason)
    else:
        _log.info("sandbox", extra={"level": level.value})
    workshop = Workshop(
        sandbox=opened.sandbox,
        workspaces=None if level is SandboxLevel.OFF else opened.workspaces,
        environments=environments,
        permits=asyncio.Semaphore(settings.checks_at_once),
        linter=find_ruff(),
        critics=critics,
    )
    return OpenedWorkshop(workshop=workshop, opened=opened)
