"""The last steps of a process before it becomes the job: streams, limits, user, Landlock and the filter of calls."""

from __future__ import annotations

import math
import os
import resource
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from reasond_server.sandbox.shepherd import kernel

if TYPE_CHECKING:
    from reasond_server.sandbox.shepherd.order import Order

NOT_FOUND, NOT_EXECUTABLE = 127, 126
_OPEN_FILES = 4096
# The limit of processes counts those of the user on the whole machine, so it only slows what starts very many; the
# shepherd counts those of the job.
_USERS_PROCESSES = 4096
_PRIORITY = 10


def launch(order: Order, *, output: int, failures: int, status: int) -> NoReturn:
    """Turn this process into the job. What goes wrong is written to `failures`, which closes when the job runs.

    `output` is the pipe of the job's output, `status` that in which bubblewrap tells how its command ended.
    """
    try:
        _prepare(order, output)
        if order["confinement"]["launcher"]:
            _start_bubblewrap(order, status)
        else:
            _start_confined(order)
    except BaseException as error:  # noqa: BLE001 - whatever it is, this process must not go on as a shepherd
        with suppress(OSError):
            os.write(failures, f"{type(error).__name__}: {error}".encode())
    os._exit(NOT_EXECUTABLE)


def _prepare(order: Order, output: int) -> None:
    """Give the process its session, streams, limits, priority and user."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
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
        resource.RLIMIT_NPROC: max(_USERS_PROCESSES, bounds["processes"]),
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


def _start_bubblewrap(order: Order, status: int) -> None:
    confinement = order["confinement"]
    program = os.memfd_create("filter", 0)
    os.write(program, _read(confinement["filter"]))
    os.lseek(program, 0, os.SEEK_SET)
    os.set_inheritable(status, True)
    launcher = confinement["launcher"]
    words = [*launcher, "--json-status-fd", str(status), "--seccomp", str(program), "--", *order["argv"]]
    os.execve(launcher[0], words, {})  # noqa: S606 - no shell is wanted


def _start_confined(order: Order) -> None:
    confinement = order["confinement"]
    program = _read(confinement["filter"])
    folder, argv, variables = order["folder"], order["argv"], order["variables"]
    os.chdir(folder)
    kernel.refuse_new_privileges()
    kernel.restrict_paths(
        readable=[*confinement["readable"], f"/proc/{os.getpid()}"],
        writable=confinement["writable"],
        devices=confinement["devices"],
        is_scoped=confinement["is_scoped"],
    )
    kernel.install_filter(program)
    _execute(argv, variables)


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
