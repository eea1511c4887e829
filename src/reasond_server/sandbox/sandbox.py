"""The ports of the sandbox: one command over one workspace, within limits, without a network; and of workspaces.

The command and all processes that it starts are untrusted. They see the workspace, the environment and nothing else of
the machine, and none of them is left when `run` returns or is cancelled. A workspace has the files of one candidate in
a folder of its own, which is cheap because unchanged files are shared.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from reasond_server.types.repairs import ResultFormat, SandboxLevel, SourceFile
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path


@value
class SandboxLimits:
    """The limits of one job, over all its processes together. Times are in seconds, sizes in bytes.

    `output_bytes` bounds what is kept of the standard output and error, which are one stream: its first quarter and its
    last three quarters. A job that prints more goes on. So does one that is refused a further process, which is how
    `processes` is held where jobs have a user of their own; elsewhere a job with more of them is ended.
    """

    wall_s: float = 60.0
    cpu_s: float = 60.0
    memory_bytes: int = 1024 * 1024 * 1024
    processes: int = 128
    disk_bytes: int = 256 * 1024 * 1024
    output_bytes: int = 1024 * 1024


@value
class ExecutionEnvironment:
    """A folder with tools that the operator has prepared, and how commands run in it.

    Attributes:
        name: its name for clients.
        root: an absolute folder, read-only for jobs; None: only the tools of the system below /usr.
        is_image: whether `root` takes the place of the whole file system, such as an unpacked image.
        search_path: folders of PATH, in order, as jobs see them.
        also_readable: further folders that jobs may read, such as that of the interpreter of a virtual environment.
        cache: an absolute folder with what the tools have compiled before; each job begins with links to its files,
            at the place that the variable `cache_variable` names.
        variables: further variables of jobs; `{workspace}`, `{tmp}` and `{root}` in their values stand for the paths as
            the job sees them.
        format: how checks report if they do not say it.
        description: the operator's words.
        limits: the limits of its jobs; `wall_s` is the most that a check may ask for.
        has_address_limit: whether the address space is limited too; runtimes that reserve much fail with it.
        has_writable_sources: whether jobs may write the files of the workspace, which are copied for each then.
    """

    name: str
    root: Path | None = None
    is_image: bool = False
    search_path: Sequence[str] = ("/usr/local/bin", "/usr/bin", "/bin")
    also_readable: Sequence[Path] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    format: ResultFormat = ResultFormat.EXIT_CODE
    description: str = ""
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    has_address_limit: bool = False
    has_writable_sources: bool = False
    cache: Path | None = None
    cache_variable: str = ""


@value
class Job:
    """One command to run in `folder`, its workspace.

    `argv` is no text for a shell. `collect` are relative paths of files that are read after the end, each up to 4 MiB.
    """

    argv: Sequence[str]
    folder: Path
    environment: ExecutionEnvironment
    limits: SandboxLimits
    collect: Sequence[str] = ()


@value
class JobOutcome:
    """How a job ended.

    Attributes:
        exit_code: that of the command; 128 and the signal's number if a signal ended it.
        output: standard output and error together, as far as the limit allows.
        is_output_cut: whether some of the output is left out.
        exceeded: the limit that ended it: `wall_s`, `cpu_s`, `memory_bytes`, `processes`, `disk_bytes`; else empty.
        collected: the files of `Job.collect` that exist, are regular and small enough, by path.
        elapsed_s: how long it ran.
        cpu_s: the processor time of all its processes.
    """

    exit_code: int
    output: bytes
    elapsed_s: float
    cpu_s: float
    is_output_cut: bool = False
    exceeded: str = ""
    collected: Mapping[str, bytes] = field(default_factory=dict)


class SandboxFailedError(Exception):
    """The sandbox itself could not run a job; says nothing about the job's code."""


class Sandbox(Protocol):
    """Runs jobs at one level."""

    @property
    def level(self) -> SandboxLevel:
        """What holds the jobs; OFF if none can be run."""

    async def run(self, job: Job) -> JobOutcome:
        """Run a job to its end. When it is cancelled, all processes of the job are ended before it returns.

        Raises:
            SandboxFailedError: the sandbox could not run it.
        """


class SourceTree(Protocol):
    """The files of a snapshot on the disk, read-only, from which workspaces are made."""

    def open_workspace(
        self, changes: Mapping[str, bytes | None], *, is_writable: bool = False
    ) -> AbstractAsyncContextManager[Path]:
        """Return a context with a folder that holds the tree with `changes`: new contents, None for a deleted file.

        Unchanged files are hard links to the tree, which jobs cannot write; with `is_writable` they are copies. The
        folder is removed at the end.
        """

    async def remove(self) -> None:
        """Remove the tree from the disk."""


class Workspaces(Protocol):
    """Puts snapshots on the disk below one folder of the server, which is swept at the start."""

    @property
    def private(self) -> Path:
        """A folder in the same place for temporary files of the server, which no job reaches."""

    async def write_tree(self, files: Sequence[SourceFile]) -> SourceTree:
        """Write the files of a snapshot to the disk.

        Raises:
            SandboxFailedError: the disk refused it.
        """
