"""The program of shepherds: `serve()` forks one for each order, and `main(path)` runs its job.

Standard input of a shepherd is the lifeline: when the server closes it, or ends in whatever way, the job ends. Standard
output gets one line with a report, then the output of the job. The shepherd adopts orphans of the job, so that none
gets away, and ends only when no process of the job is left.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from reasond_server.sandbox.shepherd import job_usage, kernel
from reasond_server.sandbox.shepherd.job_launch import NOT_EXECUTABLE, NOT_FOUND, OWN_TASKS, launch

if TYPE_CHECKING:
    from reasond_server.sandbox.shepherd.order import Bounds, JobReport, Order

_LIFELINE, _ANSWER = 0, 1
_CHUNK = 65536
_LONGEST_PATH = 4096
_LOOK_S = 0.05
_PRIORITY = -10
_GRACE_S = 5.0
_STACKS_S = 1.0
# Looking at the disk takes at most this share of the time, however many files there are.
_DISK_SHARE = 10
_KILLED = 128 + signal.SIGKILL


class Output:
    """What a job prints: the first quarter of `limit` bytes, and the last three quarters."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit // 4
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self.is_cut = False

    def add(self, chunk: bytes) -> None:
        """Keep what may be kept of `chunk`."""
        room = self._head_limit - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        # Twice as much is let come together, so that not every chunk moves the whole tail.
        if len(self._tail) > 2 * self._tail_limit:
            self._cut()

    def close(self) -> bytes:
        """Return what was kept."""
        if len(self._tail) > self._tail_limit:
            self._cut()
        return bytes(self._head + self._tail)

    def _cut(self) -> None:
        self.is_cut = True
        del self._tail[: len(self._tail) - self._tail_limit]


class Watch:
    """Compares what the job uses with its limits.

    `cpu_s` is the processor time that was seen last: processes that are killed in a namespace of their own are reaped
    with it, and nobody is told what they used.
    """

    def __init__(self, bounds: Bounds, started: float) -> None:
        self._bounds = bounds
        self._started = started
        self._next_look = started + _LOOK_S
        self._next_disk = self._next_look
        self.cpu_s = 0.0

    @property
    def wait_s(self) -> float:
        """Seconds until the next look."""
        return max(0.0, min(self._next_look, self._started + self._bounds["wall_s"]) - time.monotonic())

    def find_exceeded(self) -> str:
        """Return the name of a limit that is exceeded now, or nothing."""
        now = time.monotonic()
        if now - self._started >= self._bounds["wall_s"]:
            self._find_used_up(job_usage.list_descendants(os.getpid()))
            return "wall_s"
        if now < self._next_look:
            return ""
        pids = job_usage.list_descendants(os.getpid())
        found = self._find_used_up(pids) or (self._find_full(pids) if now >= self._next_disk else "")
        # A look that takes long must not become all that is done.
        self._next_look = max(now + _LOOK_S, time.monotonic() + _LOOK_S / 2)
        return found

    def _find_used_up(self, pids: list[int]) -> str:
        bounds = self._bounds
        used = job_usage.measure_processes(pids, memory_limit=bounds["memory_bytes"])
        self.cpu_s = max(self.cpu_s, used.cpu_s + measure_ended_cpu())
        if used.tasks > bounds["processes"] + OWN_TASKS:
            return "processes"
        if used.memory_bytes > bounds["memory_bytes"]:
            return "memory_bytes"
        return "cpu_s" if self.cpu_s > bounds["cpu_s"] else ""

    def _find_full(self, pids: list[int]) -> str:
        bounds = self._bounds
        began = time.monotonic()
        left = bounds["disk_bytes"] + bounds["base_bytes"]
        for folder in bounds["folders"]:
            left -= job_usage.measure_folder(folder, limit=max(0, left))
        left -= job_usage.measure_deleted(pids)
        ended = time.monotonic()
        self._next_disk = ended + _DISK_SHARE * (ended - began)
        return "disk_bytes" if left < 0 else ""


def measure_ended_cpu() -> float:
    """Return the seconds of processor time of the children that were reaped, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class StartedJob:
    """A started job: its first process, and the pipes from it."""

    def __init__(self, order: Order) -> None:
        output, output_end = os.pipe()
        failures, failures_end = os.pipe()
        status, status_end = os.pipe()
        commands, self._commands = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            launch(order, output=output_end, failures=failures_end, status=status_end, commands=commands)
        for end in (output_end, failures_end, status_end, commands):
            os.close(end)
        self._failures, self._status = failures, status
        self.output = output
        self.handle = os.pidfd_open(self.pid)
        self.code = _KILLED
        confinement = order["confinement"]
        self._has_namespace = bool(confinement["launcher"])
        self._ends_at_once = self._has_namespace or confinement["is_scoped"]
        self._is_reaped = False

    def reap(self) -> bool:
        """Reap what has ended, orphans too, and return whether the first process is among it; keeps its exit code."""
        is_over = False
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.pid:
                    is_over = self._is_reaped = True
                    code = os.waitstatus_to_exitcode(ended[1])
                    self.code = code if code >= 0 else 128 - code
        return is_over

    def ask_where_it_is(self, kept: Output) -> None:
        """Have the processes print their stacks: those of Python do so at SIGABRT, those of Go and Java at SIGQUIT.

        Who has children comes last, because some hand on what these print.
        """
        poll = select.poll()
        poll.register(self.output, select.POLLIN)
        for pids in job_usage.list_by_age(os.getpid(), without=self.pid if self._has_namespace else 0):
            job_usage.ask_for_stacks(pids)
            end = time.monotonic() + _STACKS_S
            while (left := end - time.monotonic()) > 0 and job_usage.are_alive(pids):
                if poll.poll(min(left, _LOOK_S) * 1000) and not self._take(kept):
                    return
        while poll.poll(0) and self._take(kept):
            pass

    def _take(self, kept: Output) -> bool:
        chunk = os.read(self.output, _CHUNK)
        kept.add(chunk)
        return bool(chunk)

    def end(self) -> None:
        """Kill all processes of the job and wait until none is left."""
        # One of the two ends all of them at once: the process that waits for this, or the end of the namespace.
        os.close(self._commands)
        if self._has_namespace and not self._is_reaped:
            os.kill(self.pid, signal.SIGKILL)
        job_usage.end_all(grace_s=_GRACE_S if self._ends_at_once else 0.0)

    def read_failure(self) -> str:
        """Return why there was no job, or nothing; waits until it runs."""
        return read_all(self._failures).decode(errors="replace")

    def read_status(self) -> bytes:
        """Return what bubblewrap told; only when all processes have ended."""
        return read_all(self._status)


def read_all(handle: int) -> bytes:
    """Return what comes until the other side closes."""
    parts = []
    while part := os.read(handle, _CHUNK):
        parts.append(part)
    return b"".join(parts)


def serve() -> None:
    """Fork a shepherd for each order that comes through standard input, a socket, until the server closes it.

    A message is the path of an order, with the far ends of its lifeline and of the pipe of its answer.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    orders = socket.socket(fileno=0)
    while True:
        path, handles, _, _ = socket.recv_fds(orders, _LONGEST_PATH, 2)
        if not path:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for handle, stream in zip(handles, (_LIFELINE, _ANSWER), strict=True):
                os.dup2(handle, stream)
                os.close(handle)
            try:
                main(path.decode())
            finally:
                os._exit(0)
        for handle in handles:
            os.close(handle)


def main(path: str) -> None:
    """Run the job of the order at `path`."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to import
        order: Order = json.load(file)
    kernel.become_subreaper()
    # What the job starts in great number must not keep the shepherd from ending it.
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    report, output = run(order)
    line = json.dumps(report).encode() + b"\n"
    for part in (line, output):
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(_ANSWER, rest) :]


def run(order: Order) -> tuple[JobReport, bytes]:
    """Run a job to its end, or to that of its limits or of the lifeline; no process of it is left afterwards."""
    bounds = order["bounds"]
    started = time.monotonic()
    job = StartedJob(order)
    kept = Output(bounds["output_bytes"])
    failure = job.read_failure()
    watch = Watch(bounds, started)
    exceeded = "" if failure else attend(job, kept, watch)
    if exceeded in {"wall_s", "cpu_s"}:
        job.ask_where_it_is(kept)
    job.end()
    while chunk := os.read(job.output, _CHUNK):
        kept.add(chunk)
    output, code = kept.close(), job.code
    if order["confinement"]["launcher"] and not failure and not exceeded:
        code, failure = judge_launcher(job, output)
    if code == NOT_FOUND and job.code != NOT_FOUND:
        output = f"{order['argv'][0]}: not found\n".encode()
    elapsed, cpu = time.monotonic() - started, max(watch.cpu_s, measure_ended_cpu())
    # A process may be ended by its own limit of processor time before the sum is looked at.
    if not exceeded and cpu > bounds["cpu_s"]:
        exceeded = "cpu_s"
    return {
        "exit_code": code,
        "elapsed_s": elapsed,
        "cpu_s": cpu,
        "exceeded": exceeded,
        "is_output_cut": kept.is_cut,
        "output_size": len(output),
        "failure": failure,
    }, output


def attend(job: StartedJob, kept: Output, watch: Watch) -> str:
    """Wait for the end of the job's first process, and return the limit that was exceeded first, or nothing."""
    poll = select.poll()
    poll.register(_LIFELINE, select.POLLIN)
    poll.register(job.handle, select.POLLIN)
    poll.register(job.output, select.POLLIN)
    while True:
        ready = {handle for handle, _ in poll.poll(watch.wait_s * 1000 + 1)}
        if job.output in ready:
            chunk = os.read(job.output, _CHUNK)
            kept.add(chunk)
            if not chunk:
                poll.unregister(job.output)
        if job.reap() or _LIFELINE in ready:
            return ""
        exceeded = watch.find_exceeded()
        if exceeded:
            return exceeded


def judge_launcher(job: StartedJob, output: bytes) -> tuple[int, str]:
    """Return the exit code of the command and why there was none: bubblewrap tells a code if the command began."""
    if b'"exit-code"' in job.read_status():
        return job.code, ""
    text = output.decode(errors="replace").strip()
    if text.startswith("bwrap: execvp "):
        return (NOT_FOUND if text.endswith("No such file or directory") else NOT_EXECUTABLE), ""
    # A command that was killed from outside, or with its whole namespace, has no code either.
    return job.code, text if text.startswith("bwrap: ") else ""
