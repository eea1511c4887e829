"""Calls of the kernel that Python does not wrap: prctl, seccomp and Landlock, for a process about to run foreign code.

Sources: linux/prctl.h, linux/seccomp.h, linux/landlock.h. The numbers of Landlock's calls are the same everywhere.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
_SECCOMP_MODE_FILTER = 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_CLONE_NEWNS = 0x20000
_PRIVATE, _BIND = 1 << 18 | 1 << 14, 1 << 12 | 1 << 14
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
# The rights of a folder's files that stand for ABI 3: all below bit 15.
_ALL_FILE_RIGHTS = (1 << 15) - 1
_MAKE_DEVICES = 1 << 6 | 1 << 11
_BIND_AND_CONNECT_TCP = 3
_ABSTRACT_SOCKETS_AND_SIGNALS = 3
_ABI_OF_NETWORK, _ABI_OF_DEVICES, _ABI_OF_SCOPES = 4, 5, 6

_C = ctypes.CDLL(None, use_errno=True)


class _RulesetAttributes(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.c_char_p))


def _call_prctl(option: int, *arguments: object) -> None:
    """Call prctl, which wants five arguments.

    Raises:
        OSError: the kernel refused.
    """
    words = [*arguments, *(ctypes.c_ulong(0) for _ in range(4 - len(arguments)))]
    if _C.prctl(option, *words) != 0:
        _fail()


def _call(number: int, *arguments: object) -> int:
    result = int(_C.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        _fail()
    return result


def _fail() -> None:
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code))


def become_subreaper() -> None:
    """Make orphans among all descendants children of this process."""
    _call_prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))


def end_with_parent() -> None:
    """Have this process killed when its parent ends."""
    _call_prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))


def refuse_new_privileges() -> None:
    """Give up privileges that programs with the set-user-id bit would bring."""
    _call_prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1))


def mount_privately(pairs: Iterable[Sequence[str]]) -> None:
    """Mount the first folder of each pair at the second, for this process and its descendants alone.

    Raises:
        OSError: the kernel refused.
    """
    if _C.unshare(_CLONE_NEWNS) != 0 or _C.mount(None, b"/", None, ctypes.c_ulong(_PRIVATE), None) != 0:
        _fail()
    for source, target in pairs:
        if _C.mount(source.encode(), target.encode(), None, ctypes.c_ulong(_BIND), None) != 0:
            _fail()


def install_filter(program: bytes) -> None:
    """Filter the system calls of this process and of what it starts, from now on."""
    instructions = ctypes.create_string_buffer(program, len(program))
    loaded = _Program(len(program) // 8, ctypes.cast(instructions, ctypes.c_char_p))
    _call_prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(loaded))


def find_landlock_abi() -> int:
    """Return the version of Landlock in this kernel; 0: it has none, or it is switched off."""
    with suppress(OSError):
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    return 0


def restrict_paths(
    *, readable: Iterable[str], writable: Iterable[str], devices: Iterable[str], is_scoped: bool
) -> None:
    """Restrict this process, and what it starts, to the paths; what does not exist is left out.

    It may bind and connect no TCP port, and with `is_scoped` signal nobody outside and reach no abstract socket there.

    Raises:
        OSError: the kernel refused.
    """
    abi = find_landlock_abi()
    handled = _ALL_FILE_RIGHTS | (_IOCTL_DEV if abi >= _ABI_OF_DEVICES else 0)
    attributes = _RulesetAttributes(
        handled,
        _BIND_AND_CONNECT_TCP if abi >= _ABI_OF_NETWORK else 0,
        _ABSTRACT_SOCKETS_AND_SIGNALS if is_scoped else 0,
    )
    # A kernel refuses fields that it does not know, even if they are zero, unless they lie beyond the given size.
    size = 24 if abi >= _ABI_OF_SCOPES else 16 if abi >= _ABI_OF_NETWORK else 8
    ruleset = _call(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0))
    for path in readable:
        _allow(ruleset, path, _READ_FILE | _READ_DIR | _EXECUTE)
    for path in writable:
        _allow(ruleset, path, handled & ~_MAKE_DEVICES & ~_IOCTL_DEV)
    for path in devices:
        _allow(ruleset, path, _READ_FILE | _WRITE_FILE | _TRUNCATE)
    _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)


def bound_signals() -> None:
    """Have this process, and what it starts, signal nobody else from now on; needs the scopes of Landlock.

    What restricts itself further afterwards can be signalled from here, but cannot signal back.

    Raises:
        OSError: the kernel refused.
    """
    attributes = _RulesetAttributes(0, 0, _ABSTRACT_SOCKETS_AND_SIGNALS)
    ruleset = _call(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(24), ctypes.c_uint32(0))
    _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not os.path.isdir(path):  # noqa: PTH112 - pathlib is slow to import, and a shepherd starts for each job
        rights &= _EXECUTE | _READ_FILE | _WRITE_FILE | _TRUNCATE
    rule = _PathBeneath(rights, parent)
    _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
    os.close(parent)
