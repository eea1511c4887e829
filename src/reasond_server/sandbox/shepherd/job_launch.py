"""The last steps of a process before it becomes the job: streams, limits, user, Landlock and the filter of calls."""

from __future__ import annotations

import math
import os
import resource
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from reasond_server.sandbox.shepherd import kernel

if TYPE_CHECKING:
    from reasond_server.sandbox.shepherd.order import Order

NOT_FOUND, NOT_EXECUTABLE = 127, 126
_OPEN_FILES = 4096
# The limit of processes counts the threads of the user on the whole machine. Where jobs have no user of their own it
# leaves room for other jobs and for the server: it only keeps a job that starts very many from taking the machine, and
# the shepherd counts those of the job.
_ROOM_FOR_OTHERS = 512
_PRIORITY = 10
_NOBODY = 65534
# What Python and the shepherd ignore, a job would ignore too.
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)
# Processes that belong to us: two of bubblewrap, or one that ends the others.
OWN_TASKS = 2


def launch(order: Order, *, output: int, failures: int, status: int, commands: int) -> NoReturn:
    """Turn this process into the job. What goes wrong is written to `failures`, which closes when the job runs.

    `output` is the pipe of the job's output, `status` that in which bubblewrap tells how its command ended, `commands`
    that at whose end the job is ended.
    """
    try:
        # Read before the process changes its user, who may not enter the folder that the server is installed in.
        program = _read(order["confinement"]["filter"])
        _prepare(order, output)
        if order["confinement"]["launcher"]:
            _start_bubblewrap(order, program, status)
        else:
            _start_confined(order, program, commands)
    except BaseException as error:  # noqa: BLE001 - whatever it is, this process must not go on as a shepherd
        with suppress(OSError):
            os.write(failures, f"{type(error).__name__}: {error}".encode())
    os._exit(NOT_EXECUTABLE)


def _prepare(order: Order, output: int) -> None:
    """Give the process its session, streams, limits, priority and user."""
    os.setsid()
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    # Where the kernel runs out of memory it ends jobs first.
    with suppress(OSError):
        handle = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(handle, b"1000")
        os.close(handle)
    _limit(order)
    uid, staged = order["confinement"]["uid"], order["confinement"]["staged"]
    if staged:
        kernel.mount_privately(staged)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.umask(0o022)
    kernel.end_with_parent()
    if os.getppid() == 1:  # the parent ended before that call
        os._exit(NOT_EXECUTABLE)


def _limit(order: Order) -> None:
    bounds = order["bounds"]
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: math.ceil(bounds["cpu_s"]) + 1,
        resource.RLIMIT_FSIZE: bounds["disk_bytes"],
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_NPROC: bounds["processes"] + OWN_TASKS + _count_others(order["confinement"]["uid"]),
        resource.RLIMIT_MEMLOCK: 65536,
        # It bounds real-time processes, which a job cannot start; here it is the mark of the job.
        resource.RLIMIT_RTTIME: order["mark"],
    }
    if bounds["has_address_limit"]:
        limits[resource.RLIMIT_AS] = bounds["memory_bytes"]
    for kind, amount in limits.items():
        highest = resource.getrlimit(kind)[1]
        least = amount if highest == resource.RLIM_INFINITY else min(amount, highest)
        resource.setrlimit(kind, (least, least))


def _count_others(uid: int | None) -> int:
    """Return how many threads more than its own the user of the job may have."""
    if uid is not None and uid != _NOBODY:
        return 0  # a user of its own
    owner, count = (os.geteuid() if uid is None else uid), 0
    with os.scandir("/proc") as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.name.isdecimal() and entry.stat().st_uid == owner:
                    # Two of its links are not threads.
                    count += os.stat(f"{entry.path}/task").st_nlink - 2  # noqa: PTH116 - pathlib is slow to import
    return count + _ROOM_FOR_OTHERS


def _start_bubblewrap(order: Order, program: bytes, status: int) -> None:
    confinement = order["confinement"]
    file = os.memfd_create("filter", 0)
    os.write(file, program)
    os.lseek(file, 0, os.SEEK_SET)
    os.set_inheritable(status, True)
    launcher = confinement["launcher"]
    os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    words = [*launcher, "--json-status-fd", str(status), "--seccomp", str(file), "--", *order["argv"]]
    os.execve(launcher[0], words, {})  # noqa: S606 - no shell is wanted


def _start_confined(order: Order, program: bytes, commands: int) -> None:
    confinement = order["confinement"]
    folder, argv, variables = order["folder"], order["argv"], order["variables"]
    os.chdir(folder)
    kernel.refuse_new_privileges()
    if confinement["is_scoped"]:
        kernel.bound_signals()
        _start_executioner(commands)
    os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    kernel.restrict_paths(
        readable=[*confinement["readable"], f"/proc/{os.getpid()}"],
        writable=confinement["writable"],
        devices=confinement["devices"],
        is_scoped=confinement["is_scoped"],
    )
    kernel.install_filter(program)
    _execute(argv, variables)


def _start_executioner(commands: int) -> None:
    """Start a process that kills all processes of the job in one call when `commands` says so, or closes.

    It stands in the domain around that of the job: it can signal the job and nobody else, and the job cannot signal it.
    The job is not its parent, so that the job does not wait for it.
    """
    middle = os.fork()
    if middle == 0:
        if os.fork() == 0:
            os.dup2(commands, 0)
            os.closerange(1, _OPEN_FILES)
            os.read(0, 1)
            with suppress(OSError):
                os.kill(-1, signal.SIGKILL)
        os._exit(0)
    os.waitpid(middle, 0)


def _execute(argv: list[str], variables: dict[str, str]) -> None:
    """Become the command `argv`, found as a shell finds it; all descriptors but the streams close themselves."""
    name = argv[0]
    places = [name] if "/" in name else [f"{folder}/{name}" for folder in variables.get("PATH", "").split(":")]
    code = NOT_FOUND
    for place in places:
        try:
            os.execve(place, argv, variables)  # noqa: S606 - no shell is wanted
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            code = NOT_EXECUTABLE
    reason = "not found" if code == NOT_FOUND else "cannot be executed"
    os.write(2, f"{name}: {reason}\n".encode())
    os._exit(code)


def _read(path: str) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(handle, 65536)
    finally:
        os.close(handle)
