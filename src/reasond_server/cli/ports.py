"""Ports that several processes share: found, and kept, by the one that starts them."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from reasond_server.addresses import split_address
from reasond_server.errors import SettingsError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def reserved(address: str, *, setting: str) -> Iterator[str]:
    """Keep the port of `address` (host:port) while the context lasts; yield it with the port that 0 became.

    The socket never listens, so no connection reaches it; processes of this user that set SO_REUSEPORT can listen.

    Raises:
        SettingsError: another process has the port, the host is not of this machine, or the system cannot share ports.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        raise SettingsError("This system cannot share a port among processes", remedy="Set [server] workers = 1.")
    host, port = split_address(address)
    with contextlib.ExitStack() as stack:
        try:
            family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            if port:
                # Alone first: somebody else who shares the port as well would get half of the callers.
                with socket.socket(family, socket.SOCK_STREAM) as alone:
                    alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    alone.bind(place)
            keeper = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            keeper.bind(place)
        except OSError as error:
            raise SettingsError(
                f"Cannot listen on {shown(address)}",
                remedy=f"Another process may use the port, or the host is not of this machine: change {setting}, "
                "or use port 0 to pick a free one.",
            ) from error
        yield f"{address.rpartition(':')[0]}:{keeper.getsockname()[1]}"
