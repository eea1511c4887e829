"""TLS for the HTTP listener: certificates from files, read again when they change, mutual where a CA is set."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.errors import SettingsError, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger("reasond.http")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTls:
    """PEM files: certificate chain, its private key and, for mutual TLS, the authorities of clients."""

    certificate: str
    private_key: str
    client_ca: str = ""

    @property
    def paths(self) -> Sequence[Path]:
        """The files that are set."""
        return [Path(path) for path in (self.certificate, self.private_key, self.client_ca) if path]


class FollowingContext:
    """A TLS context that follows its files: looked at before every handshake; broken new files keep the old ones."""

    def __init__(self, files: HttpTls) -> None:
        self._files = files
        self._stamp: tuple[tuple[int, ...], ...] = ()
        self._current: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context to listen with.

        Raises:
            SettingsError: the files cannot be used as they are now.
        """
        try:
            self._stamp = self._stamp_now()
            listening = self._load()
        except (OSError, ValueError) as error:
            names = ", ".join(shown(str(path)) for path in self._files.paths)
            raise SettingsError(
                f"The TLS files {names} cannot be used",
                remedy="Check [server] tls_certificate, tls_private_key and tls_client_ca: PEM files that fit "
                "together, the key without a password.",
            ) from error
        self._current = listening
        listening.sni_callback = self._choose
        return listening

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _listening: ssl.SSLContext) -> None:
        """Give a connection that is being set up the newest certificate."""
        self._reload()
        if self._current is not None:
            connection.context = self._current

    def _reload(self) -> None:
        try:
            stamp = self._stamp_now()
            if stamp == self._stamp:
                return
            self._current = self._load()
        except (OSError, ValueError):
            _log.exception("changed TLS files cannot be used, the old ones stay")
            return
        self._stamp = stamp
        _log.info("TLS files reloaded")

    def _stamp_now(self) -> tuple[tuple[int, ...], ...]:
        """Return what changes whenever a file is written or replaced."""
        found = [path.stat() for path in self._files.paths]
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(self._files.certificate, self._files.private_key, password=_no_password)
        if self._files.client_ca:
            context.load_verify_locations(self._files.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _no_password() -> bytes:
    """Refuse an encrypted key: asking at the terminal would stop the server."""
    message = "the private key is encrypted"
    raise ValueError(message)
