"""The sandbox whose jobs are run by a shepherd each; the event loop only waits for a thread."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.sandbox.confinement import TEMPORARY, WORKSPACE, Confiner, list_variables
from reasond_server.sandbox.sandbox import Job, JobOutcome, SandboxFailedError
from reasond_server.sandbox.scratch import SIZE_FILE, Scratch, end_marked, remove_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.sandbox.shepherd.order import Confinement, JobReport, Order
    from reasond_server.types.repairs import SandboxLevel


_PACKAGES = Path(__file__).resolve().parents[2]
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from reasond_server.sandbox.shepherd.main import serve; serve()"
)


class Shepherds:
    """Starts shepherds; the process that they are forked from is started when it is needed, and again if it ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def start(self, order: Path, lifeline: int) -> int:
        """Start a shepherd for the order in the file `order`, and return the pipe of its answer; blocks.

        Raises:
            OSError: it cannot be started.
        """
        answer, far_end = os.pipe()
        try:
            with self._lock:
                try:
                    self._send(order, lifeline, far_end)
                except OSError:
                    self._stop()
                    self._send(order, lifeline, far_end)
        except BaseException:
            os.close(answer)
            raise
        finally:
            os.close(far_end)
        return answer

    def _send(self, order: Path, lifeline: int, answer: int) -> None:
        if self._socket is None:
            self._begin()
        if self._socket is not None:
            socket.send_fds(self._socket, [str(order).encode()], [lifeline, answer])

    def _begin(self) -> None:
        # Messages keep their bounds: each is one order with its two pipes.
        self._socket, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far_end:
            self._process = subprocess.Popen(  # noqa: S603 - a program of ours
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(_PACKAGES)],
                stdin=far_end.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                start_new_session=True,
            )

    def close(self) -> None:
        """End the process; shepherds that run go on to the end of their jobs."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.wait()
            self._process = None


# Tools write their caches also where nothing is new: links let them, and what they refer to stays as it was prepared.
_LINK = ("sh", "-c", 'cp -rs "$1" "$2" && shift 2 && exec "$@"', "sh")
_MAX_COLLECTED_BYTES = 4 * 1024 * 1024
_MAX_THREADS = 256


class Lifeline:
    """The pipe whose end tells a shepherd to end its job; closing it twice is harmless."""

    def __init__(self) -> None:
        self.far_end, self._own_end = os.pipe()
        self._lock = threading.Lock()
        self._is_cut = False

    def cut(self) -> None:
        """End the job."""
        with self._lock:
            if not self._is_cut:
                self._is_cut = True
                os.close(self._own_end)


class ShepherdedSandbox:
    """Runs each job under a shepherd, a process of its own that ends with the last process of the job."""

    def __init__(self, *, confiner: Confiner, scratch: Scratch) -> None:
        self._confiner = confiner
        self._scratch = scratch
        self._shepherds = Shepherds()
        # Threads of its own: those that wait for jobs must not keep others from working.
        self._threads = ThreadPoolExecutor(max_workers=_MAX_THREADS, thread_name_prefix="sandbox")

    @property
    def level(self) -> SandboxLevel:
        """What holds the jobs."""
        return self._confiner.level

    async def run(self, job: Job) -> JobOutcome:
        """Run a job to its end. When it is cancelled, all processes of the job are ended before it returns.

        Raises:
            SandboxFailedError: the sandbox could not run it.
        """
        lifeline = Lifeline()
        running = asyncio.get_running_loop().run_in_executor(self._threads, self._run, job, lifeline)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            lifeline.cut()
            while not running.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([running])
            with suppress(Exception):
                running.result()
            raise

    def close(self) -> None:
        """Wait for the threads; no job may be started any more."""
        self._threads.shutdown()
        self._shepherds.close()

    def _run(self, job: Job, lifeline: Lifeline) -> JobOutcome:
        """Run a job; blocks."""
        try:
            mark, private = self._scratch.make_job()
            try:
                return self._run_in(job, lifeline, mark, private)
            finally:
                remove_folder(private)
        except OSError as error:
            raise SandboxFailedError(f"a job could not be run: {error.strerror}") from error
        finally:
            lifeline.cut()
            os.close(lifeline.far_end)

    def _run_in(self, job: Job, lifeline: Lifeline, mark: int, private: Path) -> JobOutcome:
        folders = [private / name for name in ("tmp", "shm")]
        for folder in folders:
            folder.mkdir()
        confinement = self._confiner.confine(job, private)
        for folder in folders:
            self._scratch.give(folder, confinement["uid"])
        order = private / "order"
        with os.fdopen(os.open(order, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(self._describe(job, confinement, mark, private, folders), file)
        with os.fdopen(self._shepherds.start(order, lifeline.far_end), "rb") as answer:
            line, output = answer.readline(), answer.read()
        if not line:
            end_marked({str(mark)})
            raise SandboxFailedError("the shepherd of a job ended early")
        report: JobReport = json.loads(line)
        if report["failure"]:
            raise SandboxFailedError(f"a job could not be started: {report['failure']}")
        return self._conclude(job, report, output, private)

    def _describe(self, job: Job, confinement: Confinement, mark: int, private: Path, folders: list[Path]) -> Order:
        limits, cache = job.limits, job.environment.cache
        variables = list_variables(job, *self._confiner.place(job, private))
        place = variables.get(job.environment.cache_variable)
        return {
            "argv": [*([*_LINK, str(cache), place] if cache and place else ()), *job.argv],
            "folder": str(job.folder),
            "variables": variables,
            "mark": mark,
            "confinement": confinement,
            "bounds": {
                "wall_s": limits.wall_s,
                "cpu_s": limits.cpu_s,
                "memory_bytes": limits.memory_bytes,
                "has_address_limit": job.environment.has_address_limit,
                "processes": limits.processes,
                "disk_bytes": limits.disk_bytes,
                "base_bytes": _read_size(job.folder),
                "folders": [str(job.folder), *map(str, folders)],
                "output_bytes": limits.output_bytes,
            },
        }

    def _conclude(self, job: Job, report: JobReport, output: bytes, private: Path) -> JobOutcome:
        workspace, temporary = (path.encode() for path in self._confiner.place(job, private))

        def rename(content: bytes) -> bytes:
            """Return `content` with the paths that all jobs at all levels have."""
            return content.replace(workspace, WORKSPACE.encode()).replace(temporary, TEMPORARY.encode())

        return JobOutcome(
            exit_code=report["exit_code"],
            output=rename(output),
            elapsed_s=report["elapsed_s"],
            cpu_s=report["cpu_s"],
            is_output_cut=report["is_output_cut"],
            exceeded=report["exceeded"],
            collected={path: rename(content) for path, content in _collect(job).items()},
        )


def _read_size(folder: Path) -> int:
    """Return what a workspace takes before the job starts; 0 if nobody noted it."""
    with suppress(OSError, ValueError):
        return int((folder.parent / SIZE_FILE).read_text(encoding="ascii"))
    return 0


def _collect(job: Job) -> Mapping[str, bytes]:
    """Return the files that `job` asks for: those that are regular, small enough, and reached without a link."""
    found = {}
    for path in job.collect:
        with suppress(OSError):
            content = _read_beneath(job.folder, Path(path))
            if content is not None:
                found[path] = content
    return found


def _read_beneath(folder: Path, path: Path) -> bytes | None:
    """Return the content of the file `path` of `folder`, if it may be taken.

    Raises:
        OSError: it cannot be opened without following a link.
    """
    if path.is_absolute() or ".." in path.parts or not path.parts:
        return None
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | flags)
    try:
        for part in path.parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | flags, dir_fd=place)
            os.close(place)
            place = inner
        # A pipe would keep the reader waiting.
        with os.fdopen(os.open(path.name, os.O_RDONLY | os.O_NONBLOCK | flags, dir_fd=place), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_COLLECTED_BYTES:
                return None
            content = file.read(_MAX_COLLECTED_BYTES + 1)
            return content if len(content) <= _MAX_COLLECTED_BYTES else None
    finally:
        os.close(place)
