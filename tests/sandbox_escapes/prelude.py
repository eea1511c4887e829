"""What stands before each program: names for what lies outside, and the word that says that it got out.

It stands before some 500 programs in each run of the tests, so it imports only what they use: json, pathlib, platform
and contextlib took a third of the processor time of most of them.
"""

# ruff: noqa: F401 - the programs behind it use the names

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable

outside = eval(sys.argv[1])  # noqa: S307 - written by the driver
secret = outside["secret"]
victim = outside["victim"]
C = ctypes.CDLL(None, use_errno=True)
INTEL = os.uname().machine == "x86_64"


def tell_escape(what: object = "") -> None:
    """Say that something worked that must not."""
    os.write(1, f"ESCAPED {what!r}\n".encode())


def call(number: int, *arguments: object) -> int:
    """Call the system directly, and raise OSError if it refuses."""
    # Numbers are whole words, also those that are passed on the stack.
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = int(C.syscall(ctypes.c_long(number), *words))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def number(intel: int, arm: int) -> int:
    """Return the number of a call on this machine."""
    return intel if INTEL else arm


def read(path: str) -> bytes:
    """Read a file."""
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib is slow to import
        return file.read(100_000)


def attempt(*ways: Callable[[], object]) -> None:
    """Try each of `ways`, and go on if the system refuses."""
    for way in ways:
        try:  # noqa: SIM105 - contextlib is slow to import
            way()
        except (OSError, ValueError):
            pass
