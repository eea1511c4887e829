"""Messages between server and shepherd: JSON, because both sides have the same version."""

from __future__ import annotations

from typing import TypedDict


class Confinement(TypedDict):
    """What holds the job.

    `launcher` are the words of bubblewrap before `--`; without them Landlock allows reading below `readable`, writing
    below `writable`, and using the devices `devices`. `filter` is a file with a seccomp program. `uid` is what the
    processes of the job become; None: they stay what the server is. `staged` are pairs of a folder that this user
    cannot reach and an empty one where it is mounted for bubblewrap alone.
    """

    launcher: list[str]
    readable: list[str]
    writable: list[str]
    devices: list[str]
    is_scoped: bool
    filter: str
    uid: int | None
    staged: list[list[str]]


class Bounds(TypedDict):
    """The limits of `SandboxLimits`, and `base_bytes`: what stands in `folders` before the job starts."""

    wall_s: float
    cpu_s: float
    memory_bytes: int
    has_address_limit: bool
    processes: int
    disk_bytes: int
    base_bytes: int
    folders: list[str]
    output_bytes: int


class Order(TypedDict):
    """One job. `mark` is the number by which its processes are found again, also after they lost their parents."""

    argv: list[str]
    folder: str
    variables: dict[str, str]
    mark: int
    confinement: Confinement
    bounds: Bounds


class JobReport(TypedDict):
    """How a job ended; `output_size` bytes of output follow. `failure` tells why there was no job."""

    exit_code: int
    elapsed_s: float
    cpu_s: float
    exceeded: str
    is_output_cut: bool
    output_size: int
    failure: str
