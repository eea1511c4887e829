"""Where a gRPC server listens: addresses, Unix sockets, what is said when that does not work."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from typing import TYPE_CHECKING, Final

from reasond_server.addresses import split_address
from reasond_server.errors import SettingsError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import grpc

_MAX_SOCKET_PATH_BYTES: Final = 107


def bind_tcp(server: grpc.aio.Server, address: str, *, credentials: grpc.ServerCredentials | None, setting: str) -> int:
    """Open `address` (host:port, port 0 picks one) and return the port.

    Raises:
        SettingsError: the address is malformed, in use or not of this machine; `setting` names its key.
    """
    require_address(address, setting=setting)
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise SettingsError(
            f"Cannot listen on {shown(address)}",
            remedy=f"Another process may use the port, or the host is not of this machine: change [server] {setting}, "
            f"or use port 0 to pick a free one.",
        ) from error


def require_address(address: str, *, setting: str) -> None:
    """Refuse what is not host:port, before grpc takes it for a name to look up.

    Raises:
        SettingsError: `address` has another form; `setting` names its key.
    """
    try:
        split_address(address)
    except ValueError:
        raise SettingsError(
            f"{shown(address)} is not host:port",
            remedy=f"Write [server] {setting} as '127.0.0.1:50051' or '[::1]:50051'.",
        ) from None


def bind_unix(server: grpc.aio.Server, path: Path) -> None:
    """Open a Unix socket that its owner and group may use, in a folder that others cannot enter.

    What a dead server has left at the path is removed first; grpc removes the socket when it stops.

    Raises:
        SettingsError: the folder is missing or open to everybody, or something else is at the path.
    """
    _check_folder(path)
    _clear(path)
    try:
        # The socket is made with its final mode: set afterwards, others could connect in between.
        with _umask(0o117):
            server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise SettingsError(
            f"Cannot listen on the Unix socket {shown(str(path))}", remedy="Check that the folder may be written to."
        ) from error


def _check_folder(path: Path) -> None:
    if not path.is_absolute() or len(os.fsencode(path)) > _MAX_SOCKET_PATH_BYTES:
        raise SettingsError(
            f"The Unix socket {shown(str(path))} is not an absolute path of at most {_MAX_SOCKET_PATH_BYTES} bytes",
            remedy="Change [server] grpc_unix_socket.",
        )
    folder = path.parent
    if not folder.is_dir():
        raise SettingsError(
            f"The folder {shown(str(folder))} of the Unix socket does not exist", remedy="Create it with mode 0700."
        )
    if folder.stat().st_mode & stat.S_IRWXO:
        raise SettingsError(
            f"Everybody on this machine can enter the folder {shown(str(folder))} of the Unix socket",
            remedy="Use a folder of its own with mode 0700 or 0750.",
        )


def _clear(path: Path) -> None:
    """Remove a socket that a dead server has left; refuse anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SettingsError(
            f"{shown(str(path))} exists and is no socket", remedy="Move it away, or change [server] grpc_unix_socket."
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            # Only this proves that nobody listens; any other failure may be a server that is busy.
            path.unlink()
            return
        except OSError:
            pass
    raise SettingsError(
        f"Another server listens on the Unix socket {shown(str(path))}",
        remedy="Stop it, or change [server] grpc_unix_socket.",
    )


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
