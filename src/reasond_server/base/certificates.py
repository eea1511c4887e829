"""The TLS files of both listeners: their paths, their validation, and the detection of changes."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

from reasond_server.types.values import value

Stamp = tuple[tuple[int, ...], ...]
"""Modification time, size and inode of each file; an empty tuple for a missing file."""


@value
class TlsFiles:
    """PEM files: certificate chain, its private key and, for mutual TLS, the certificate authorities of clients."""

    certificate: str
    private_key: str
    client_ca: str = ""

    @property
    def paths(self) -> Sequence[Path]:
        """The configured files."""
        return [Path(path) for path in (self.certificate, self.private_key, self.client_ca) if path]

    def stamp(self) -> Stamp:
        """Return a value that changes whenever a file is written, replaced or removed."""
        return tuple(_read_stamp(path) for path in self.paths)

    def context(self) -> ssl.SSLContext:
        """Return a server's TLS context, made from the current content of the files.

        Raises:
            OSError, ValueError: a file cannot be read, is not PEM or is encrypted, or the files do not fit together.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for path in self.paths:
            # Opening a named pipe would block until it has a writer.
            if path.exists() and not path.is_file():
                message = "one of them is no regular file"
                raise ValueError(message)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.private_key, password=_refuse_password)
        if self.client_ca:
            context.load_verify_locations(self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _read_stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _refuse_password() -> bytes:
    """Refuse an encrypted key: asking at the terminal would stop the server."""
    message = "the private key is encrypted"
    raise ValueError(message)
