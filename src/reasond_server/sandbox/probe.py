"""The self-test: tries to get out of the sandbox that it runs in, and prints "held", or the ways that it found.

Arguments: a file outside that everybody may read, and the process id of the server. Standard library only.
"""

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

_ALLOWED_VARIABLES = {"PATH", "HOME", "TMPDIR", "LANG", "PWD", "LC_CTYPE"}


def is_refused(attempt: Callable[[], object]) -> bool:
    """Return whether the system refuses `attempt`."""
    try:
        attempt()
    except OSError:
        return True
    return False


def list_ways(secret: str, server: int) -> list[str]:
    """Return the ways out that are open."""
    attempts = {
        "it reads files outside": lambda: Path(secret).read_bytes(),
        "it writes files outside": lambda: Path(secret).write_bytes(b""),
        "it makes files outside": lambda: Path(secret).with_name("made").write_bytes(b""),
        "it writes its sources": lambda: Path(__file__).write_bytes(b""),
        "it has IPv4": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        "it has IPv6": lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
        "it signals the server": lambda: os.kill(server, 0),
        "it reads the server's variables": lambda: Path(f"/proc/{server}/environ").read_bytes(),
    }
    ways = [way for way, attempt in attempts.items() if not is_refused(attempt)]
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    wanted = {"NoNewPrivs": "1", "Seccomp": "2", "CapEff": f"{0:016x}"}
    ways += [f"{name} is {status.get(name)}" for name, value in wanted.items() if status.get(name) != value]
    ways += [f"it has the variable {name}" for name in sorted(os.environ.keys() - _ALLOWED_VARIABLES)]
    return ways


if __name__ == "__main__":
    Path("written").write_text("its own folder is writable", encoding="ascii")
    print("; ".join(list_ways(sys.argv[1], int(sys.argv[2]))) or "held")  # noqa: T201 - what it is for
