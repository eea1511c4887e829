"""Builds metrics and tracing from the settings: counters, the values of labels, and the destinations of spans."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from reasond_server.assembly.backends import read_backend_options
from reasond_server.base.addresses import is_loopback, split_address
from reasond_server.base.certificates import TlsFiles
from reasond_server.config import ServerSettings, Settings, ToolsSettings, choose_provider
from reasond_server.console.console_pages import CONSOLE_PATH
from reasond_server.errors.base import SettingsError
from reasond_server.errors.reasons import list_error_classes
from reasond_server.grpc_api.standard_services import STANDARD_METHODS
from reasond_server.grpc_api.statuses import CODES
from reasond_server.grpc_api.transcoding import find_method, list_bindings
from reasond_server.http_api.http_app import PATHS
from reasond_server.http_api.http_server import HttpServer
from reasond_server.http_api.page_gate import MetricsApp, MetricsPage, PageGate
from reasond_server.llm.model import ModelFinish
from reasond_server.llm.profiles import is_hosted
from reasond_server.protocols.mcp.mcp_endpoint import MCP_PATH
from reasond_server.protocols.openai_endpoint import OPENAI_PATHS
from reasond_server.repair.service.repair_work import REPAIR
from reasond_server.runs.phase import STOP_REASONS
from reasond_server.services import DECLARED
from reasond_server.services.a2a import A2A_PATHS
from reasond_server.services.a2a import DECLARATION as A2A_DECLARATION
from reasond_server.services.chats import CHAT_METHODS
from reasond_server.services.mcp_tools import MCP_METHODS
from reasond_server.telemetry.observers import (
    API_KEY_OUTCOMES,
    HANDOFF_OUTCOMES,
    PROGRAM_OUTCOMES,
    REENTRY_OUTCOMES,
    TRANSPORTS,
    TURN_EXITS,
    UNOBSERVED,
    WEBHOOK_OUTCOMES,
)
from reasond_server.telemetry.span_export import OtlpOptions, SpanSink, TracingOptions, build_sink, is_receiver_there
from reasond_server.tools.mcp import build_tool_name
from reasond_server.tools.read_result import READ_TOOL_RESULT
from reasond_server.turns.history import TURN
from reasond_server.turns.turn_tools import MODE_STATE_CHANGE
from reasond_server.types import FinishReason, SavingsBaseline
from reasond_server.types.repairs import CheckStatus
from reasond_server.types.turns import ContextGoal, Rendering
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from reasond_server.telemetry.exposition import Exposition, Sampler
    from reasond_server.telemetry.metric_export import MetricExport
    from reasond_server.telemetry.observers import Observer, ServerSnapshot

PROVIDERS = {"demo": "reasond.demo", "openai": "openai"}
"""The names of the configured providers in spans."""
_FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_TOOL_OUTCOMES = ("ok", "failed", "timeout", "invalid_arguments", "unknown_tool", "refused", "cancelled")
_WAIT_OUTCOMES = ("admitted", "draining", "gone", "timeout")


@value
class ServerMetrics:
    """The parts of a server with metrics: the sampler, and the exposition that is scraped.

    With `is_shared` a scrape returns the sums of all processes that share a folder.
    """

    sampler: Sampler
    exposition: Exposition
    is_shared: bool = False


@value
class Telemetry:
    """The observer of all rooms; without a reader of metrics `server_metrics` is None, and nothing is counted.

    `export` sends the metrics over OTLP, if that is wanted.
    """

    observer: Observer
    server_metrics: ServerMetrics | None = None
    export: MetricExport | None = None


def build_telemetry(
    settings: Settings,
    environ: Mapping[str, str],
    *,
    strategies: Iterable[str],
    model: str,
    look: Callable[[], ServerSnapshot],
    instance_id: str = "",
    is_traced: bool = False,
) -> Telemetry:
    """Return what `settings` ask for; `look` returns the server's state, `strategies` and `model` are label values."""
    is_readable = settings.metrics.address or (settings.metrics.on_http and settings.server.http_address)
    options = read_metric_options(settings, environ, instance_id=instance_id)
    is_readable = is_readable or options.target
    if not settings.reasoning.performance.enable_metrics or not is_readable:
        return Telemetry(observer=UNOBSERVED)
    # Imported here: prometheus_client takes 60 ms, and a server without metrics does not need it.
    from reasond_server.telemetry.catalogue import Vocabulary  # noqa: PLC0415 - see above
    from reasond_server.telemetry.exposition import Exposition, Sampler  # noqa: PLC0415 - see above
    from reasond_server.telemetry.meters import Meters  # noqa: PLC0415 - see above

    vocabulary = Vocabulary(words=list_label_values(settings, strategies=strategies, model=model))
    metrics = Meters(vocabulary=vocabulary, version=version("reasond-server"), has_exemplars=is_traced)
    sampler = Sampler(metrics=metrics, look=look)
    folder, provider = environ.get(_FOLDER_VARIABLE, ""), find_provider_name(settings, environ)
    exposition = Exposition(registry=metrics.registry, before=sampler.sample, folder=folder, provider=provider)
    shown = ServerMetrics(sampler=sampler, exposition=exposition, is_shared=bool(folder))
    if not is_receiver_there(options):
        return Telemetry(observer=metrics, server_metrics=shown)
    from reasond_server.telemetry.metric_export import MetricExport  # noqa: PLC0415 - needs the extra otel

    return Telemetry(
        observer=metrics, server_metrics=shown, export=MetricExport(exposition=exposition, options=options)
    )


def read_metric_options(settings: Settings, environ: Mapping[str, str], *, instance_id: str) -> OtlpOptions:
    """Return where metrics are sent over OTLP."""
    return OtlpOptions(
        endpoint=settings.metrics.endpoint,
        protocol=settings.metrics.protocol,
        signal="metrics",
        version=version("reasond-server"),
        instance_id=instance_id,
        environ=environ,
    )


def build_metrics_page(settings: Settings, server_metrics: ServerMetrics | None, gate: PageGate) -> MetricsPage | None:
    """Return the metrics page of the HTTP listener; None if the listener has none."""
    if server_metrics is None or not settings.metrics.on_http:
        return None
    return MetricsPage(server_metrics.exposition.scrape, gate=gate)


def build_metrics_listener(
    settings: Settings, server_metrics: ServerMetrics | None, gate: PageGate, *, new_call_id: Callable[[], str]
) -> HttpServer | None:
    """Return the separate listener for metrics; None if there is none.

    If other machines can reach it, it uses the TLS files of HTTP and requires a token, unless the operator allows
    anonymous readers.
    """
    own, server = settings.metrics, settings.server
    if server_metrics is None or not own.address:
        return None
    is_local = is_loopback(own.address)
    page = MetricsPage(server_metrics.exposition.scrape, gate=None if is_local or own.allow_anonymous else gate)
    host, port = split_address(own.address)
    return HttpServer(
        app=MetricsApp(page, new_call_id=new_call_id),
        host=host,
        port=port,
        tls=None if is_local else find_tls_files(server),
        setting="[metrics] address",
        reuse_port=server_metrics.is_shared,
    )


def find_tls_files(server: ServerSettings) -> TlsFiles | None:
    """Return the TLS files of HTTP; None if TLS is off or ends at a proxy."""
    if server.tls != "files":
        return None
    return TlsFiles(
        certificate=server.tls_certificate, private_key=server.tls_private_key, client_ca=server.tls_client_ca
    )


def list_label_values(settings: Settings, *, strategies: Iterable[str], model: str) -> dict[str, frozenset[str]]:
    """Return the allowed values of every label whose values callers, models or other programs could choose."""
    reasons = set(list_error_classes())
    finishes = {finish.value for finish in ModelFinish}
    backends = settings.llm.backends
    models = {model, settings.llm.model, *(backend.model for backend in backends.values())}
    declared = (*DECLARED, A2A_DECLARATION)
    methods = {name for each in declared for name in (*each.methods, *(path[1:] for path in each.operations))}
    methods |= A2A_DECLARATION.permissions.keys()
    rpcs = [find_method(path) for each in DECLARED for path in each.operations]
    templates = {binding.template for rpc in rpcs for binding in list_bindings(rpc.GetOptions())}
    return {
        "transport": frozenset({"http", *TRANSPORTS}),
        "method": frozenset({*STANDARD_METHODS, *methods, *CHAT_METHODS, *MCP_METHODS}),
        "code": frozenset(CODES),
        "route": frozenset({*PATHS, *templates, *OPENAI_PATHS, *A2A_PATHS, MCP_PATH, CONSOLE_PATH}),
        "status": frozenset(
            map(
                str,
                (0, 200, 202, 204, 304, 400, 401, 403, 404, 405, 406, 408, 409, 413, 415, 429, 499, 500, 501, 503, 504),
            )
        ),
        "reason": frozenset({*reasons, *STOP_REASONS.values()}),
        "strategy": frozenset({*strategies, TURN, REPAIR}),
        "finish_reason": frozenset(finish.value for finish in FinishReason),
        "baseline": frozenset(baseline.value for baseline in SavingsBaseline),
        "model": frozenset(models - {""}),
        "backend": frozenset({"llm", *backends}),
        "tool": frozenset(list_tool_labels(settings.tools)),
        "outcome": frozenset(
            {
                *reasons,
                *finishes,
                *("closed", "resumed", "written_off"),
                *_TOOL_OUTCOMES,
                *_WAIT_OUTCOMES,
                *PROGRAM_OUTCOMES,
                *HANDOFF_OUTCOMES,
                *REENTRY_OUTCOMES,
                *API_KEY_OUTCOMES,
                *WEBHOOK_OUTCOMES,
                *(status.value for status in CheckStatus),
            }
        ),
        "exit": frozenset(TURN_EXITS),
        "goal": frozenset(goal.value for goal in ContextGoal),
        "rendering": frozenset(rendering.value for rendering in Rendering),
    }


def list_tool_labels(tools: ToolsSettings) -> set[str]:
    """Return the names of tools in the settings; SERVER__other stands for all other tools of an MCP server."""
    offered = {build_tool_name(name, tool) for name, server in tools.mcp.items() for tool in server.allow_tools}
    fetching = {"http_get"} if tools.http_get.allow_hosts else set()
    return {
        *tools.enabled,
        READ_TOOL_RESULT,
        MODE_STATE_CHANGE,
        *fetching,
        *offered,
        *(f"{name}__other" for name in tools.mcp),
    }


def read_tracing_options(settings: Settings, environ: Mapping[str, str], *, instance_id: str) -> TracingOptions:
    """Return the tracing options; trace context goes to models of known providers only if the settings ask for it."""
    section = settings.tracing
    targets = set(section.propagate_to)
    models = "hosted_models" if _is_hosted_model(settings, environ) else "models"
    return TracingOptions(
        endpoint=section.endpoint,
        protocol=section.protocol,
        sample_ratio=section.sample_ratio,
        follows_callers=section.follow_callers,
        has_content=section.content,
        propagate_to=(targets & {"tools"}) | ({"models"} if models in targets else set()),
        version=version("reasond-server"),
        instance_id=instance_id,
        environ=environ,
    )


def open_span_sink(settings: Settings, environ: Mapping[str, str], *, instance_id: str) -> SpanSink | None:
    """Return the destination of spans; None if nothing is traced.

    Raises:
        SettingsError: the settings name an endpoint, but the packages are not installed.
    """
    return build_sink(read_tracing_options(settings, environ, instance_id=instance_id))


def find_provider_name(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return the name of the model's provider in spans."""
    return PROVIDERS[choose_provider(settings, environ)]


def _is_hosted_model(settings: Settings, environ: Mapping[str, str]) -> bool:
    if choose_provider(settings, environ) == "demo":
        return False
    try:
        return is_hosted(read_backend_options(settings, environ).base_url)
    except SettingsError:
        # The model was passed to the server, and the settings describe none. Hosted is the careful assumption.
        return True
