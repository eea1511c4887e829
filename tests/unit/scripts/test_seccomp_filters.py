"""The filters of calls: as generated, and read as the kernel reads them, for both architectures."""

from __future__ import annotations

import struct

import pytest

from scripts.seccomp_filters import (
    ALLOW,
    ARCHITECTURES,
    ENOSYS,
    EPERM,
    FAKE,
    FILTERS,
    KILL_PROCESS,
    NUMBERS,
    assemble,
    list_files,
)

KINDS = tuple(FILTERS)
LANDLOCK = ("landlock", "landlock_unscoped")


def judge(kind: str, architecture: str, call: int, *arguments: int, spoken: int | None = None) -> int:
    """Return what the filter says to a call, as the kernel's interpreter of BPF does."""
    program = assemble(FILTERS[kind], architecture)
    told = ARCHITECTURES[architecture] if spoken is None else spoken
    data = struct.pack("<IIQ6Q", call, told, 0, *(*arguments, *[0] * (6 - len(arguments))))
    place, accumulator = 0, 0
    while True:
        code, if_true, if_false, operand = struct.unpack_from("<HBBI", program, 8 * place)
        place += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, operand)
        elif code == 0x54:
            accumulator &= operand
        elif code == 0x06:
            return int(operand)
        else:
            is_so = {0x15: accumulator == operand, 0x25: accumulator > operand, 0x45: bool(accumulator & operand)}[code]
            place += if_true if is_so else if_false


def test_the_committed_filters_are_those_of_the_script() -> None:
    for path, content in list_files():
        assert path.read_bytes() == content, path.name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", KINDS)
def test_calls_are_judged_as_the_rules_say(kind: str, architecture: str) -> None:
    column = list(ARCHITECTURES).index(architecture)

    def say(name: str, *arguments: int) -> int:
        number = NUMBERS[name][column]
        assert number is not None
        return judge(kind, architecture, number, *arguments)

    is_landlock = kind in LANDLOCK
    read, local = {"x86_64": 0, "aarch64": 63}[architecture], 1
    assert judge(kind, architecture, read) == ALLOW
    assert judge(kind, architecture, read, spoken=0x40000003) == KILL_PROCESS
    assert {judge(kind, architecture, number) for number in (451, 600, 0x40000000 | 39)} == {ENOSYS}
    assert [say("clone3"), say("io_uring_setup"), say("mount"), say("ptrace"), say("shmat")] == [
        ENOSYS,
        ENOSYS,
        *[EPERM] * 3,
    ]
    assert (say("clone", 0x10000011), say("clone", 0x01200011)) == (EPERM, ALLOW)
    assert (say("prlimit64", 0, 7), say("prlimit64", 1, 7), say("prlimit64", 0, 15)) == (ALLOW, EPERM, EPERM)
    assert (say("setrlimit", 15), say("setrlimit", 7)) == (EPERM, ALLOW)
    assert (say("prctl", 4), say("prctl", 35), say("prctl", 15)) == (FAKE, EPERM, ALLOW)
    assert [say("socket", family) for family in (local, 2, 10, 16)] == [EPERM if is_landlock else ALLOW, *[EPERM] * 3]
    assert say("fchmod") == (ALLOW if kind == "namespaces" else FAKE)
    pairs = [say("socketpair", local, kind_of) for kind_of in (1, 0x80001, 5, 2)]
    assert pairs == [ALLOW, ALLOW, ALLOW, EPERM if is_landlock else ALLOW]
    assert say("setpriority", 0, 0) == ALLOW
    assert say("setpriority", 2, 0) == (EPERM if is_landlock else ALLOW)
    assert say("kill") == (EPERM if kind == "landlock_unscoped" else ALLOW)
    assert say("fcntl", 3, 8) == (EPERM if kind == "landlock_unscoped" else ALLOW)
