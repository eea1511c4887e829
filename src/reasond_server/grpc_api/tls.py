"""TLS for the gRPC listener: certificates from files, read again when they change, mutual where a CA is set."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from reasond_server.errors import SettingsError, shown

if TYPE_CHECKING:
    from reasond_server.wire.certificates import Stamp, TlsFiles

_log = logging.getLogger("reasond.grpc")


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
            stamp = self._files.stamp()
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
        stamp = self._files.stamp()
        if stamp == self._stamp:
            return None
        try:
            fresh = self._load()
        except (OSError, ValueError) as error:
            self._stamp = stamp
            _log.error("changed TLS files cannot be used, the old ones stay: %s", _plain(error))
            return None
        # Written to while they were read: the next handshake looks again.
        if self._files.stamp() != stamp:
            return None
        self._stamp = stamp
        _log.info("TLS files reloaded")
        return fresh

    def _load(self) -> grpc.ServerCertificateConfiguration:
        """Read the files and make sure that they fit together, which grpc would not tell."""
        files = self._files
        files.context()
        chain, key = Path(files.certificate).read_bytes(), Path(files.private_key).read_bytes()
        authorities = Path(files.client_ca).read_bytes() if files.client_ca else None
        return grpc.ssl_server_certificate_configuration([(key, chain)], authorities)


def _plain(error: OSError | ValueError) -> str:
    """Return what went wrong; texts of the TLS library may be long but hold no key material."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
