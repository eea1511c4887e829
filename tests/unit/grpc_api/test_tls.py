from __future__ import annotations

import logging
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # shipped without py.typed

from reasond_server.base.certificates import TlsFiles
from reasond_server.errors.base import SettingsError
from reasond_server.grpc_api.listeners import CertificateReloader
from tests.unit.grpc_api.certificates import Authority, Identity, encrypt, write
from tests.unit.grpc_api.parts import SOON, new_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from reasond_server.grpc_api.grpc_server import GrpcServer


def refused_server(files: dict[str, Any]) -> GrpcServer:
    return new_server(tls="files", **files)


@asynccontextmanager
async def serve_secured(**options: Any) -> AsyncIterator[GrpcServer]:
    server = new_server(tls="files", **options)
    await server.start()
    server.health.set_ready()
    try:
        yield server
    finally:
        await server.stop(grace_s=0)


async def is_served(server: GrpcServer, authority: Authority, client: Identity | None = None) -> bool:
    """Return whether a new connection that trusts `authority` gets an answer."""
    credentials = grpc.ssl_channel_credentials(
        authority.certificate,
        client.private_key if client else None,
        client.certificate if client else None,
    )
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.secure_channel(f"localhost:{server.port}", credentials, options=options) as channel:
        try:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=SOON)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017 - the tests check both outcomes
            return False
    return True


async def test_connections_are_encrypted_with_the_certificate_of_the_files(tmp_path: Path) -> None:
    authority = Authority("ours")
    async with serve_secured(**write(tmp_path, authority.issue("server"))) as server:
        assert await is_served(server, authority)
        assert not await is_served(server, Authority("another"))


async def test_a_plain_connection_gets_nowhere(tmp_path: Path) -> None:
    async with (
        serve_secured(**write(tmp_path, Authority("ours").issue("server"))) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=SOON)

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_new_files_are_used_from_the_next_connection_on(tmp_path: Path) -> None:
    old, new = Authority("old"), Authority("new")
    async with serve_secured(**write(tmp_path, old.issue("server"))) as server:
        assert await is_served(server, old)
        write(tmp_path, new.issue("server"))
        assert await is_served(server, new)
        assert not await is_served(server, old)


async def test_broken_new_files_keep_the_old_certificate_and_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority("ours")
    async with serve_secured(**write(tmp_path, authority.issue("server"))) as server:
        with caplog.at_level(logging.ERROR, "reasond.grpc"):
            (tmp_path / "tls_certificate.pem").write_text("broken")
            assert await is_served(server, authority)
    assert "changed TLS files cannot be used, the old ones stay" in caplog.text


async def test_a_key_that_does_not_fit_yet_keeps_the_old_certificate_until_the_other_file_follows(
    tmp_path: Path,
) -> None:
    old, new = Authority("old"), Authority("new")
    async with serve_secured(**write(tmp_path, old.issue("server"))) as server:
        identity = new.issue("server")
        (tmp_path / "tls_certificate.pem").write_bytes(identity.certificate)
        assert await is_served(server, old)
        (tmp_path / "tls_private_key.pem").write_bytes(identity.private_key)
        assert await is_served(server, new)


async def test_a_file_that_is_gone_keeps_the_old_certificate(tmp_path: Path) -> None:
    authority = Authority("ours")
    async with serve_secured(**write(tmp_path, authority.issue("server"))) as server:
        (tmp_path / "tls_private_key.pem").unlink()
        assert await is_served(server, authority)


async def test_clients_must_present_a_certificate_where_an_authority_is_set(tmp_path: Path) -> None:
    authority, clients, strangers = Authority("ours"), Authority("clients"), Authority("strangers")
    (tmp_path / "clients.pem").write_bytes(clients.certificate)
    files = write(tmp_path, authority.issue("server"))
    async with serve_secured(**files, tls_client_ca=str(tmp_path / "clients.pem")) as server:
        assert await is_served(server, authority, clients.issue("client"))
        assert not await is_served(server, authority)
        assert not await is_served(server, authority, strangers.issue("client"))
        (tmp_path / "clients.pem").write_bytes(strangers.certificate)
        assert await is_served(server, authority, strangers.issue("client"))
        assert not await is_served(server, authority, clients.issue("client"))


@pytest.mark.parametrize("missing", ["tls_certificate", "tls_private_key"])
async def test_a_file_that_is_not_set_is_a_clear_refusal(tmp_path: Path, missing: str) -> None:
    files = write(tmp_path, Authority("ours").issue("server"))
    with pytest.raises(SettingsError, match="needs a certificate and a private key") as refusal:
        await refused_server({**files, missing: ""}).start()

    assert missing in refusal.value.remedy


async def test_a_file_that_is_not_there_is_a_clear_refusal(tmp_path: Path) -> None:
    files = write(tmp_path, Authority("ours").issue("server"))
    (tmp_path / "tls_certificate.pem").unlink()

    with pytest.raises(SettingsError, match="No such file or directory"):
        await refused_server(files).start()


async def test_a_key_of_another_certificate_is_a_clear_refusal(tmp_path: Path) -> None:
    authority = Authority("ours")
    identity = Identity(certificate=authority.issue("one").certificate, private_key=authority.issue("two").private_key)
    with pytest.raises(SettingsError, match="cannot be used"):
        await refused_server(write(tmp_path, identity)).start()


def test_an_encrypted_key_is_refused_instead_of_asking_at_the_terminal(tmp_path: Path) -> None:
    files = write(tmp_path, Authority("ours").issue("server"))
    path = tmp_path / "tls_private_key.pem"
    path.write_bytes(encrypt(path.read_bytes()))
    reloader = CertificateReloader(TlsFiles(certificate=files["tls_certificate"], private_key=str(path)))

    with pytest.raises(SettingsError, match="cannot be used: the private key is encrypted"):
        reloader.credentials()


def test_unchanged_files_are_not_read_again(tmp_path: Path) -> None:
    files = write(tmp_path, Authority("ours").issue("server"))
    reloader = CertificateReloader(TlsFiles(certificate=files["tls_certificate"], private_key=files["tls_private_key"]))
    reloader.credentials()

    assert reloader.reload() is None
    write(tmp_path, Authority("ours").issue("server"))
    assert reloader.reload() is not None
    assert reloader.reload() is None


@pytest.mark.parametrize("content", [b"", b"broken", None])
def test_files_that_cannot_be_used_are_told_once_they_change_and_tried_again(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority("ours")
    files = write(tmp_path, authority.issue("server"))
    reloader = CertificateReloader(TlsFiles(certificate=files["tls_certificate"], private_key=files["tls_private_key"]))
    reloader.credentials()

    with caplog.at_level(logging.ERROR, "reasond.grpc"):
        if content is None:
            (tmp_path / "tls_private_key.pem").unlink()
        else:
            (tmp_path / "tls_private_key.pem").write_bytes(content)
        assert [reloader.reload() for _ in range(3)] == [None] * 3
    assert len(caplog.records) == 1

    write(tmp_path, authority.issue("server"))
    assert reloader.reload() is not None


async def test_a_pipe_in_the_place_of_a_key_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    files = write(tmp_path, Authority("ours").issue("server"))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(SettingsError, match="no regular file"):
        await refused_server({**files, "tls_private_key": str(pipe)}).start()
