from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import reasond
from reasond import AsyncClient, Client, TlsOptions

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.client.conftest import ScriptedServer


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate for the loopback address, and its key, in PEM."""

    chain: bytes
    key: bytes


def certificate() -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    bare = serialization.NoEncryption()
    return Certificate(signed.public_bytes(pem), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, bare))


@pytest.fixture(scope="module")
def mine() -> Certificate:
    return certificate()


@pytest.fixture
def tls_server(server: ScriptedServer, mine: Certificate) -> ScriptedServer:
    server.stop()
    server.start(credentials=grpc.ssl_server_credentials([(mine.key, mine.chain)]))
    return server


async def test_the_environment_is_enough_for_a_server_with_its_own_authority(
    tls_server: ScriptedServer, mine: Certificate, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_bytes(mine.chain)
    environ = {
        "REASOND_TARGET": tls_server.target,
        "REASOND_CA_FILE": str(tmp_path / "ca.pem"),
        "REASOND_TOKEN": "secret",
    }
    async with AsyncClient.from_env(environ) as client:
        await client.get_execution("e1")
    assert tls_server.calls[0].metadata["authorization"] == "Bearer secret"


def test_a_server_that_the_roots_do_not_know_is_never_told_the_token(tls_server: ScriptedServer) -> None:
    with Client(tls_server.target, tls=True, token="secret") as client, pytest.raises(reasond.UnavailableError):
        client.delete_agent("a")
    assert tls_server.calls == []


def test_a_client_certificate_is_presented(server: ScriptedServer, mine: Certificate) -> None:
    server.stop()
    server.start(
        credentials=grpc.ssl_server_credentials(
            [(mine.key, mine.chain)], root_certificates=mine.chain, require_client_auth=True
        )
    )
    known = TlsOptions(root_certificates=mine.chain, certificate_chain=mine.chain, private_key=mine.key)
    with Client(server.target, tls=known) as client:
        client.delete_agent("a")
    with (
        Client(server.target, tls=TlsOptions(root_certificates=mine.chain)) as stranger,
        pytest.raises(reasond.UnavailableError),
    ):
        stranger.delete_agent("a")
    assert len(server.calls) == 1
