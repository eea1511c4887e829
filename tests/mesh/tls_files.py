"""The files of TLS that Envoy reads, for `localhost`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.grpc_api.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path


SYSTEM_ROOTS = "/etc/ssl/certs/ca-certificates.crt"


def write_tls_files(folder: Path) -> Path:
    """Write `tls.crt` and `tls.key`, and return the file with the certificate of their authority."""
    authority = Authority("mesh")
    identity = authority.issue("localhost")
    folder.mkdir()
    (folder / "tls.crt").write_bytes(identity.certificate)
    (folder / "tls.key").write_bytes(identity.private_key)
    roots = folder / "ca.pem"
    roots.write_bytes(authority.certificate)
    return roots
