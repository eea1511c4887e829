"""Certificates for the tests of TLS, generated during the tests."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A certificate and its private key, in PEM."""

    certificate: bytes
    private_key: bytes


class Authority:
    """A self-signed certificate authority."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = _builder(self._name, self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.certificate = _pem(certificate.sign(self._key, hashes.SHA256()))

    def issue(self, name: str, *uris: str, host: str = "localhost") -> Identity:
        """Issue a certificate for `host`, 127.0.0.1 and `uris`."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName(
            [
                x509.DNSName(host),
                x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
                *map(x509.UniformResourceIdentifier, uris),
            ]
        )
        certificate = _builder(subject, self._name, key).add_extension(names, critical=False)
        return Identity(
            certificate=_pem(certificate.sign(self._key, hashes.SHA256())),
            private_key=key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )


def encrypt(private_key: bytes) -> bytes:
    """Return the private key, encrypted with a password."""
    key = serialization.load_pem_private_key(private_key, None)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )


def write(folder: Path, identity: Identity) -> dict[str, str]:
    """Write an identity to files, replacing each atomically; return the options that name them."""
    paths = {}
    for option, content in (("tls_certificate", identity.certificate), ("tls_private_key", identity.private_key)):
        path, fresh = folder / f"{option}.pem", folder / f"{option}.new"
        fresh.write_bytes(content)
        fresh.replace(path)
        paths[option] = str(path)
    return paths


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
