"""TLS for the gRPC listener: certificates from files, read again when they change, mutual where a CA is set."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from reasond_server.errors import SettingsError, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    Stamp = tuple[tuple[int, ...], ...]

_log = logging.getLogger("reasond.grpc")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files: certificate chain, its private key and, for mutual TLS, the authorities of clients."""

    certificate: str
    private_key: str
    client_ca: str = ""

    @property
    def paths(self) -> Sequence[Path]:
        """The files that are set."""
        return [Path(path) for path in (self.certificate, self.private_key, self.client_ca) if path]


class CertificateReloader:
    """Hands certificates to grpc, which asks before every handshake; a broken new file keeps the old ones."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamp: Stamp = ()

    def credentials(self) -> grpc.ServerCredentials:
        """Return server credentials that follow the files.

        Raises:
            SettingsError: the files cannot be used as they are now.
        """
        if not (self._files.certificate and self._files.private_key):
            raise SettingsError(
                "TLS from files needs a certificate and a private key",
                remedy="Set [server] tls_certificate and tls_private_key.",
            )
        try:
            stamp = self._stamp_now()
            initial = self._load()
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"The TLS files {', '.join(shown(str(path)) for path in self._files.paths)} cannot be used: "
                f"{_plain(error)}",
                remedy="Check [server] tls_certificate, tls_private_key and tls_client_ca.",
            ) from error
        self._stamp = stamp
        return grpc.dynamic_ssl_server_credentials(
            initial,
            self.reload,  # type: ignore[arg-type]  # the stubs forget that None means unchanged
            require_client_authentication=bool(self._files.client_ca),
        )

    def reload(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new certificates if the files have changed and fit together, else None."""
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return None
        try:
            fresh = self._load()
        except (OSError, ValueError) as error:
            self._stamp = stamp
            _log.error("changed TLS files cannot be used, the old ones stay: %s", _plain(error))
            return None
        if self._stamp_now() != stamp:
            return None
        self._stamp = stamp
        _log.info("TLS files reloaded")
        return fresh

    def _stamp_now(self) -> Stamp:
        """Return what changes whenever a file is written, replaced or removed."""
        return tuple(_stamp_of(path) for path in self._files.paths)

    def _load(self) -> grpc.ServerCertificateConfiguration:
        """Read the files and make sure that they fit together, which grpc would not tell."""
        files = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.private_key, password=_no_password)
        if files.client_ca:
            context.load_verify_locations(files.client_ca)
        chain, key = Path(files.certificate).read_bytes(), Path(files.private_key).read_bytes()
        authorities = Path(files.client_ca).read_bytes() if files.client_ca else None
        return grpc.ssl_server_certificate_configuration([(key, chain)], authorities)


def _stamp_of(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _no_password() -> bytes:
    """Refuse an encrypted key: asking at the terminal would stop the server."""
    message = "the private key is encrypted"
    raise ValueError(message)


def _plain(error: OSError | ValueError) -> str:
    """Return what went wrong; texts of the TLS library may be long but hold no key material."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
