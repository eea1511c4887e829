"""The HTTP listener: uvicorn with httptools in the caller's event loop, and TLS from files that may change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from reasond_server.errors.base import SettingsError, show
from reasond_server.http_api.connection_cap import ConnectionCap
from reasond_server.http_api.connections import BoundedProtocol, ConnectionLimits

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Generator

    from reasond_server.base.certificates import Stamp, TlsFiles
    from reasond_server.http_api.exchange import ASGIApp


_BACKLOG: Final = 1024
_ROUND_S: Final = 1.0


class HttpServer:
    """Serves `app` on `host` and `port` (0 picks a free one), with TLS if `tls` is given.

    `setting` names the key of the address for errors; `on_slow` is called when a client is disconnected because it
    does not read. With `reuse_port` other processes may listen on the port too.
    """

    def __init__(
        self,
        *,
        app: ASGIApp,
        host: str,
        port: int,
        tls: TlsFiles | None = None,
        limits: ConnectionLimits | None = None,
        setting: str = "[server] http_address",
        on_slow: Callable[[], None] = lambda: None,
        reuse_port: bool = False,
    ) -> None:
        self._setting = setting
        self._on_slow = on_slow
        self._reuse_port = reuse_port
        self._app = app
        self._host = host
        self._port = port
        self._tls = tls
        self._limits = limits or ConnectionLimits()
        self._is_draining = False
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port; after the start, the actual port."""
        return self._port

    async def start(self) -> None:
        """Start listening; connections are accepted when this returns.

        Raises:
            SettingsError: the address cannot be bound, or the TLS files cannot be used.
        """
        context = ReloadingContext(self._tls).context() if self._tls else None
        listener = await self._bind()
        self._port = listener.getsockname()[1]
        self._server = _Server(self._build_config(context), handshake_timeout_s=self._limits.header_timeout_s)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        is_bound = asyncio.create_task(self._server.is_bound.wait())
        await asyncio.wait({self._serving, is_bound}, return_when=asyncio.FIRST_COMPLETED)
        if not is_bound.done():  # pragma: no cover - the socket is already bound, so nothing else can fail
            is_bound.cancel()
            await self._serving

    def begin_drain(self) -> None:
        """Close each connection after its next answer, with `Connection: close`; connections are still accepted."""
        self._is_draining = True

    def close_listener(self) -> None:
        """Stop listening and close idle connections; requests in progress continue until `stop`."""
        if self._server is not None:
            self._server.begin_end()

    async def stop(self, grace_s: float) -> None:
        """Stop listening, wait at most `grace_s` seconds for requests in progress, then cancel them.

        May be called again with a shorter grace while it waits.
        """
        if self._server is None or self._serving is None:
            return
        self.close_listener()
        _, pending = await asyncio.wait({self._serving}, timeout=grace_s)
        if pending:
            await self._server.end_now()
        await self._serving

    async def _bind(self) -> socket.socket:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
            )
            return _bind_listener(found[0][0], found[0][4], reuse_port=self._reuse_port)
        except OSError as error:
            raise SettingsError(
                f"Cannot listen on {show(f'{self._host}:{self._port}')} for HTTP",
                remedy="Another process may use the port, or the host is not of this machine: change "
                f"{self._setting}, or use port 0 to pick a free one.",
            ) from error

    def _build_config(self, context: Any) -> uvicorn.Config:  # noqa: ANN401 - an SSL context or None
        protocol: Any = partial(
            BoundedProtocol,
            limits=self._limits,
            cap=ConnectionCap(most=self._limits.max_connections),
            on_slow=self._on_slow,
            is_draining=lambda: self._is_draining,
        )
        return uvicorn.Config(
            self._app,
            http=protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=self._limits.keep_alive_s,
            ssl_context_factory=None if context is None else lambda _build_config, _default: context,
        )


def _bind_listener(family: int, address: tuple[Any, ...], *, reuse_port: bool) -> socket.socket:
    """Return a bound socket.

    Its protocol is set to TCP, because asyncio sets TCP_NODELAY only then; without it, separate writes of headers
    and body take 40 ms.
    """
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            # "[::]" would include IPv4 on some systems only.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


class _Server(uvicorn.Server):
    """uvicorn's server inside our process, which handles signals and stops it."""

    def __init__(self, config: uvicorn.Config, *, handshake_timeout_s: float) -> None:
        super().__init__(config)
        self._handshake_timeout_s = handshake_timeout_s
        self.is_bound = asyncio.Event()
        self._is_ending = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, and report it.

        This does the same as uvicorn with sockets, except for the time limit of TLS handshakes: asyncio's default is a
        minute, and uvicorn has no option for it. The timers of `BoundedProtocol` start after the handshake.
        """
        config = self.config
        new_protocol: Any = config.http_protocol_class
        protocol = partial(new_protocol, config=config, server_state=self.server_state, app_state={})
        handshake = {} if config.ssl is None else {"ssl_handshake_timeout": self._handshake_timeout_s}
        listen: Any = partial(asyncio.get_running_loop().create_server, ssl=config.ssl, backlog=config.backlog)
        self.servers = [await listen(protocol, sock=each, **handshake) for each in sockets or ()]
        self.started = True
        self.is_bound.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Install no signal handlers."""
        yield

    async def main_loop(self) -> None:
        """Wait for the end and update the Date header; uvicorn itself would wake ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_ending.wait(), _ROUND_S)

    def begin_end(self) -> None:
        """Stop listening in the next turn of the event loop."""
        self.should_exit = True
        self._is_ending.set()

    async def end_now(self) -> None:
        """Cancel the requests in progress, wait until they have ended, and close their connections."""
        self.force_exit = True
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self.server_state.connections):
            connection.transport.abort()


_log = logging.getLogger("reasond.http")


class ReloadingContext:
    """A TLS context that checks its files before every handshake; if new files are invalid, it keeps the old ones."""

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
            names = ", ".join(show(str(path)) for path in self._files.paths)
            raise SettingsError(
                f"The TLS files {names} cannot be used",
                remedy="Check [server] tls_certificate, tls_private_key and tls_client_ca: PEM files that fit "
                "together, the key without a password.",
            ) from error
        self._current = listening
        # OpenSSL calls it in every handshake, even without a server name: the only way to change certificates
        # of an open listener.
        listening.sni_callback = self._choose
        return listening

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _listening: ssl.SSLContext) -> None:
        """Set the newest certificate on a connection during its handshake."""
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
