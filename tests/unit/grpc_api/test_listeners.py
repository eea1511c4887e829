from __future__ import annotations

import asyncio
import socket
import stat
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # shipped without py.typed

from reasond_server.errors.base import SettingsError
from reasond_server.grpc_api.listeners import require_address
from tests.unit.grpc_api.parts import SOON, new_server

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that others cannot enter."""
    private = tmp_path / "run"
    private.mkdir(mode=0o700)
    return private


def server_at(path: Path, **options: Any) -> Any:
    return new_server(**{"grpc_address": "", "grpc_unix_socket": str(path), **options})


async def answers(target: str) -> bool:
    async with grpc.aio.insecure_channel(target, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=SOON)
    return True


@pytest.mark.parametrize(
    "address", ["127.0.0.1", ":50051", "127.0.0.1:", "127.0.0.1:x", "::1:50051", "h:65536", "h:-1"]
)
def test_anything_else_is_a_clear_refusal(address: str) -> None:
    with pytest.raises(SettingsError, match="is not host:port") as refusal:
        require_address(address, setting="admin_address")

    assert "[server] admin_address" in refusal.value.remedy


async def test_an_address_of_another_machine_is_a_clear_refusal() -> None:
    with pytest.raises(SettingsError, match=r"Cannot listen on '192\.0\.2\.1:0'"):
        await new_server(grpc_address="192.0.2.1:0").start()


async def test_without_any_address_there_is_nowhere_to_listen() -> None:
    with pytest.raises(SettingsError, match="nowhere to listen"):
        await new_server(grpc_address="").start()


async def test_a_unix_socket_serves_its_owner_and_group_and_is_removed_at_the_end(folder: Path) -> None:
    path = folder / "grpc.sock"
    server = server_at(path)
    await server.start()
    assert await answers(f"unix:{path}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert server.port == 0
    await server.stop(grace_s=0)

    assert not path.exists()


async def test_tcp_and_a_unix_socket_serve_beside_each_other(folder: Path) -> None:
    path = folder / "grpc.sock"
    server = server_at(path, grpc_address="127.0.0.1:0")
    await server.start()
    assert await answers(f"unix:{path}")
    assert await answers(f"127.0.0.1:{server.port}")
    await server.stop(grace_s=0)


async def test_a_socket_that_a_dead_server_has_left_is_replaced(folder: Path) -> None:
    path = folder / "grpc.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    server = server_at(path)
    await server.start()
    assert await answers(f"unix:{path}")
    await server.stop(grace_s=0)


async def test_a_socket_that_a_living_server_has_is_left_alone(folder: Path) -> None:
    path = folder / "grpc.sock"
    first = server_at(path)
    await first.start()
    with pytest.raises(SettingsError, match="Another server listens on the Unix socket"):
        await server_at(path).start()
    assert await answers(f"unix:{path}")
    await first.stop(grace_s=0)


async def test_a_socket_of_another_kind_is_left_alone(folder: Path) -> None:
    path = folder / "log.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(path))
        with pytest.raises(SettingsError, match="Another server listens on the Unix socket"):
            await server_at(path).start()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as writer:
            writer.connect(str(path))


@pytest.fixture
def precious(folder: Path) -> Path:
    """A regular file that the server must not delete."""
    path = folder / "precious"
    path.write_text("data")
    return path


async def test_a_file_that_is_no_socket_is_left_alone(precious: Path) -> None:
    with pytest.raises(SettingsError, match="exists and is no socket"):
        await server_at(precious).start()

    assert await asyncio.to_thread(precious.read_text) == "data"


@pytest.fixture
def open_folder(folder: Path) -> Path:
    """A folder that everybody may enter."""
    folder.chmod(0o755)
    return folder


async def test_a_folder_that_everybody_may_enter_is_refused(open_folder: Path) -> None:
    with pytest.raises(SettingsError, match="Everybody on this machine can enter the folder"):
        await server_at(open_folder / "grpc.sock").start()


async def test_a_folder_that_is_missing_is_refused(folder: Path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        await server_at(folder / "missing" / "grpc.sock").start()


@pytest.mark.parametrize("name", ["relative.sock", "/" + "x" * 200])
async def test_a_path_that_cannot_be_a_socket_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="not an absolute path of at most 107 bytes"):
        await new_server(grpc_address="", grpc_unix_socket=name).start()
