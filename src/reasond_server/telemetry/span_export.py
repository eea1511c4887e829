"""Exports spans to an OTLP receiver over gRPC or HTTP, in batches, without delaying or breaking the server's work."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import threading
import time
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from reasond_server.errors.base import SettingsError, show
from reasond_server.telemetry.spans import Tracing
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import requests
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricsData
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.sdk.trace.sampling import Sampler

_GRPC: Final = "grpc"
_HTTP: Final = "http/protobuf"
# The package that each protocol needs besides the SDK, and the extra that installs it.
_EXPORTERS: Final = {
    _GRPC: ("opentelemetry.exporter.otlp.proto.grpc", "otel"),
    _HTTP: ("opentelemetry.exporter.otlp.proto.http", "otel-http"),
}
_EXPORTER_CLASSES: Final = {
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
}
_TELL_EVERY_S: Final = 60.0
_log = logging.getLogger("reasond.tracing")


@value
class OtlpOptions:
    """Where a signal ("traces" or "metrics") is sent; OpenTelemetry's variables in `environ` fill what is not set."""

    endpoint: str = ""
    protocol: str = ""
    signal: str = "traces"
    version: str = ""
    instance_id: str = ""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def section(self) -> str:
        """The section of the configuration."""
        return "tracing" if self.signal == "traces" else self.signal

    @property
    def target(self) -> str:
        """The endpoint from the configuration or from OpenTelemetry's variables; empty if nothing is sent."""
        if self.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return ""
        return self.endpoint or self.read_variable("ENDPOINT")

    @property
    def spoken(self) -> str:
        """The configured protocol of the receiver; it may be one that is not supported."""
        return self.protocol or self.read_variable("PROTOCOL").lower() or _GRPC

    @property
    def address(self) -> str:
        """The full address of the receiver; over HTTP the path of OTLP is appended to a base address."""
        target = self.target if "://" in self.target else f"http://{self.target}"
        if self.spoken == _GRPC:
            return target
        path = f"/v1/{self.signal}"
        if self.endpoint:
            return target if urlsplit(target).path.strip("/") else target.rstrip("/") + path
        is_whole = self.environ.get(f"OTEL_EXPORTER_OTLP_{self.signal.upper()}_ENDPOINT", "").strip()
        return target if is_whole else target.rstrip("/") + path

    def read_variable(self, name: str, *, prefix: str = "OTEL_EXPORTER_OTLP") -> str:
        """Return OpenTelemetry's variable of this name for the signal, else that for all signals.

        Metrics have no endpoint of all signals: a receiver of traces need not take them.
        """
        names = [f"{prefix}_{self.signal.upper()}_{name}", f"{prefix}_{name}"]
        if (self.signal, name) == ("metrics", "ENDPOINT"):
            del names[1]
        return next(filter(None, (self.environ.get(each, "").strip() for each in names)), "")


@value
class TracingOptions(OtlpOptions):
    """Options of tracing; `propagate_to` may contain "models" and "tools", which then receive the trace context.

    `sample_ratio` is the share of traces that are kept. With `follows_callers` the sampling flag of a caller decides
    for the caller's traces.
    """

    sample_ratio: float = 1.0
    follows_callers: bool = True
    has_content: bool = False
    propagate_to: Collection[str] = ()


class SpanSink:
    """The tracing of one process and the provider that exports its spans."""

    def __init__(self, *, tracing: Tracing, provider: TracerProvider) -> None:
        self.tracing = tracing
        self._provider = provider

    async def aclose(self, *, within_s: float) -> None:
        """Send the remaining spans within `within_s` seconds; spans not sent by then are lost."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def end() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop is closed, so nothing waits any more
                loop.call_soon_threadsafe(done.set)

        # The loop waits for its own threads without limit, so the shutdown runs in another thread.
        threading.Thread(target=end, name="last spans", daemon=True).start()
        try:
            async with asyncio.timeout(within_s):
                await done.wait()
        except TimeoutError:
            _log.warning("the last spans could not be exported in time", extra={"within_s": within_s})


def build_sink(options: TracingOptions) -> SpanSink | None:
    """Return the tracing for `options`; None if spans are not sent, in which case OpenTelemetry is not imported.

    Raises:
        SettingsError: as in `require_receiver`.
    """
    return open_sink(open_exporter(options), options) if is_receiver_there(options) else None


def is_receiver_there(options: OtlpOptions) -> bool:
    """Return whether there is a receiver that can be used.

    Raises:
        SettingsError: as in `require_receiver`.
    """
    if not options.target:
        return False
    require_receiver(options)
    wrong = find_refusal(options)
    if wrong is not None:
        # The variables may be set for every program of a cluster, so they must not stop the server.
        what = "nothing is traced" if options.signal == "traces" else "no metrics are sent"
        _log.warning("%s, though OTEL_EXPORTER_OTLP_ENDPOINT is set: %s", what, wrong.message)
    return wrong is None


def open_exporter(options: OtlpOptions) -> CarefulExporter:
    """Return what sends spans or metrics to the receiver."""
    return CarefulExporter(_exporter(options), target=options.address, what=options.signal)


def require_receiver(options: OtlpOptions) -> None:
    """Refuse a configured endpoint that cannot be used; an endpoint from the environment is not checked here.

    Raises:
        SettingsError: the packages are not installed, or the protocol is not supported.
    """
    wrong = find_refusal(options) if options.endpoint else None
    if wrong is not None:
        raise wrong


def find_refusal(options: OtlpOptions) -> SettingsError | None:
    """Return the error if the receiver cannot be used, else None."""
    where = f"[{options.section}] endpoint is {show(options.endpoint)}, but " if options.endpoint else ""
    if options.spoken not in _EXPORTERS:
        return SettingsError(
            f"{where}OTEL_EXPORTER_OTLP_PROTOCOL is {show(options.spoken)}, which is not spoken here",
            remedy=f'Set [{options.section}] protocol to "grpc" or "http/protobuf".',
        )
    package, extra = _EXPORTERS[options.spoken]
    missing = [name for name in ("opentelemetry.sdk", package) if not _is_installed(name)]
    if not missing:
        return None
    return SettingsError(
        f"{where}{missing[0]} is not installed",
        remedy=f"Install reasond-server[{extra}], or leave the endpoint empty.",
    )


def open_sink(exporter: Any, options: TracingOptions, *, is_batched: bool = True) -> SpanSink:  # noqa: ANN401 - exporters differ
    """Return a tracing that sends its spans to `exporter`, each at once unless `is_batched`."""
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - only where something is traced
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor  # noqa: PLC0415 - as above

    provider = TracerProvider(resource=build_resource(options), sampler=_build_sampler(options), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter) if is_batched else SimpleSpanProcessor(exporter))
    tracing = Tracing(
        tracer=provider.get_tracer("reasond", options.version),
        has_content=options.has_content,
        tells_models="models" in options.propagate_to,
        tells_tools="tools" in options.propagate_to,
    )
    return SpanSink(tracing=tracing, provider=provider)


class CarefulExporter:
    """An exporter whose failures only lose `what` it sends; they are logged at most once a minute."""

    def __init__(
        self,
        exporter: SpanExporter | MetricExporter,
        *,
        target: str,
        monotonic: Callable[[], float] = time.monotonic,
        what: str = "traces",
    ) -> None:
        self._exporter: Any = exporter
        self._what = "spans" if what == "traces" else what
        self._host = urlsplit(target).netloc.rpartition("@")[2] or "the receiver"
        self._monotonic = monotonic
        self._lost = 0
        self._told_at_s: float | None = None

    def export(self, spans: Sequence[ReadableSpan] | MetricsData) -> object:
        """Send `spans`, or the metrics of this moment."""
        result: object = None
        try:
            result = self._exporter.export(spans)
        except Exception:  # noqa: BLE001 - no error may reach the server
            _log.debug("the exporter raised", exc_info=True)
        if getattr(result, "name", "") != "SUCCESS":
            self._lost += len(spans) if isinstance(spans, list | tuple) else 1
            self._tell()
        return result

    def shutdown(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()

    def _tell(self) -> None:
        now_s = self._monotonic()
        if self._told_at_s is None or now_s - self._told_at_s >= _TELL_EVERY_S:
            facts = {"endpoint": self._host, f"lost_{self._what}": self._lost}
            _log.warning("%s could not be exported and are lost", self._what, extra=facts)
            self._told_at_s, self._lost = now_s, 0


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _exporter(options: OtlpOptions) -> SpanExporter | MetricExporter:
    for name in ("opentelemetry.exporter", "opentelemetry.sdk", "opentelemetry.util"):
        # They log every failure with text of the receiver or of the headers; `CarefulExporter` logs the failures.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    module, name = _EXPORTER_CLASSES[options.signal]
    exporter: Any = getattr(importlib.import_module(f"{_EXPORTERS[options.spoken][0]}.{module}"), name)
    chosen: dict[str, Any] = {}
    if options.spoken == _HTTP:
        # A provider of cloud credentials would make the session that posts.
        has_provider = options.read_variable("CREDENTIAL_PROVIDER", prefix="OTEL_PYTHON_EXPORTER_OTLP_HTTP")
        chosen["session"] = None if has_provider else _open_session()
    opened: SpanExporter | MetricExporter = exporter(endpoint=options.address, headers=_read_headers(options), **chosen)
    return opened


def _open_session() -> requests.Session:
    """Return a session that fails on redirects: the exporter does not follow a redirect but counts it as a success."""
    import requests  # noqa: PLC0415 - comes with the exporter

    def refuse(response: requests.Response, **_: object) -> None:
        if response.is_redirect:
            response.close()
            raise requests.TooManyRedirects("the receiver redirects")

    session = requests.Session()
    session.hooks["response"].append(refuse)
    return session


def _read_headers(options: OtlpOptions) -> dict[str, str]:
    """Return the headers from the environment, such as keys of the receiver.

    A malformed header is omitted and logged by its position, because its text may be a key.
    """
    from opentelemetry.util.re import parse_env_headers  # noqa: PLC0415 - as above

    headers: dict[str, str] = {}
    for place, text in enumerate(options.read_variable("HEADERS").split(","), 1):
        found = parse_env_headers(text, liberal=True)
        if text.strip() and not found:
            _log.warning("header %d of OTEL_EXPORTER_OTLP_HEADERS is left out: it is not name=value", place)
        headers.update(found)
    return headers


def build_resource(options: OtlpOptions) -> Any:  # noqa: ANN401 - of a package that may be missing
    """Return what tells of this server in everything that is sent."""
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - only where something is traced

    own = {"service.version": options.version, "service.instance.id": options.instance_id}
    given = f"{options.environ.get('OTEL_RESOURCE_ATTRIBUTES', '')},"
    if not options.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in given:
        own["service.name"] = "reasond"
    return Resource.create({name: value for name, value in own.items() if value and f"{name}=" not in given})


def _build_sampler(options: TracingOptions) -> Sampler | None:
    """Return the sampler that decides which traces are kept; None if OTEL_TRACES_SAMPLER decides."""
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased  # noqa: PLC0415 - as above

    if options.environ.get("OTEL_TRACES_SAMPLER"):
        return None
    ratio = TraceIdRatioBased(options.sample_ratio)
    if options.follows_callers:
        return ParentBased(root=ratio)
    return ParentBased(root=ratio, remote_parent_sampled=ratio, remote_parent_not_sampled=ratio)
