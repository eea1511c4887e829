"""Exports spans to an OTLP receiver over gRPC or HTTP, in batches, without delaying or breaking the server's work."""

from __future__ import annotations

import asyncio
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
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.sdk.trace.sampling import Sampler

ENDPOINT_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_HEADER_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
# These name a provider of cloud credentials, which would make the session that posts the spans.
_SESSION_VARIABLES: Final = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
)
_PROTOCOL_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_GRPC: Final = "grpc"
_HTTP: Final = "http/protobuf"
# The package that each protocol needs besides the SDK, and the extra that installs it.
_EXPORTERS: Final = {
    _GRPC: ("opentelemetry.exporter.otlp.proto.grpc", "otel"),
    _HTTP: ("opentelemetry.exporter.otlp.proto.http", "otel-http"),
}
_HTTP_PATH: Final = "/v1/traces"
_TELL_EVERY_S: Final = 60.0
_log = logging.getLogger("reasond.tracing")


@value
class TracingOptions:
    """Options of tracing; `propagate_to` may contain "models" and "tools", which then receive the trace context.

    `sample_ratio` is the share of traces that are kept. With `follows_callers` the sampling flag of a caller decides
    for the caller's traces.
    """

    endpoint: str = ""
    protocol: str = ""
    sample_ratio: float = 1.0
    follows_callers: bool = True
    has_content: bool = False
    propagate_to: Collection[str] = ()
    version: str = ""
    instance_id: str = ""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def target(self) -> str:
        """The endpoint from the configuration or from OpenTelemetry's variables; empty if spans are not sent."""
        if self.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return ""
        return self.endpoint or self._variable(ENDPOINT_VARIABLES)

    @property
    def spoken(self) -> str:
        """The configured protocol of the receiver; it may be one that is not supported."""
        return self.protocol or self._variable(_PROTOCOL_VARIABLES).lower() or _GRPC

    @property
    def address(self) -> str:
        """The full address of the receiver; over HTTP the path of OTLP is appended to a base address."""
        target = self.target if "://" in self.target else f"http://{self.target}"
        if self.spoken == _GRPC:
            return target
        if self.endpoint:
            return target if urlsplit(target).path.strip("/") else target.rstrip("/") + _HTTP_PATH
        is_whole = self.environ.get(ENDPOINT_VARIABLES[0], "").strip()
        return target if is_whole else target.rstrip("/") + _HTTP_PATH

    def _variable(self, names: Sequence[str]) -> str:
        """Return the first of these variables that is not empty."""
        return next(filter(None, (self.environ.get(name, "").strip() for name in names)), "")


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
    if not options.target:
        return None
    require_receiver(options)
    wrong = _refusal(options)
    if wrong is None:
        return open_sink(CarefulExporter(_exporter(options), target=options.address), options)
    # The variables may be set for every program of a cluster, so they must not stop the server.
    _log.warning("nothing is traced, though OTEL_EXPORTER_OTLP_ENDPOINT is set: %s", wrong.message)
    return None


def require_receiver(options: TracingOptions) -> None:
    """Refuse a configured endpoint that cannot be used; an endpoint from the environment is not checked here.

    Raises:
        SettingsError: the packages are not installed, or the protocol is not supported.
    """
    wrong = _refusal(options) if options.endpoint else None
    if wrong is not None:
        raise wrong


def _refusal(options: TracingOptions) -> SettingsError | None:
    """Return the error if the receiver cannot be used, else None."""
    where = f"[tracing] endpoint is {show(options.endpoint)}, but " if options.endpoint else ""
    if options.spoken not in _EXPORTERS:
        return SettingsError(
            f"{where}OTEL_EXPORTER_OTLP_PROTOCOL is {show(options.spoken)}, which is not spoken here",
            remedy='Set [tracing] protocol to "grpc" or "http/protobuf".',
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

    provider = TracerProvider(resource=_resource(options), sampler=_sampler(options), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter) if is_batched else SimpleSpanProcessor(exporter))
    tracing = Tracing(
        tracer=provider.get_tracer("reasond", options.version),
        has_content=options.has_content,
        tells_models="models" in options.propagate_to,
        tells_tools="tools" in options.propagate_to,
    )
    return SpanSink(tracing=tracing, provider=provider)


class CarefulExporter:
    """An exporter whose failures only lose spans; they are logged at most once a minute."""

    def __init__(self, exporter: SpanExporter, *, target: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._exporter = exporter
        self._host = urlsplit(target).netloc.rpartition("@")[2] or "the receiver"
        self._monotonic = monotonic
        self._lost = 0
        self._told_at_s: float | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> object:
        """Send `spans`."""
        result: object = None
        try:
            result = self._exporter.export(spans)
        except Exception:  # noqa: BLE001 - no error may reach the server
            _log.debug("the exporter raised", exc_info=True)
        if getattr(result, "name", "") != "SUCCESS":
            self._lost += len(spans)
            self._tell()
        return result

    def shutdown(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()

    def _tell(self) -> None:
        now_s = self._monotonic()
        if self._told_at_s is None or now_s - self._told_at_s >= _TELL_EVERY_S:
            facts = {"endpoint": self._host, "lost_spans": self._lost}
            _log.warning("spans could not be exported and are lost", extra=facts)
            self._told_at_s, self._lost = now_s, 0


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _exporter(options: TracingOptions) -> SpanExporter:
    for name in ("opentelemetry.exporter", "opentelemetry.sdk", "opentelemetry.util"):
        # They log every failure with text of the receiver or of the headers; `CarefulExporter` logs the failures.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    headers = _headers(options.environ)
    if options.spoken == _HTTP:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - as above
            OTLPSpanExporter as HttpSpanExporter,
        )

        session = None if any(map(options.environ.get, _SESSION_VARIABLES)) else _session()
        return HttpSpanExporter(endpoint=options.address, headers=headers, session=session)
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - as above

    return OTLPSpanExporter(endpoint=options.address, headers=headers)


def _session() -> requests.Session:
    """Return a session that fails on redirects: the exporter does not follow a redirect but counts it as a success."""
    import requests  # noqa: PLC0415 - comes with the exporter

    def refuse(response: requests.Response, **_: object) -> None:
        if response.is_redirect:
            response.close()
            raise requests.TooManyRedirects("the receiver of spans redirects")

    session = requests.Session()
    session.hooks["response"].append(refuse)
    return session


def _headers(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the headers from the environment, such as keys of the receiver.

    A malformed header is omitted and logged by its position, because its text may be a key.
    """
    from opentelemetry.util.re import parse_env_headers  # noqa: PLC0415 - as above

    variable = next(filter(environ.get, _HEADER_VARIABLES), "")
    headers: dict[str, str] = {}
    for place, text in enumerate(environ.get(variable, "").split(","), 1):
        found = parse_env_headers(text, liberal=True)
        if text.strip() and not found:
            _log.warning("header %d of %s is left out: it is not name=value", place, variable)
        headers.update(found)
    return headers


def _resource(options: TracingOptions) -> Any:  # noqa: ANN401 - of a package that may be missing
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - only where something is traced

    own = {"service.version": options.version, "service.instance.id": options.instance_id}
    given = f"{options.environ.get('OTEL_RESOURCE_ATTRIBUTES', '')},"
    if not options.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in given:
        own["service.name"] = "reasond"
    return Resource.create({name: value for name, value in own.items() if value and f"{name}=" not in given})


def _sampler(options: TracingOptions) -> Sampler | None:
    """Return the sampler that decides which traces are kept; None if OTEL_TRACES_SAMPLER decides."""
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased  # noqa: PLC0415 - as above

    if options.environ.get("OTEL_TRACES_SAMPLER"):
        return None
    ratio = TraceIdRatioBased(options.sample_ratio)
    if options.follows_callers:
        return ParentBased(root=ratio)
    return ParentBased(root=ratio, remote_parent_sampled=ratio, remote_parent_not_sampled=ratio)
