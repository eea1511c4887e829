"""The gRPC server: assembles listeners, services and the layers of their handlers; starts, drains and stops them.

One layer rejects calls without a verified token or without the permission for the method.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc
from grpc_health.v1 import health_pb2_grpc  # type: ignore[import-untyped]  # shipped without py.typed

from reasond_server.access import audit
from reasond_server.access.peers import Peers
from reasond_server.access.tokens import build_missing_token_error, parse_bearer_token
from reasond_server.base.addresses import is_loopback
from reasond_server.base.certificates import TlsFiles
from reasond_server.errors.base import InternalError, ReasondError, SettingsError, show
from reasond_server.grpc_api.guard import ErrorGuard, RpcCall, get_current_call
from reasond_server.grpc_api.handlers import Behaviour, Context, GrpcService, Handler, Layer, MethodTable, wrap_handler
from reasond_server.grpc_api.listeners import (
    CertificateReloader,
    MetadataCollector,
    bind_tcp,
    bind_unix,
    channel_arguments,
    require_address,
)
from reasond_server.grpc_api.load_reports import LOAD_SERVICE, LoadReports
from reasond_server.grpc_api.message_codec import Codec
from reasond_server.grpc_api.standard_services import HEALTH_SERVICE, HealthServicer, add_reflection
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.telemetry.scope import note_caller

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from reasond_server.access.permissions import Operation
    from reasond_server.grpc_api.listeners import GrpcOptions
    from reasond_server.runs.live_runs import Load
    from reasond_server.telemetry.spans import Tracing
    from reasond_server.types import Principal

EXEMPT_SERVICES: Final = frozenset(
    {
        LOAD_SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
)
"""Probes, tools and load balancers call these without a token; they reveal nothing about any run."""

_HINT: Final = "Send metadata 'authorization: Bearer <token>'"
# Time for cancelled calls to clean up; a call that never ends must not keep the process alive.
_UNWINDING_S: Final = 5.0
# Callers have stopped sending when no call arrived in four checks; the number of checks is limited.
_LOOK_S: Final = 0.05
_QUIET_LOOKS: Final = 4
_MOST_LOOKS: Final = 20
# Longer than any run; `stop` is called with a shorter grace.
_FOR_EVER_S: Final = 1e6
_log = logging.getLogger("reasond.grpc")


class Authentication:
    """Verifies the bearer token of every RPC and checks that its principal may call the method.

    The handler inside must not have read the request: the message of a caller who is refused is never read.
    `operations` maps the path of each RPC to the operation that needs permission. `authenticate` converts a token into
    a principal; `require` rejects a principal that lacks the permission for an operation. The token is not stored.
    """

    def __init__(
        self,
        *,
        authenticate: Callable[[str], Awaitable[Principal]],
        require: Callable[[Principal, Operation], None],
        operations: Mapping[str, Operation],
        peers: Peers | None = None,
    ) -> None:
        self._authenticate = authenticate
        self._require = require
        self._operations = operations
        self._peers = peers or Peers()

    def wrap(self, method: str, handler: Handler) -> Handler:
        """Return the handler of `method` behind the check; as it is if the method is exempt.

        Raises:
            InternalError: no service declares a permission for it.
        """
        if method.removeprefix("/").partition("/")[0] in EXEMPT_SERVICES:
            return handler
        operation = self._operations.get(method)
        if operation is None:
            raise InternalError(f"no service declares a permission for {method}")
        return wrap_handler(handler, partial(self._add_check, operation))

    def _add_check(self, operation: Operation, run: Behaviour) -> Behaviour:
        async def serve(requests: object, context: Context) -> object:
            call = get_current_call()
            try:
                call.principal = await self._identify(call, context)
                self._require(call.principal, operation)
            except ReasondError as error:
                audit.log_denied(operation, error, principal=call.principal, call_id=call.call_id)
                raise
            note_caller("grpc")
            decision = audit.begin(operation, principal=call.principal, call_id=call.call_id)
            try:
                return await run(requests, context)
            except ReasondError as error:
                decision.end(error)
                raise
            finally:
                decision.allow()

        return serve

    async def _identify(self, call: RpcCall, context: Context) -> Principal:
        """Return the principal of the call's token or, without a token, of its client certificate.

        Raises:
            TokenMissingError: there is neither.
            TokenInvalidError: the headers are not one `Bearer <token>`.
        """
        tokens, call.tokens = call.tokens, ()
        if tokens:
            return await self._authenticate(parse_bearer_token(tokens))
        principal = self._peers.recognise(_find_peer_uris(context)) if self._peers.has_rules else None
        if principal is None:
            raise build_missing_token_error(_HINT)
        return principal


def _find_peer_uris(context: Context) -> list[str]:
    """Return the URIs of the peer's verified certificate; empty without a certificate."""
    names = context.auth_context().get("x509_subject_alternative_name", ())
    return [name.decode("utf-8", "replace") for name in names if b"://" in name]


class GrpcServer:
    """Serves the core over gRPC.

    `authenticate` converts a bearer token into a principal, and `require` rejects one that lacks the permission
    for an operation of one of the `services`. Readiness is reported through `health`; `look` tells the load.
    """

    def __init__(
        self,
        *,
        options: GrpcOptions,
        services: Sequence[GrpcService],
        health: HealthServicer,
        authenticate: Callable[[str], Awaitable[Principal]],
        peers: Peers | None = None,
        require: Callable[[Principal, Operation], None],
        new_call_id: Callable[[], str],
        observer: Observer = UNOBSERVED,
        tracing: Tracing | None = None,
        look: Callable[[], Load] | None = None,
    ) -> None:
        self._load = (
            None
            if look is None or options.load_reports == "off"
            else LoadReports(look=look, interval_s=options.load_report_interval_s)
        )
        self._options = options
        self._services = services
        self.health = health
        self._guard = ErrorGuard(
            new_call_id=new_call_id,
            collector=MetadataCollector(max_metadata_bytes=options.max_metadata_bytes),
            observer=observer,
            tracing=tracing,
            load=None if options.load_reports == "streams" else self._load,
        )
        self._codec = Codec(max_send_bytes=options.max_send_bytes)
        self._authentication = Authentication(
            authenticate=authenticate,
            require=require,
            operations={path: each for one in services for path, each in one.declaration.operations.items()},
            peers=peers,
        )
        self._servers: list[grpc.aio.Server] = []
        self._closing: asyncio.Task[None] | None = None
        self._ending: list[asyncio.Future[None]] = []
        self._port = 0
        self._admin_port = 0

    @property
    def in_flight(self) -> int:
        """The RPCs in progress."""
        return len(self._guard.running)

    @property
    def port(self) -> int:
        """The TCP port of the services; 0 if they listen only on a Unix socket, or not yet."""
        return self._port

    @property
    def admin_port(self) -> int:
        """The TCP port of the admin listener; 0 if there is none."""
        return self._admin_port

    async def start(self) -> None:
        """Bind all listeners and serve. Health stays NOT_SERVING until `health.set_ready`.

        Raises:
            SettingsError: an address cannot be bound, TLS files cannot be used, or a package is missing.
        """
        try:
            self._bind()
            if self._options.admin_address:
                self._bind_admin()
        except SettingsError:
            await self._start_all()
            await self.stop(grace_s=0)
            raise
        if self._load is not None:
            self._load.begin()
        await self._start_all()

    def begin_drain(self) -> None:
        """Report NOT_SERVING to health checks; new calls are still accepted and served."""
        self.health.begin_drain()

    async def close_listeners(self) -> None:
        """Stop listening and send GOAWAY on every connection; calls in progress continue until `stop`.

        Until a peer receives the GOAWAY, grpc ends its new calls with CANCELLED, which no retry policy retries. So all
        responses are held back until no more calls arrive, for a second at most: a peer that waits for a response
        sends no call, and receives the GOAWAY before that response.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close_listeners(), name="closing the gRPC listeners")
        await asyncio.shield(self._closing)

    async def stop(self, grace_s: float) -> None:
        """Close the listeners, wait at most `grace_s` seconds for the calls in progress, then cut them.

        Returns after the last handler has ended, which grpc itself does not wait for. A handler that never ends is
        abandoned: no peer may keep the process alive.
        """
        self.begin_drain()
        if grace_s > 0:
            await self.close_listeners()
        self._end_watches()
        servers, self._servers = self._servers, []
        stopping = [*self._ending, *(asyncio.ensure_future(server.stop(grace_s)) for server in servers)]
        if stopping:
            ended, left = await asyncio.wait(stopping, timeout=grace_s + _UNWINDING_S)
            for each in ended:
                each.result()
            if left:
                _log.error("gRPC does not stop; it is left behind")
        if self._guard.running:
            await asyncio.wait(self._guard.running, timeout=_UNWINDING_S)

    async def _close_listeners(self) -> None:
        with self._guard.hold_ends():
            self._end_watches()
            await self._wait_until_quiet()
            self._ending = [asyncio.ensure_future(server.stop(_FOR_EVER_S)) for server in self._servers]
            # After one turn of the event loop, each server has begun to stop and has sent its GOAWAYs.
            await asyncio.sleep(0)

    def _end_watches(self) -> None:
        """End the streams that would last as long as the server."""
        self.health.end_watches()
        if self._load is not None:
            self._load.close()

    async def _wait_until_quiet(self) -> None:
        """Wait until no more calls arrive."""
        seen, quiet = self._guard.running, 0
        for _ in range(_MOST_LOOKS):
            if quiet >= _QUIET_LOOKS:
                return
            await asyncio.sleep(_LOOK_S)
            running = self._guard.running
            quiet = 0 if running - seen else quiet + 1
            seen = running

    async def _start_all(self) -> None:
        """Start the bound listeners, even after a failed start: grpc frees only the ports of started servers."""
        for server in self._servers:
            await server.start()

    def _create_server(self, *layers: Layer) -> tuple[grpc.aio.Server, MethodTable]:
        """Return a server and its methods, to be added; `layers` are those between the codec and the guard."""
        guard = self._guard
        methods = MethodTable(
            self._codec.wrap, *layers, guard.wrap, begin=guard.begin_call, unknown=guard.refuse_unknown()
        )
        server = grpc.aio.server(handlers=(methods,), options=channel_arguments(self._options))
        self._servers.append(server)
        return server, methods

    def _bind(self) -> None:
        options = self._options
        if not options.grpc_address and not options.grpc_unix_socket:
            raise SettingsError("gRPC has nowhere to listen", remedy="Set [server] grpc_address or grpc_unix_socket.")
        server, methods = self._create_server(self._authentication.wrap)
        for service in self._services:
            service.register(methods)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, methods)
        names = [*(service.declaration.name for service in self._services), HEALTH_SERVICE]
        if self._load is not None and options.load_reports != "calls":
            self._load.register(methods)
            names.append(LOAD_SERVICE)
        if options.reflection:
            add_reflection(methods, names)
        # Checks come before binding: a port that is open for a moment would accept calls.
        if options.grpc_unix_socket:
            bind_unix(server, Path(options.grpc_unix_socket))
        if options.grpc_address:
            credentials = self._build_credentials()
            self._port = bind_tcp(server, options.grpc_address, credentials=credentials, setting="grpc_address")

    def _build_credentials(self) -> grpc.ServerCredentials | None:
        """Return the TLS credentials; None if TLS is off or ends at a proxy."""
        options = self._options
        if options.tls != "files":
            return None
        files = TlsFiles(
            certificate=options.tls_certificate, private_key=options.tls_private_key, client_ca=options.tls_client_ca
        )
        return CertificateReloader(files).credentials()

    def _bind_admin(self) -> None:
        """Open the listener for channelz, which shows every connection and therefore stays on this machine."""
        address = self._options.admin_address
        require_address(address, setting="admin_address")
        if not is_loopback(address):
            raise SettingsError(
                f"The admin listener {show(address)} is not on a loopback address, and has no authentication",
                remedy="Set [server] admin_address to '127.0.0.1:port' or leave it empty.",
            )
        if find_spec("grpc_channelz") is None:
            raise SettingsError(
                "The admin listener needs grpcio-channelz, which is not installed",
                remedy="Install reasond-server[channelz], or leave [server] admin_address empty.",
            )
        from grpc_channelz.v1 import channelz, channelz_pb2_grpc  # type: ignore[import-untyped]  # noqa: PLC0415 - optional, untyped

        server, methods = self._create_server()
        channelz_pb2_grpc.add_ChannelzServicer_to_server(channelz.aio.ChannelzServicer(), methods)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, methods)
        self._admin_port = bind_tcp(server, address, credentials=None, setting="admin_address")
