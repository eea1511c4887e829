"""A real PostgreSQL on a free loopback port, created for one test run and deleted after it.

    with running_postgres() as server:
        url = server.new_database()  # empty
        server.restart()

PostgreSQL refuses to run as root: if the tests do, it runs as the user `postgres`, or as `nobody` if there is none.
"""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LIMIT_S = 180.0
_DEBIAN = Path("/usr/lib/postgresql")


def postgres_program(name: str) -> str | None:
    """Return the path of one of PostgreSQL's own programs, which Debian keeps off the PATH."""
    newest_first = sorted(_DEBIAN.glob("*/bin"), key=lambda path: -float(path.parent.name)) if _DEBIAN.exists() else []
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, newest_first)]))


def is_postgres_here() -> bool:
    """Return whether PostgreSQL is installed."""
    return all(postgres_program(name) for name in ("initdb", "pg_ctl", "postgres"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """A running server, reached over loopback with a password."""

    folder: Path
    port: int
    user: str
    names: Iterator[int] = field(default_factory=lambda: count(1))

    def url(self, database: str = "postgres") -> str:
        """Return the address of a database."""
        return f"postgresql://reasond:secret-of-postgres@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """Make an empty database and return its address."""
        name = f"db{next(self.names)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    @property
    def process_id(self) -> int:
        """Id of the server's main process."""
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def restart(self, mode: str = "immediate") -> None:
        """Restart the server; the mode `immediate` is like a crash."""
        self._control("restart", "-m", mode)

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server; `start` starts it again."""
        self._control("stop", "-m", mode)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self._control("start")

    def _control(self, action: str, *arguments: str) -> None:
        log = self.folder / "log"
        where = ("-D", str(self.folder / "data"), "-l", str(log), "-w", "-t", f"{LIMIT_S:g}")
        _run(self.user, "pg_ctl", action, *where, *arguments)


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Start a server whose files are in a folder of its own, and stop it in the end.

    The folder is not below pytest's folders: every session of pytest closes those to other users.
    """
    user = _other_user()
    with tempfile.TemporaryDirectory(prefix="reasond-postgres-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        server = PostgresServer(folder=folder, port=_free_port(), user=user)
        password = folder / "password"
        password.write_text("secret-of-postgres")
        if user:
            for path in (folder, password):
                os.chown(path, pwd.getpwnam(user).pw_uid, -1)
        where = ("-D", str(folder / "data"), "-U", "reasond", f"--pwfile={password}")
        _run(user, "initdb", *where, "-A", "scram-sha-256", "-E", "UTF8", "--no-sync")
        with (folder / "data" / "postgresql.conf").open("a", encoding="utf-8") as conf:
            conf.write(f"listen_addresses = '127.0.0.1'\nport = {server.port}\nunix_socket_directories = ''\n")
            conf.write("max_connections = 60\nshared_buffers = 16MB\n")
            # The tests crash the server and never the machine: what it has written needs not reach the disk.
            conf.write("fsync = off\nfull_page_writes = off\n")
        try:
            server.start()
            yield server
        finally:
            _quietly_stopped(server)


def _quietly_stopped(server: PostgresServer) -> None:
    try:
        server.stop()
    except subprocess.CalledProcessError:
        pid = server.folder / "data" / "postmaster.pid"
        if pid.exists():
            os.kill(int(pid.read_text().splitlines()[0]), signal.SIGKILL)


def _run(user: str, name: str, *arguments: str) -> None:
    program = postgres_program(name)
    if program is None:
        raise FileNotFoundError(name)
    # Not with subprocess's own `user`, which forks: a fork beside gRPC's threads sometimes ends in a SIGSEGV.
    other = (
        ("setpriv", f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--clear-groups", "--") if user else ()
    )
    command: Sequence[str] = (*other, program, *arguments)
    subprocess.run(
        command,
        check=True,
        timeout=LIMIT_S * 2,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )


def _other_user() -> str:
    """Return the user to run as; empty: the current user."""
    if os.geteuid() != 0:
        return ""
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def _free_port() -> int:
    """Return a port below the system's range for clients, so that it is still free at a restart."""
    chance = random.SystemRandom()
    while True:
        port = chance.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
