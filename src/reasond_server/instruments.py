"""Settings become metrics and tracing: what counts, the words of labels, where spans go, who is told of traces."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from reasond_server.addresses import is_loopback, split_address
from reasond_server.backends import read_backend_options
from reasond_server.config import choose_provider
from reasond_server.errors import SettingsError, error_classes
from reasond_server.grpc_api.standard_services import STANDARD_METHODS
from reasond_server.grpc_api.statuses import CODES
from reasond_server.http_api.http_app import PATHS
from reasond_server.http_api.http_server import HttpServer
from reasond_server.http_api.jsonrpc_calls import TRANSPORT as JSONRPC
from reasond_server.http_api.metrics_page import MetricsApp, MetricsPage
from reasond_server.llm.model import ModelFinish
from reasond_server.llm.profiles import is_hosted
from reasond_server.runs.phase import STOP_REASONS
from reasond_server.services import DECLARED
from reasond_server.telemetry.exporting import TracingOptions, sink_of
from reasond_server.telemetry.observers import UNOBSERVED
from reasond_server.tools.mcp import build_tool_name
from reasond_server.tools.read_result import READ_TOOL_RESULT
from reasond_server.types import FinishReason, SavingsBaseline
from reasond_server.wire.certificates import TlsFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from reasond_server.config import ServerSettings, Settings, ToolsSettings
    from reasond_server.http_api.metrics_page import ReaderGate
    from reasond_server.telemetry.exporting import SpanSink
    from reasond_server.telemetry.exposition import Exposition
    from reasond_server.telemetry.observers import Observer, Snapshot
    from reasond_server.telemetry.sampling import Sampler

PROVIDERS = {"demo": "reasond.demo", "openai": "openai"}
"""What spans call the providers of the configuration."""
_FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_TOOL_OUTCOMES = ("ok", "failed", "timeout", "invalid_arguments", "unknown_tool", "refused", "cancelled")
_WAIT_OUTCOMES = ("admitted", "draining", "gone", "timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """What a server with metrics has beside the observer: samples, and what is read.

    `is_shared`: what is read are the sums of all processes that share a folder.
    """

    sampler: Sampler
    exposition: Exposition
    is_shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """What the rooms tell their work to; `counting` is None where nobody could read it, and then nothing is counted."""

    observer: Observer
    counting: Counting | None = None


def measuring_of(
    settings: Settings,
    environ: Mapping[str, str],
    *,
    strategies: Iterable[str],
    model: str,
    look: Callable[[], Snapshot],
) -> Measuring:
    """Return what `settings` ask for; `look` tells how the server is, `strategies` and `model` are names for labels."""
    is_readable = settings.metrics.address or (settings.metrics.on_http and settings.server.http_address)
    if not settings.reasoning.performance.enable_metrics or not is_readable:
        return Measuring(observer=UNOBSERVED)
    # Imported here: prometheus_client takes 60 ms, and a server without metrics does without.
    from reasond_server.telemetry.exposition import Exposition  # noqa: PLC0415 - see above
    from reasond_server.telemetry.meters import Meters  # noqa: PLC0415 - see above
    from reasond_server.telemetry.sampling import Sampler  # noqa: PLC0415 - see above
    from reasond_server.telemetry.series import Vocabulary  # noqa: PLC0415 - see above

    vocabulary = Vocabulary(words=words_of(settings, strategies=strategies, model=model))
    metrics = Meters(vocabulary=vocabulary, version=version("reasond-server"))
    sampler = Sampler(metrics=metrics, look=look)
    folder = environ.get(_FOLDER_VARIABLE, "")
    exposition = Exposition(registry=metrics.registry, before=sampler.sample, folder=folder)
    return Measuring(
        observer=metrics, counting=Counting(sampler=sampler, exposition=exposition, is_shared=bool(folder))
    )


def page_of(settings: Settings, counting: Counting | None, gate: ReaderGate) -> MetricsPage | None:
    """Return what the HTTP listener serves; None where it does not."""
    if counting is None or not settings.metrics.on_http:
        return None
    return MetricsPage(counting.exposition.scrape, gate=gate)


def listener_of(
    settings: Settings, counting: Counting | None, gate: ReaderGate, *, new_call_id: Callable[[], str]
) -> HttpServer | None:
    """Return the listener that serves nothing but metrics; None where there is none.

    It asks for a token where other machines can reach it, unless the operator decided otherwise, and has the TLS of
    the others there.
    """
    own, server = settings.metrics, settings.server
    if counting is None or not own.address:
        return None
    is_local = is_loopback(own.address)
    page = MetricsPage(counting.exposition.scrape, gate=None if is_local or own.allow_anonymous else gate)
    host, port = split_address(own.address)
    return HttpServer(
        app=MetricsApp(page, new_call_id=new_call_id),
        host=host,
        port=port,
        tls=None if is_local else tls_files_of(server),
        setting="[metrics] address",
        reuse_port=counting.is_shared,
    )


def tls_files_of(server: ServerSettings) -> TlsFiles | None:
    """Return the TLS files of HTTP; None where TLS is off or ends at a proxy."""
    if server.tls != "files":
        return None
    return TlsFiles(
        certificate=server.tls_certificate, private_key=server.tls_private_key, client_ca=server.tls_client_ca
    )


def words_of(settings: Settings, *, strategies: Iterable[str], model: str) -> dict[str, frozenset[str]]:
    """Return the words of every label whose values callers, models or other programs could choose."""
    reasons = set(error_classes())
    finishes = {finish.value for finish in ModelFinish}
    backends = settings.llm.backends
    models = {model, settings.llm.model, *(backend.model for backend in backends.values())}
    methods = {name for each in DECLARED for name in (*each.methods, *(path[1:] for path in each.operations))}
    return {
        "transport": frozenset({"grpc", "http", JSONRPC}),
        "method": frozenset({*STANDARD_METHODS, *methods}),
        "code": frozenset(CODES),
        "route": frozenset(PATHS),
        "status": frozenset(map(str, (0, 200, 204, 304, 400, 401, 403, 404, 405, 408, 413, 415, 429, 499, 500, 503))),
        "reason": frozenset({*reasons, *STOP_REASONS.values()}),
        "strategy": frozenset(strategies),
        "finish_reason": frozenset(finish.value for finish in FinishReason),
        "baseline": frozenset(baseline.value for baseline in SavingsBaseline),
        "model": frozenset(models - {""}),
        "backend": frozenset({"llm", *backends}),
        "tool": frozenset(tools_of(settings.tools)),
        "outcome": frozenset(
            {*reasons, *finishes, "closed", *_TOOL_OUTCOMES, *_WAIT_OUTCOMES, "resumed", "written_off"}
        ),
    }


def tools_of(tools: ToolsSettings) -> set[str]:
    """Return the names that settings give tools; SERVER__other stands for what a server has besides."""
    offered = {build_tool_name(name, tool) for name, server in tools.mcp.items() for tool in server.allow_tools}
    fetching = {"http_get"} if tools.http_get.allow_hosts else set()
    return {*tools.enabled, READ_TOOL_RESULT, *fetching, *offered, *(f"{name}__other" for name in tools.mcp)}


def tracing_options(settings: Settings, environ: Mapping[str, str], *, instance_id: str) -> TracingOptions:
    """Return what the settings say of tracing; models of known providers are told only where that is asked for."""
    section = settings.tracing
    told = set(section.propagate_to)
    models = "hosted_models" if _is_hosted_model(settings, environ) else "models"
    return TracingOptions(
        endpoint=section.endpoint,
        protocol=section.protocol,
        sample_ratio=section.sample_ratio,
        follows_callers=section.follow_callers,
        has_content=section.content,
        propagate_to=(told & {"tools"}) | ({"models"} if models in told else set()),
        version=version("reasond-server"),
        instance_id=instance_id,
        environ=environ,
    )


def span_sink_of(settings: Settings, environ: Mapping[str, str], *, instance_id: str) -> SpanSink | None:
    """Return where the settings send spans; None where nothing is traced.

    Raises:
        SettingsError: they name an endpoint, but the packages are not installed.
    """
    return sink_of(tracing_options(settings, environ, instance_id=instance_id))


def provider_name(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return what spans call the provider of the model."""
    return PROVIDERS[choose_provider(settings, environ)]


def _is_hosted_model(settings: Settings, environ: Mapping[str, str]) -> bool:
    if choose_provider(settings, environ) == "demo":
        return False
    try:
        return is_hosted(read_backend_options(settings, environ).base_url)
    except SettingsError:
        # The model is given from outside, and nothing is configured for it.
        return True
