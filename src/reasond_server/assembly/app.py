"""The composition root: builds the core and the listeners from the settings; starts, drains and stops them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from reasond_server.access.permissions import ADMIN, require_permission
from reasond_server.access.tokens import build_principal
from reasond_server.agents.cards import build_server_card
from reasond_server.agents.directory import AgentService
from reasond_server.assembly.backends import create_model, create_named_models, find_backend_problems, find_model_name
from reasond_server.assembly.core import Core, assemble, build_registry, make_system_clock, open_chosen_stores
from reasond_server.assembly.instruments import (
    build_metrics_listener,
    build_metrics_page,
    build_telemetry,
    find_provider_name,
    find_tls_files,
    open_span_sink,
)
from reasond_server.assembly.limit_backend import build_limit_backend
from reasond_server.assembly.stores import Stores, StoreWatch
from reasond_server.assembly.verifiers import build_agent_tokens, build_minter, build_verification
from reasond_server.assembly.webhooks import Telling, build_telling
from reasond_server.assembly.workshops import OpenedWorkshop, build_engine, build_repair_worker, open_workshop
from reasond_server.base.addresses import Listening, is_loopback, replace_port, split_address
from reasond_server.config import LoadedSettings, ServerSettings, require_servable
from reasond_server.config.sources import FileWatch
from reasond_server.console.console_pages import CONSOLE_PATH, build_console_pages
from reasond_server.errors.base import InternalError
from reasond_server.eventlog.writer import tell_nobody
from reasond_server.grpc_api.grpc_server import GrpcServer
from reasond_server.grpc_api.listeners import GrpcOptions
from reasond_server.grpc_api.standard_services import HealthServicer
from reasond_server.http_api.connections import ConnectionLimits
from reasond_server.http_api.http_app import JSONRPC_PATH, HttpApp, HttpLimits, Interface
from reasond_server.http_api.http_calls import Methods
from reasond_server.http_api.http_server import HttpServer
from reasond_server.http_api.page_gate import METRICS_PATH, MetricsPage, PageGate
from reasond_server.http_api.request_middleware import CrossOriginApp
from reasond_server.http_api.rest_endpoint import REST_ROOT
from reasond_server.llm.wrapped_models import trace_model
from reasond_server.protocols.a2a.a2a_endpoint import A2A_ROOT, HTTP_ROOT
from reasond_server.protocols.asked_runs import Attachments
from reasond_server.protocols.mcp.mcp_endpoint import MCP_ROOT
from reasond_server.protocols.openai_endpoint import OPENAI_ROOT
from reasond_server.services import DECLARED
from reasond_server.services.a2a import A2aInterface, build_a2a_interface
from reasond_server.services.agents import build_agent_service
from reasond_server.services.chats import build_chat_interface
from reasond_server.services.executions import build_execution_service, build_operations_service
from reasond_server.services.mcp_tools import build_mcp_interface
from reasond_server.services.reasoning import build_reasoning_service, read_partial
from reasond_server.services.repairs import build_repair_service
from reasond_server.services.rest import build_rest_interface
from reasond_server.services.turns import build_turn_service
from reasond_server.telemetry.observers import UNSEEN_STORE, ServerSnapshot
from reasond_server.turns.history import TURN

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from reasond_server.assembly.instruments import ServerMetrics
    from reasond_server.base.clock import Clock
    from reasond_server.engines.temporal import TemporalEngine
    from reasond_server.llm.model import ChatModel
    from reasond_server.protocols.mcp.mcp_endpoint import McpInterface, McpServer
    from reasond_server.reasoning.registry import StrategyRegistry
    from reasond_server.services.declaration import Service
    from reasond_server.telemetry.span_export import SpanSink
    from reasond_server.types import Json

__all__ = ["Listening", "Server", "serve"]

_log = logging.getLogger("reasond.app")
_OBJECTS_PER_LOOK = 30_000
# All executions have ended by then; this time lets their last events reach the clients.
_LAST_WRITES_S = 2.0
_LAST_SPANS_S = 2.0


class Server:
    """One process: the core, gRPC and HTTP on one event loop.

    With `dev` the server signs with a key of its own and issues a token with all permissions. `registry`, `model`,
    `clock` and `spans` replace those that the settings describe.
    """

    def __init__(
        self,
        loaded: LoadedSettings,
        *,
        environ: Mapping[str, str],
        dev: bool = False,
        model: ChatModel | None = None,
        registry: StrategyRegistry | None = None,
        clock: Clock | None = None,
        spans: SpanSink | None = None,
    ) -> None:
        """Check everything that can be checked before the store is opened; no listener is started yet.

        Raises:
            SettingsError: the configuration is refused or cannot be used.
        """
        settings = loaded.settings
        require_servable(settings, dev=dev, also=[] if model is not None else find_backend_problems(settings, environ))
        for warning in loaded.find_exposed_files():
            _log.warning("%s", warning)
        self._settings = settings
        self._dev = dev
        self._clock = clock or make_system_clock()
        instance_id = self._clock.new_id()
        self._spans = spans or open_span_sink(settings, environ, instance_id=instance_id)
        self._tracing = None if self._spans is None else self._spans.tracing
        self._registry = build_registry(settings) if registry is None else registry
        self._telemetry = build_telemetry(
            settings,
            environ,
            strategies=[strategy.name for strategy in self._registry],
            model=find_model_name(settings, environ) if model is None else model.name,
            look=self._take_snapshot,
            instance_id=instance_id,
            is_traced=self._tracing is not None,
        )
        observer = self._telemetry.observer
        model = model or create_model(settings, environ, loaded.folder, observer=observer)
        self._model = trace_model(model, tracing=self._tracing, provider=find_provider_name(settings, environ))
        named_models = create_named_models(settings, environ, loaded.folder, observer=observer)
        self._named_models = {name: trace_model(one, tracing=self._tracing) for name, one in named_models.items()}
        self._verification = build_verification(loaded, dev=dev, now=self._clock.now, observer=observer)
        self._agent_tokens = build_agent_tokens(settings.auth, signing=self._verification.signing, now=self._clock.now)
        self._limit_backend = build_limit_backend(settings.limits, observer=observer, on_settled=self._note_budget)
        self._watch = FileWatch(loaded, environ=environ, apply=self._verification.reload)
        self._watching: list[asyncio.Task[None]] = []
        self._attachments: Attachments | None = None
        self._mcp: McpInterface | None = None
        self._health = HealthServicer(services=[each.name for each in DECLARED])
        self._is_ready = False
        self._is_draining = False
        self._stores: Stores | None = None
        self._store_watch: StoreWatch | None = None
        self._environ = environ
        self._engine: TemporalEngine | None = None
        self._workshop: OpenedWorkshop | None = None
        self._core: Core | None = None
        self._telling: Telling | None = None
        self._grpc: GrpcServer | None = None
        self._http_app: HttpApp | None = None
        self._http: HttpServer | None = None
        self._metrics_page, self._metrics_http = self._build_metrics_pages()

    @property
    def _server_metrics(self) -> ServerMetrics | None:
        """The metrics of this server; None if nothing is counted."""
        return self._telemetry.server_metrics

    async def start(self) -> Listening:
        """Open the store, bind the listeners, report ready, and return the addresses.

        Raises:
            SettingsError: the store cannot be used, an address cannot be bound or TLS files cannot be used; everything
                that was opened is closed again.
        """
        try:
            await self._open()
        except BaseException:
            await self.stop()
            raise
        self._watching.append(asyncio.create_task(self._watch.run(), name="configuration file"))
        if self._stores is not None:
            self._store_watch = StoreWatch(self._stores, set_usable=self._set_usable)
            self._watching.append(asyncio.create_task(self._store_watch.run(), name="watch of the store"))
        self._set_ready(is_ready=True)
        return Listening(
            grpc=self._grpc_target(),
            http=self._http_base_url(),
            token=self._dev_token() if self._dev else "",
            console_key=self._issue_console_key() if self._dev else "",
            model=self._model.name,
            store=self._stores.place if self._stores is not None else "",
            warnings=tuple(self._model.warnings),
            metrics=self._metrics_url(),
            console=self._console_url(),
        )

    def build_mcp_server(self) -> McpServer:
        """Return the server of the package `mcp` for a host that is no client of the listeners; it may do everything.

        To be called with `dev`, after `start`.
        """
        if self._mcp is None:
            raise InternalError("[mcp] is off")
        return self._mcp.build_server(self._dev_token)

    async def drain(self) -> None:
        """Report not ready, wait for the load balancers, close the listeners, let executions end, and stop."""
        server = self._settings.server
        # New work is still accepted during the delay, until the load balancers have stopped sending it.
        self._is_ready = False
        self._is_draining = True
        if self._grpc is not None:
            self._grpc.begin_drain()
        if self._http is not None:
            self._http.begin_drain()
        await asyncio.sleep(compute_drain_delay(server, dev=self._dev))
        # Before new work is refused: a client that is still connected would retry a refused call here.
        if self._http is not None:
            self._http.close_listener()
        if self._grpc is not None:
            await self._grpc.close_listeners()
        _log.info("draining", extra={"grace_s": server.drain_grace_s})
        if self._core is not None:
            await self._core.runner.drain(grace_s=server.drain_grace_s)
        await self.stop(grace_s=_LAST_WRITES_S)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Stop at once: executions end or are left to other processes; listeners close within `grace_s` seconds."""
        self._is_ready = False
        if self._core is not None:
            await self._core.runner.stop()
        listeners = (self._grpc, self._http, self._metrics_http)
        await asyncio.gather(*(each.stop(grace_s) for each in listeners if each is not None))
        if self._telemetry.export is not None:
            await self._telemetry.export.aclose(within_s=_LAST_SPANS_S)
        if self._server_metrics is not None:
            await self._server_metrics.sampler.aclose()
        tools = None if self._core is None else self._core.tools
        sender = None if self._telling is None else self._telling.sender
        for part in (self._attachments, tools, self._engine, self._workshop, sender):
            if part is not None:
                await part.aclose()
        for task in self._watching:
            task.cancel()
        await self._verification.aclose()
        await self._limit_backend.aclose()
        for model in (self._model, *self._named_models.values()):
            await model.aclose()
        stores, self._stores = self._stores, None
        if stores is not None:
            await stores.aclose()
        spans, self._spans = self._spans, None
        if spans is not None:
            await spans.aclose(within_s=_LAST_SPANS_S)

    async def _open(self) -> None:
        """Open the store, build the parts that need it, and bind the listeners."""
        settings = self._settings
        self._stores = stores = await open_chosen_stores(settings, clock=self._clock, dev=self._dev)
        if settings.repair.enabled or settings.reasoning.program_environment:
            self._workshop = await open_workshop(settings.repair)
        self._engine = engine = build_engine(settings, stores, self._environ)
        observer = self._telemetry.observer
        self._telling = told = build_telling(settings.webhooks, settings.a2a, stores, self._clock, observer)
        self._core = core = assemble(
            settings,
            model=self._model,
            registry=self._registry,
            clock=stores.time_of(self._clock),
            store=stores.executions,
            directory=stores.agents,
            snapshots=stores.snapshots,
            limits=self._limit_backend.callers,
            observer=self._telemetry.observer,
            tracing=self._tracing,
            backends=self._named_models,
            workshop=None if self._workshop is None else self._workshop.workshop,
            engine=engine,
            tell=tell_nobody if told is None else told.tell,
        )
        if engine is not None and self._workshop is not None:
            worker = build_repair_worker(
                settings,
                stores,
                self._workshop.workshop,
                model=self._model,
                backends=self._named_models,
                limits=self._limit_backend.callers,
                observer=self._telemetry.observer,
            )
            engine.begin_work(worker, settings.engine.work_on)
        agents = AgentService(
            directory=core.directory, server_card=self._build_card, max_card_bytes=settings.agents.max_card_bytes
        )
        services = self._build_services(core, agents)
        a2a = self._build_a2a(core)
        self._grpc = self._build_grpc_server(core, [*services, *([] if a2a is None else [a2a.grpc])])
        if settings.server.http_address:
            self._http = self._build_http_server(core, agents, services, {} if a2a is None else {A2A_ROOT: a2a.http})
        await core.tools.start()
        await self._grpc.start()
        for listener in (self._http, self._metrics_http):
            if listener is not None:
                await listener.start()
        if self._server_metrics is not None:
            self._server_metrics.sampler.begin(count_awaiting=partial(stores.executions.sessions.count_suspended, TURN))
        core.runner.begin()
        if self._telemetry.export is not None:
            self._telemetry.export.begin()
        if told is not None:
            told.sender.begin()

    def _note_budget(self, tenant: str, subject: str, left: float) -> None:
        """Tell receivers of a caller whose budget of the day is near its end; `left` is the share that is left."""
        if self._telling is not None:
            self._telling.sender.note_budget(tenant, subject, left)

    def _build_metrics_pages(self) -> tuple[MetricsPage | None, HttpServer | None]:
        """Return the metrics page of HTTP, and the listener for metrics alone; None for what is not wanted."""
        observer, peers = self._telemetry.observer, self._verification.peers
        gate = PageGate(authenticate=self._verification.verifier.verify, peers=peers, observer=observer)
        page = build_metrics_page(self._settings, self._server_metrics, gate)
        new_call_id = self._clock.new_id
        return page, build_metrics_listener(self._settings, self._server_metrics, gate, new_call_id=new_call_id)

    def _set_usable(self, is_usable: bool) -> None:  # noqa: FBT001 - a callback
        """Report ready or not with the store, unless the server drains."""
        if not self._is_draining:
            self._set_ready(is_ready=is_usable)

    def _set_ready(self, *, is_ready: bool) -> None:
        self._is_ready = is_ready
        self._health.set_ready(is_ready=is_ready)

    def _build_services(self, core: Core, agents: AgentService) -> Sequence[Service]:
        """Return the services for both transports."""
        server, observer = self._settings.server, self._telemetry.observer
        size, wait_s = GrpcOptions.of(server).max_send_bytes, server.write_timeout_s
        tasks, every = core.executions, core.observed
        return (
            build_reasoning_service(core.reasoning, max_send_bytes=size, write_timeout_s=wait_s, observer=observer),
            build_turn_service(core.turns, max_send_bytes=size, write_timeout_s=wait_s, observer=observer),
            build_repair_service(core.repairs, write_timeout_s=wait_s, observer=observer),
            build_execution_service(tasks, every, max_send_bytes=size, write_timeout_s=wait_s, observer=observer),
            build_operations_service(every, core.used),
            build_agent_service(agents),
        )

    def _build_a2a(self, core: Core) -> A2aInterface | None:
        """Return the bindings of A2A; None if it is off."""
        if not self._settings.a2a.enabled:
            return None
        return build_a2a_interface(
            core.reasoning,
            core.turns,
            desk=core.observed,
            budget=self._settings.a2a.budget,
            receivers=None if self._telling is None else self._telling.tasks,
            write_timeout_s=self._settings.server.write_timeout_s,
            observer=self._telemetry.observer,
        )

    def _build_grpc_server(self, core: Core, services: Sequence[Service]) -> GrpcServer:
        return GrpcServer(
            options=GrpcOptions.of(self._settings.server),
            services=services,
            health=self._health,
            authenticate=self._verification.verifier.verify,
            peers=self._verification.peers,
            require=require_permission,
            new_call_id=self._clock.new_id,
            observer=self._telemetry.observer,
            tracing=self._tracing,
            look=lambda: core.runner.load,
        )

    def _build_http_server(
        self, core: Core, agents: AgentService, services: Sequence[Service], interfaces: Mapping[str, Interface]
    ) -> HttpServer:
        server = self._settings.server
        observer = self._telemetry.observer
        methods = Methods([each.methods for each in services], read_partial=partial(read_partial, core.reasoning))
        self._http_app = app = HttpApp(
            methods=methods,
            card=agents.build_own_card,
            authenticate=self._verification.verifier.verify,
            peers=self._verification.peers,
            require=require_permission,
            is_ready=lambda: self._is_ready,
            agent_tokens=self._agent_tokens,
            new_call_id=self._clock.new_id,
            tracing=self._tracing,
            limits=HttpLimits(max_body_bytes=server.max_http_body_bytes, max_batch=server.max_jsonrpc_batch),
            observer=observer,
            metrics=self._metrics_page,
            interfaces={**self._build_interfaces(core, services), **interfaces},
            further_pages=build_console_pages() if server.console else None,
        )
        host, port = split_address(server.http_address)
        limits = ConnectionLimits(max_connections=server.max_http_connections, write_timeout_s=server.write_timeout_s)
        return HttpServer(
            app=CrossOriginApp(app, origins=server.cors_origins) if server.cors_origins else app,
            host=host,
            port=port,
            tls=find_tls_files(server),
            limits=limits,
            on_slow=partial(observer.slow_consumer, "http"),
            reuse_port=server.so_reuseport,
        )

    def _build_interfaces(self, core: Core, services: Sequence[Service]) -> Mapping[str, Interface]:
        """Return the protocols besides JSON-RPC, by the root of their paths."""
        interfaces: dict[str, Interface] = {REST_ROOT: build_rest_interface(services)}
        own = self._settings.openai
        if own.enabled:
            self._attachments = Attachments(
                store=core.reasoning.store, desk=core.observed, within_s=self._settings.store.reattach_s
            )
            interfaces[OPENAI_ROOT] = build_chat_interface(
                core.reasoning,
                core.turns,
                desk=core.observed,
                attachments=self._attachments,
                presets=own.models,
                max_pdf_files=own.max_pdf_files,
                now=self._clock.now,
            )
        if self._settings.mcp.enabled:
            self._mcp = build_mcp_interface(
                core.reasoning,
                core.repairs if self._settings.repair.enabled else None,
                services=services,
                desk=core.observed,
                version=version("reasond-server"),
                new_call_id=self._clock.new_id,
                now=self._clock.now,
                origins=self._settings.server.cors_origins,
            )
            interfaces[MCP_ROOT] = self._mcp.open_door
        return interfaces

    def _take_snapshot(self) -> ServerSnapshot:
        """Return the present state of the server, for the metrics."""
        load = None if self._core is None else self._core.runner.load
        return ServerSnapshot(
            rpcs=0 if self._grpc is None else self._grpc.in_flight,
            http_requests=0 if self._http_app is None else self._http_app.in_flight,
            running=0 if load is None else load.running,
            queued=0 if load is None else load.queued,
            places=0 if load is None else load.places,
            is_ready=self._is_ready,
            is_draining=self._is_draining,
            is_limits_degraded=self._limit_backend.health.is_degraded,
            store=UNSEEN_STORE if self._store_watch is None else self._store_watch.facts,
        )

    def _build_card(self) -> Json:
        """Return this server's agent card, with its public addresses as URLs, as A2A requires."""
        server = self._settings.server
        base = (server.public_http_url or self._http_base_url()).rstrip("/") if self._http else ""
        grpc_scheme = "https" if server.tls == "files" else "http"
        target = self._grpc_target()
        own = target if target.startswith("unix:") else f"{grpc_scheme}://{target}"
        strategies = {strategy.name: strategy.description for strategy in self._registry}
        return build_server_card(
            name="reasond",
            version=version("reasond-server"),
            grpc_url=server.public_grpc_url or own,
            jsonrpc_url=f"{base}{JSONRPC_PATH}" if base else "",
            a2a_urls=(f"{base}{A2A_ROOT}", f"{base}{HTTP_ROOT}") if base and self._settings.a2a.enabled else (),
            has_push=self._settings.a2a.has_push,
            strategies=strategies,
            supported_methods=sorted(
                name
                for each in DECLARED
                for name in each.methods
                if each.aliases.get(name, name) in {name, *strategies}
            ),
        )

    def _grpc_target(self) -> str:
        """Return the target that a gRPC client connects to."""
        server = self._settings.server
        if not server.grpc_address:
            return f"unix:{server.grpc_unix_socket}"
        return replace_port(server.grpc_address, 0 if self._grpc is None else self._grpc.port)

    def _http_base_url(self) -> str:
        """Return the base URL of HTTP; empty if HTTP is off."""
        server = self._settings.server
        if self._http is None:
            return ""
        scheme = "https" if server.tls == "files" else "http"
        return f"{scheme}://{replace_port(server.http_address, self._http.port)}"

    def _console_url(self) -> str:
        """Return the URL of the console; empty if it is off."""
        base = self._http_base_url()
        return f"{base}{CONSOLE_PATH}" if base and self._settings.server.console else ""

    def _metrics_url(self) -> str:
        """Return the URL of the separate metrics listener; empty if there is none."""
        address, own = self._settings.metrics.address, self._metrics_http
        if own is None:
            return ""
        scheme = "https" if self._settings.server.tls == "files" and not is_loopback(address) else "http"
        return f"{scheme}://{replace_port(address, own.port)}{METRICS_PATH}"

    def _issue_console_key(self) -> str:
        """Return a key for the address of the console: a token would make it four times as long."""
        return self._verification.api_keys.issue(build_principal({"sub": "developer", "permissions": [ADMIN]}))

    def _dev_token(self) -> str:
        """Return a token with all permissions, valid for a day at most."""
        auth = self._settings.auth
        signing = self._verification.signing
        if signing is None:
            raise InternalError("a development server has a key of its own")
        return build_minter(auth, signing).mint(
            subject="developer", permissions=[ADMIN], lifetime_s=auth.max_lifetime_s, now=self._clock.now()
        )


def compute_drain_delay(server: ServerSettings, *, dev: bool) -> float:
    """Return the seconds from the stop signal until new work is refused.

    With `dev` there is no load balancer to wait for, so the delay is 0 unless the settings name one.
    """
    return server.drain_delay_s if not dev or "drain_delay_s" in server.model_fields_set else 0.0


async def serve(
    loaded: LoadedSettings, *, environ: Mapping[str, str], dev: bool, on_ready: Callable[[Listening], None]
) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends all runs at once and reports this to clients.

    Raises:
        SettingsError: the server cannot start.
    """
    server = Server(loaded, environ=environ, dev=dev)
    async with _stop_signals() as signals:
        on_ready(await server.start())
        tune_garbage_collection()
        await signals.get()
        draining = asyncio.create_task(server.drain())
        again = asyncio.create_task(signals.get())
        await asyncio.wait([draining, again], return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, again):
            task.cancel()
        if not draining.done():
            await server.stop(grace_s=_LAST_WRITES_S)
        with contextlib.suppress(asyncio.CancelledError):
            await draining


def tune_garbage_collection() -> None:
    """Exempt the objects that exist now from garbage collection, and collect less often.

    Reference counting frees the objects of a call, because they contain no reference cycles, except five of gRPC's that
    hold the metadata (0.8 KB). They are collected after 6,000 calls, and are 3 of the 8 MB by which a server grows in
    its first 10,000 calls. A collection after every 700 new objects took a tenth of the time of a call. With a hundred
    calls that waited for a model, collections after every 10,000 objects took 3 % of the time, those of now 1 %.
    """
    gc.freeze()
    gc.set_threshold(_OBJECTS_PER_LOOK)


@contextlib.asynccontextmanager
async def _stop_signals() -> AsyncGenerator[asyncio.Queue[int], None]:
    """Put SIGTERM and SIGINT into a queue while the context lasts."""
    queue: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, queue.put_nowait, number)
    try:
        yield queue
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
