"""Ports that are reserved for several processes."""

import socket
from collections.abc import Iterator

import pytest

from reasond_server.cli.processes import reserve_port
from reasond_server.errors.base import SettingsError


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as one:
        yield one


def test_a_free_port_is_found_and_shared_by_who_asks_for_it(listener: socket.socket) -> None:
    with reserve_port("127.0.0.1:0", setting="[server] grpc_address") as address:
        host, _, port = address.rpartition(":")
        assert (host, int(port) > 0) == ("127.0.0.1", True)
        with pytest.raises(OSError, match="in use"):
            listener.bind((host, int(port)))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, int(port)))
        listener.listen()
        with socket.create_connection((host, int(port)), timeout=180):
            listener.accept()[0].close()


def test_a_port_that_somebody_else_shares_is_refused(listener: socket.socket) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    with (
        pytest.raises(SettingsError, match=f"Cannot listen on '{address}'"),
        reserve_port(address, setting="[server] grpc_address"),
    ):
        pytest.fail("two servers would share the callers")


def test_a_port_that_another_supervisor_shares_can_be_shared_where_that_is_asked(listener: socket.socket) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    with reserve_port(address, setting="[server] grpc_address", is_shared=True) as kept:
        assert kept == address


def test_a_system_that_cannot_share_ports_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_REUSEPORT")
    with pytest.raises(SettingsError, match="cannot share a port"), reserve_port("127.0.0.1:0", setting="x"):
        pytest.fail("no port can be shared")
