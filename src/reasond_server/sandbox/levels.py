"""Chooses the level of the sandbox by trying it: a level is used only after a program in it failed to get out."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.sandbox.confinement import Bubblewrap, Landlock, may_others_pass, may_others_reach
from reasond_server.sandbox.sandbox import ExecutionEnvironment, Job, SandboxFailedError, SandboxLimits
from reasond_server.sandbox.scratch import LinkedWorkspaces, Scratch, find_users
from reasond_server.sandbox.shepherd.kernel import find_landlock_abi
from reasond_server.sandbox.shepherded import ShepherdedSandbox
from reasond_server.types.repairs import SandboxLevel, SourceFile
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.sandbox.sandbox import JobOutcome, Sandbox, Workspaces

_HELD = b"held\n"
_PROBE = Path(__file__).parent / "probe.py"
_PROBE_LIMITS = SandboxLimits(wall_s=60.0)


@value
class SandboxOptions:
    """What the operator chose.

    `levels` are tried in order, `folder` is for workspaces, and `bwrap` is the name or path of bubblewrap.
    """

    levels: Sequence[SandboxLevel]
    folder: Path
    bwrap: str = "bwrap"


class UnavailableSandbox:
    """Runs nothing; `reason` tells why."""

    level = SandboxLevel.OFF

    def __init__(self, reason: str) -> None:
        self.reason = reason

    async def run(self, job: Job) -> JobOutcome:  # noqa: ARG002 - part of the port
        """Refuse.

        Raises:
            SandboxFailedError: always.
        """
        raise SandboxFailedError(self.reason)


class OpenedSandbox:
    """A sandbox with its workspaces; `reason` tells why levels do not work, of those that were tried."""

    def __init__(self, *, sandbox: Sandbox, workspaces: Workspaces, reason: str, scratch: Scratch) -> None:
        self.sandbox = sandbox
        self.workspaces = workspaces
        self.reason = reason
        self._scratch = scratch

    async def close(self) -> None:
        """Remove the folder of this process; no job may run any more."""
        if isinstance(self.sandbox, ShepherdedSandbox):
            self.sandbox.close()
        await asyncio.to_thread(self._scratch.close)


async def open_sandbox(options: SandboxOptions) -> OpenedSandbox:
    """Return the first level that is proved to hold, or one that runs nothing.

    Raises:
        SandboxFailedError: the folder for workspaces cannot be used.
    """
    reasons = []
    for level in options.levels:
        scratch = await asyncio.to_thread(Scratch, options.folder, users=find_users())
        try:
            sandbox = await _prove(level, options, scratch)
        except SandboxFailedError as error:
            reasons.append(f"{level.value}: {error}")
            await asyncio.to_thread(scratch.close)
        else:
            workspaces = LinkedWorkspaces(scratch)
            return OpenedSandbox(sandbox=sandbox, workspaces=workspaces, reason="; ".join(reasons), scratch=scratch)
    reason = "; ".join(reasons) or "it is switched off"
    scratch = await asyncio.to_thread(Scratch, options.folder, users=None)
    return OpenedSandbox(
        sandbox=UnavailableSandbox(reason), workspaces=LinkedWorkspaces(scratch), reason=reason, scratch=scratch
    )


async def _prove(level: SandboxLevel, options: SandboxOptions, scratch: Scratch) -> ShepherdedSandbox:
    """Return a sandbox of `level` in which the probe found no way out.

    Raises:
        SandboxFailedError: the level does not work here, or does not hold.
    """
    sandbox = ShepherdedSandbox(confiner=_make_confiner(level, options, scratch), scratch=scratch)
    try:
        await _run_probe(sandbox, scratch)
    except BaseException:
        sandbox.close()
        raise
    return sandbox


def _make_confiner(level: SandboxLevel, options: SandboxOptions, scratch: Scratch) -> Bubblewrap | Landlock:
    if sys.platform != "linux":
        raise SandboxFailedError(f"the sandbox needs Linux, and this is {sys.platform}")
    has_users = scratch.users is not None
    if has_users and not may_others_pass(options.folder):
        raise SandboxFailedError(
            f"jobs of root run as users without rights, who cannot go through {options.folder}; set [repair.sandbox] "
            "folder to one that others may pass, or run the server as another user"
        )
    if level is SandboxLevel.LANDLOCK:
        return Landlock(has_users=has_users, abi=find_landlock_abi())
    program = shutil.which(options.bwrap)
    if program is None:
        raise SandboxFailedError(f"there is no program {options.bwrap}; install the package bubblewrap")
    return Bubblewrap(program=str(Path(program).absolute()), has_users=has_users, folder=scratch.path)


async def _run_probe(sandbox: ShepherdedSandbox, scratch: Scratch) -> None:
    """Run the probe in `sandbox`.

    Raises:
        SandboxFailedError: it could not be run, or it found a way out.
    """
    interpreter, folders = find_interpreter(has_all=scratch.users is None or sandbox.level is SandboxLevel.BWRAP)
    environment = ExecutionEnvironment(name="self-test", also_readable=folders)
    secret = scratch.path / "secret"
    secret.write_text("secret", encoding="ascii")
    secret.chmod(0o644)
    tree = await LinkedWorkspaces(scratch).write_tree(
        [SourceFile(path="probe.py", content=await asyncio.to_thread(_PROBE.read_bytes))]
    )
    try:
        async with tree.open_workspace({}) as folder:
            argv = (interpreter, "-I", "-S", "probe.py", str(secret), str(os.getpid()))
            outcome = await sandbox.run(Job(argv=argv, folder=folder, environment=environment, limits=_PROBE_LIMITS))
    finally:
        await tree.remove()
        with suppress(OSError):
            secret.unlink()
    if outcome.exit_code or outcome.output != _HELD:
        printed = " ".join(outcome.output.decode(errors="replace").split())[:500]
        raise SandboxFailedError(f"its self-test failed with {outcome.exit_code}: {printed or outcome.exceeded}")


def find_interpreter(*, has_all: bool) -> tuple[str, Sequence[Path]]:
    """Return a Python that the probe can use, and the folders that it needs besides those of the system.

    With `has_all` jobs reach all that the server reaches, else only what users without rights reach.

    Raises:
        SandboxFailedError: the user of the jobs can reach none.
    """
    base = Path(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for program, folders in (
        (base / "bin" / version, (base,)),
        *((Path(folder, "python3"), ()) for folder in ("/usr/bin", "/usr/local/bin")),
    ):
        if program.exists() and (has_all or may_others_reach(program)):
            return str(program), folders
    raise SandboxFailedError(
        f"jobs of root run as users without rights, who reach no Python for the self-test, neither {base} nor one "
        "below /usr; run the server as another user, or make the folder readable for others"
    )
