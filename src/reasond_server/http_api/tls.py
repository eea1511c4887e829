"""TLS for the HTTP listener: certificates from files, read again when they change, mutual where a CA is set."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from reasond_server.errors import SettingsError, shown

if TYPE_CHECKING:
    import ssl

    from reasond_server.wire.certificates import Stamp, TlsFiles

_log = logging.getLogger("reasond.http")


class FollowingContext:
    """A TLS context that follows its files: looked at before every handshake; broken new files keep the old ones."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamp: Stamp = ()
        self._current: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context to listen with.

        Raises:
            SettingsError: the files cannot be used as they are now.
        """
        try:
            self._stamp = self._files.stamp()
            listening = self._load()
        except (OSError, ValueError) as error:
            names = ", ".join(shown(str(path)) for path in self._files.paths)
            raise SettingsError(
                f"The TLS files {names} cannot be used",
                remedy="Check [server] tls_certificate, tls_private_key and tls_client_ca: PEM files that fit "
                "together, the key without a password.",
            ) from error
        self._current = listening
        # OpenSSL asks it in every handshake, also without a server name: the one place to change certificates
        # under an open listener.
        listening.sni_callback = self._choose
        return listening

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _listening: ssl.SSLContext) -> None:
        """Give a connection that is being set up the newest certificate."""
        self._reload()
        if self._current is not None:
            connection.context = self._current

    def _reload(self) -> None:
        try:
            stamp = self._files.stamp()
            if stamp == self._stamp:
                return
            self._current = self._load()
        except (OSError, ValueError):
            _log.exception("changed TLS files cannot be used, the old ones stay")
            return
        self._stamp = stamp
        _log.info("TLS files reloaded")

    def _load(self) -> ssl.SSLContext:
        context = self._files.context()
        context.set_alpn_protocols(["http/1.1"])
        return context
