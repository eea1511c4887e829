"""HTTPS with real certificates, made for the test."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import logging
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from reasond_server.base.certificates import TlsFiles
from reasond_server.errors.base import SettingsError
from reasond_server.http_api.connections import ConnectionLimits
from reasond_server.http_api.http_server import ReloadingContext
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.http_api.parts import ServeSite

PEM = serialization.Encoding.PEM


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A self-signed certificate for the loopback address, and its key."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> tuple[str, str]:
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        certificate.write_bytes(self.certificate)
        key.write_bytes(self.key)
        return str(certificate), str(key)


def pair(name: str, *, password: bytes | None = None) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    locked = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return Pair(
        certificate=certificate.public_bytes(PEM),
        key=key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, locked),
    )


def trusting(*certificates: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for certificate in certificates:
        context.load_verify_locations(certificate)
    return context


async def health(port: int, context: ssl.SSLContext) -> int:
    async with make_http_client(verify=context) as client:
        return (await client.get(f"https://127.0.0.1:{port}/healthz")).status_code


async def test_https_answers_with_the_certificate(serve_site: ServeSite, tmp_path: Path) -> None:
    certificate, key = pair("one").write(tmp_path, "server")
    site = await serve_site(tls=TlsFiles(certificate=certificate, private_key=key), verify=trusting(certificate))
    assert (await site.call("reasoning.execute", {"query": "q"}))["result"]["answer"] == "42"


async def test_a_renewed_certificate_serves_the_next_connection(serve_site: ServeSite, tmp_path: Path) -> None:
    certificate, key = pair("one").write(tmp_path, "server")
    site = await serve_site(tls=TlsFiles(certificate=certificate, private_key=key))
    old, fresh = trusting(certificate), pair("a longer name")
    assert await health(site.server.port, old) == 200
    fresh.write(tmp_path, "server")
    assert await health(site.server.port, trusting(certificate)) == 200
    with pytest.raises(httpx.ConnectError):
        await health(site.server.port, old)


@pytest.mark.parametrize("is_greeted", [False, True])
async def test_a_connection_that_says_nothing_is_closed_before_and_after_the_handshake(
    serve_site: ServeSite, tmp_path: Path, *, is_greeted: bool
) -> None:
    certificate, key = pair("one").write(tmp_path, "server")
    site = await serve_site(
        tls=TlsFiles(certificate=certificate, private_key=key), connections=ConnectionLimits(header_timeout_s=0.2)
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
    received, sending = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting(certificate).wrap_bio(received, sending, server_hostname="127.0.0.1")
    try:
        # The limits of asyncio itself are 60 s for the TLS handshake and 30 s for the TLS shutdown.
        async with asyncio.timeout(25):
            while is_greeted and client.version() is None and not reader.at_eof():
                with suppress(ssl.SSLWantReadError):
                    client.do_handshake()
                writer.write(sending.read())
                received.write(b"" if client.version() else await reader.read(65536))
            with suppress(ConnectionError):
                await reader.read()
    finally:
        writer.close()


async def test_files_that_do_not_fit_together_keep_the_old_certificate(
    serve_site: ServeSite, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = pair("one").write(tmp_path, "server")
    site = await serve_site(tls=TlsFiles(certificate=certificate, private_key=key))
    old = trusting(certificate)
    (tmp_path / "server.pem").write_bytes(pair("a longer name").certificate)
    with caplog.at_level(logging.ERROR, logger="reasond.http"):
        assert await health(site.server.port, old) == 200
    assert "the old ones stay" in caplog.text


async def test_with_an_authority_clients_must_show_a_certificate(serve_site: ServeSite, tmp_path: Path) -> None:
    certificate, key = pair("one").write(tmp_path, "server")
    client_certificate, client_key = pair("client").write(tmp_path, "client")
    tls = TlsFiles(certificate=certificate, private_key=key, client_ca=client_certificate)
    site = await serve_site(tls=tls)
    with pytest.raises(httpx.TransportError):
        await health(site.server.port, trusting(certificate))
    known = trusting(certificate)
    known.load_cert_chain(client_certificate, client_key)
    assert await health(site.server.port, known) == 200


def test_files_that_cannot_be_used_are_refused_at_the_start(tmp_path: Path) -> None:
    certificate, key = pair("one").write(tmp_path, "server")
    _, other_key = pair("two").write(tmp_path, "other")
    _, locked_key = pair("three", password=b"p").write(tmp_path, "locked")
    for files in (
        TlsFiles(certificate=str(tmp_path / "missing"), private_key=key),
        TlsFiles(certificate=certificate, private_key=other_key),
        TlsFiles(certificate=certificate, private_key=locked_key),
        TlsFiles(certificate=certificate, private_key=key, client_ca=key),
    ):
        with pytest.raises(SettingsError) as caught:
            ReloadingContext(files).context()
        assert "tls_certificate" in caught.value.remedy
