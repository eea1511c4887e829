"""Listeners of a gRPC server: addresses, Unix sockets, channel arguments, TLS from files that may change.

Also frees memory after calls with metadata above the limit. gRPC rejects such metadata itself, but only from peers that
have acknowledged its SETTINGS. In their first seconds, other peers can send metadata of any size. Such calls are
refused, but grpc.aio keeps the metadata of each call in a reference cycle, which only the garbage collector frees. The
collector counts objects, not bytes, so a few hundred such calls can hold a gigabyte.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import socket
import stat
from collections.abc import Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc

from reasond_server.base.addresses import split_address
from reasond_server.errors.base import SettingsError, show
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reasond_server.base.certificates import Stamp, TlsFiles

_MAX_SOCKET_PATH_BYTES: Final = 107
SETTINGS_TIMEOUT_S: Final = 3.0
"""Seconds within which a peer must acknowledge the SETTINGS; grpc then closes its connection."""

# By then the connections of these calls are closed.
_COLLECT_AFTER_S: Final = SETTINGS_TIMEOUT_S + 1.0
_MOST_LEFT_BYTES: Final = 64 * 1024 * 1024
# HTTP/2 counts 32 bytes for each pair besides its texts (RFC 9113, section 10.5.1); in Python a short pair takes more.
_PAIR_BYTES: Final = 32
_PAIR_BYTES_IN_PYTHON: Final = 200


def bind_tcp(server: grpc.aio.Server, address: str, *, credentials: grpc.ServerCredentials | None, setting: str) -> int:
    """Open `address` (host:port, port 0 picks one) and return the port.

    Raises:
        SettingsError: the address is malformed, in use or not on this machine; `setting` names its key.
    """
    require_address(address, setting=setting)
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise SettingsError(
            f"Cannot listen on {show(address)}",
            remedy=f"Another process may use the port, or the host is not of this machine: change [server] {setting}, "
            f"or use port 0 to pick a free one.",
        ) from error


def require_address(address: str, *, setting: str) -> None:
    """Reject an address that is not host:port, before grpc tries to resolve it as a name.

    Raises:
        SettingsError: `address` has another form; `setting` names its key.
    """
    try:
        split_address(address)
    except ValueError:
        raise SettingsError(
            f"{show(address)} is not host:port",
            remedy=f"Write [server] {setting} as '127.0.0.1:50051' or '[::1]:50051'.",
        ) from None


def bind_unix(server: grpc.aio.Server, path: Path) -> None:
    """Open a Unix socket for its owner and group, in a folder that other users cannot enter.

    The socket of a dead server at the path is removed first; grpc removes the socket when it stops.

    Raises:
        SettingsError: the folder is missing or open to everybody, or something else is at the path.
    """
    require_private_folder(path)
    _clear(path)
    try:
        # The socket is created with its final mode: before a later chmod, others could connect.
        with _set_umask(0o117):
            server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise SettingsError(
            f"Cannot listen on the Unix socket {show(str(path))}", remedy="Check that the folder may be written to."
        ) from error


def require_private_folder(path: Path) -> None:
    """Reject a Unix socket at `path` if users other than its owner and group could enter its folder.

    Raises:
        SettingsError: the path is relative or too long, or its folder is missing or open to everybody.
    """
    if not path.is_absolute() or len(os.fsencode(path)) > _MAX_SOCKET_PATH_BYTES:
        raise SettingsError(
            f"The Unix socket {show(str(path))} is not an absolute path of at most {_MAX_SOCKET_PATH_BYTES} bytes",
            remedy="Change [server] grpc_unix_socket.",
        )
    folder = path.parent
    if not folder.is_dir():
        raise SettingsError(
            f"The folder {show(str(folder))} of the Unix socket does not exist", remedy="Create it with mode 0700."
        )
    if folder.stat().st_mode & stat.S_IRWXO:
        raise SettingsError(
            f"Everybody on this machine can enter the folder {show(str(folder))} of the Unix socket",
            remedy="Use a folder of its own with mode 0700 or 0750.",
        )


def _clear(path: Path) -> None:
    """Remove the socket of a dead server; reject any other file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SettingsError(
            f"{show(str(path))} exists and is no socket", remedy="Move it away, or change [server] grpc_unix_socket."
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            # Only this error proves that no process listens; any other error may come from a busy server.
            path.unlink()
            return
        except OSError:
            pass
    raise SettingsError(
        f"Another server listens on the Unix socket {show(str(path))}",
        remedy="Stop it, or change [server] grpc_unix_socket.",
    )


@contextlib.contextmanager
def _set_umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


_MEBI: Final = 1024 * 1024
_HANDSHAKE_TIMEOUT_S: Final = 10.0
_ENDED_PER_OPEN: Final = 4


@value
class GrpcOptions:
    """The part of `[server]` that gRPC needs, under the same names: sizes in bytes, times in seconds."""

    grpc_address: str = "127.0.0.1:50051"
    grpc_unix_socket: str = ""
    admin_address: str = ""
    tls: str = "off"
    tls_certificate: str = ""
    tls_private_key: str = ""
    tls_client_ca: str = ""
    reflection: bool = True
    so_reuseport: bool = False
    max_receive_bytes: int = 4 * _MEBI
    max_send_bytes: int = 4 * _MEBI
    max_metadata_bytes: int = 8192
    max_concurrent_streams: int = 256
    max_grpc_connections: int = 1000
    max_pending_calls: int = 20_000
    keepalive_time_s: float = 60.0
    keepalive_timeout_s: float = 20.0
    min_ping_interval_s: float = 10.0
    max_connection_age_s: float = 1800.0
    max_connection_age_grace_s: float = 600.0
    load_reports: str = "off"
    load_report_interval_s: float = 1.0

    @classmethod
    def of(cls, settings: object) -> GrpcOptions:
        """Return the options that `settings`, such as config.ServerSettings, holds under the same names."""
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})


def channel_arguments(options: GrpcOptions) -> Sequence[tuple[str, int]]:
    """Return the arguments for grpc.

    The number of RPCs is not bounded here: that would reject health checks too, and a busy server would be
    restarted. The name of the ping interval is the one that grpc reads, not the one that its C macro suggests.
    """
    return (
        ("grpc.so_reuseport", int(options.so_reuseport)),
        ("grpc.max_receive_message_length", options.max_receive_bytes),
        ("grpc.max_send_message_length", options.max_send_bytes),
        ("grpc.max_metadata_size", options.max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", options.max_metadata_bytes),
        ("grpc.max_concurrent_streams", options.max_concurrent_streams),
        # A call that has ended is counted until its memory is free, which is after its client has begun the next one.
        # Without this number of its own, grpc refuses calls of honest clients; without any, rapid resets have no bound.
        ("grpc.http2.max_deallocating_streams", _ENDED_PER_OPEN * options.max_concurrent_streams),
        ("grpc.max_allowed_incoming_connections", options.max_grpc_connections),
        # By default grpc ends calls when a thousand wait; in a flood that would hit the calls of other clients too.
        ("grpc.server.max_pending_requests", options.max_pending_calls),
        ("grpc.server.max_pending_requests_hard_limit", options.max_pending_calls),
        # The limits on metadata and calls apply to a peer only after it has acknowledged the SETTINGS.
        ("grpc.http2.settings_timeout", _to_ms(SETTINGS_TIMEOUT_S)),
        ("grpc.server_handshake_timeout_ms", _to_ms(_HANDSHAKE_TIMEOUT_S)),
        ("grpc.keepalive_time_ms", _to_ms(options.keepalive_time_s)),
        ("grpc.keepalive_timeout_ms", _to_ms(options.keepalive_timeout_s)),
        # A ping has its own timeout, by default a minute, and grpc ignores the keepalive timeout meanwhile.
        ("grpc.http2.ping_timeout_ms", _to_ms(options.keepalive_timeout_s)),
        # Idle connections are probed too: otherwise a dead client would keep its connection for ever.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _to_ms(options.min_ping_interval_s)),
        ("grpc.max_connection_age_ms", _to_ms(options.max_connection_age_s)),
        ("grpc.max_connection_age_grace_ms", _to_ms(options.max_connection_age_grace_s)),
    )


def _to_ms(seconds: float) -> int:
    return round(seconds * 1000)


_log = logging.getLogger("reasond.grpc")


class CertificateReloader:
    """Gives grpc the certificates before every handshake; if a new file is invalid, the old ones stay in use."""

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
                f"The TLS files {', '.join(show(str(path)) for path in self._files.paths)} cannot be used: "
                f"{_describe_error(error)}",
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
            _log.error("changed TLS files cannot be used, the old ones stay: %s", _describe_error(error))
            return None
        # The files changed while they were read: the next handshake checks them again.
        if self._files.stamp() != stamp:
            return None
        self._stamp = stamp
        _log.info("TLS files reloaded")
        return fresh

    def _load(self) -> grpc.ServerCertificateConfiguration:
        """Read the files and check that they match, which grpc would not report."""
        files = self._files
        files.context()
        chain, key = Path(files.certificate).read_bytes(), Path(files.private_key).read_bytes()
        authorities = Path(files.client_ca).read_bytes() if files.client_ca else None
        return grpc.ssl_server_certificate_configuration([(key, chain)], authorities)


def _describe_error(error: OSError | ValueError) -> str:
    """Describe `error`; texts of the TLS library may be long but hold no key material."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class MetadataCollector:
    """Finds calls with more than `max_metadata_bytes` of metadata, and collects garbage once for many of them."""

    def __init__(self, *, max_metadata_bytes: int) -> None:
        self.max_metadata_bytes = max_metadata_bytes
        self._left_bytes = 0
        self._is_due = False

    def note(self, metadata: Sequence[tuple[str, str | bytes]]) -> bool:
        """Return whether the metadata of a call are too large; if so, the garbage collector runs some seconds later.

        It runs at once if what may be left takes 64 MiB.
        """
        size = sum(map(len, chain.from_iterable(metadata)))
        if size + len(metadata) * _PAIR_BYTES <= self.max_metadata_bytes:
            return False
        self._left_bytes += size + len(metadata) * _PAIR_BYTES_IN_PYTHON
        loop = asyncio.get_running_loop()
        if self._left_bytes > _MOST_LEFT_BYTES:
            self._left_bytes = 0
            # By then grpc.aio has found the handler of this call, and nothing but the cycle holds the metadata.
            loop.call_soon(gc.collect)
        if not self._is_due:
            self._is_due = True
            loop.call_later(_COLLECT_AFTER_S, self._collect)
        return True

    def _collect(self) -> None:
        self._is_due, self._left_bytes = False, 0
        gc.collect()
        asyncio.get_running_loop().run_in_executor(None, _trim)


def _trim() -> None:
    """Return freed memory to the system, if the C library supports it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
