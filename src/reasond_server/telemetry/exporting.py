"""Where spans go: to an OTLP receiver over gRPC or HTTP, in batches, beside the server's work and never in its way."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from reasond_server.errors import SettingsError, show
from reasond_server.telemetry.spans import Tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import requests
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.sdk.trace.sampling import Sampler

ENDPOINT_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_HEADER_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
# They name who makes the session that spans are posted in, with credentials of a cloud.
_SESSION_VARIABLES: Final = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
)
_PROTOCOL_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_GRPC: Final = "grpc"
_HTTP: Final = "http/protobuf"
# What each protocol needs beside the SDK, and the extra that brings it.
_EXPORTERS: Final = {
    _GRPC: ("opentelemetry.exporter.otlp.proto.grpc", "otel"),
    _HTTP: ("opentelemetry.exporter.otlp.proto.http", "otel-http"),
}
_HTTP_PATH: Final = "/v1/traces"
_TELL_EVERY_S: Final = 60.0
_log = logging.getLogger("reasond.tracing")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingOptions:
    """What is traced and who is told; `propagate_to` holds "models" and "tools".

    `sample_ratio` of traces are kept; with `follows_callers` those of callers that say so, and no others of theirs.
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
        """Where spans are sent: as configured, or as OpenTelemetry's variables say; empty where nowhere."""
        if self.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return ""
        return self.endpoint or self._variable(ENDPOINT_VARIABLES)

    @property
    def spoken(self) -> str:
        """How the receiver is spoken to; it need not be anything that is known here."""
        return self.protocol or self._variable(_PROTOCOL_VARIABLES).lower() or _GRPC

    @property
    def address(self) -> str:
        """The address of the receiver, whole: over HTTP with the path, which OTLP fixes where only a base is given."""
        target = self.target if "://" in self.target else f"http://{self.target}"
        if self.spoken == _GRPC:
            return target
        if self.endpoint:
            return target if urlsplit(target).path.strip("/") else target.rstrip("/") + _HTTP_PATH
        is_whole = self.environ.get(ENDPOINT_VARIABLES[0], "").strip()
        return target if is_whole else target.rstrip("/") + _HTTP_PATH

    def _variable(self, names: Sequence[str]) -> str:
        """Return the first of these variables that says something."""
        return next(filter(None, (self.environ.get(name, "").strip() for name in names)), "")


class SpanSink:
    """The tracing of one process and its way out."""

    def __init__(self, *, tracing: Tracing, provider: TracerProvider) -> None:
        self.tracing = tracing
        self._provider = provider

    async def aclose(self, *, within_s: float) -> None:
        """Send what is left, for `within_s` seconds at most; what is not out by then is lost."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def end() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(done.set)

        # Not one of the loop's own threads: those are waited for, however long the receiver takes.
        threading.Thread(target=end, name="last spans", daemon=True).start()
        try:
            async with asyncio.timeout(within_s):
                await done.wait()
        except TimeoutError:
            _log.warning("the last spans could not be exported in time", extra={"within_s": within_s})


def sink_of(options: TracingOptions) -> SpanSink | None:
    """Return the tracing that `options` ask for; None where spans go nowhere, and then nothing is imported.

    Raises:
        SettingsError: as `require_receiver`.
    """
    if not options.target:
        return None
    require_receiver(options)
    wrong = _refusal(options)
    if wrong is None:
        return sink_to(CarefulExporter(_exporter(options), target=options.address), options)
    # The variables may be set for every program of a cluster.
    _log.warning("nothing is traced, though OTEL_EXPORTER_OTLP_ENDPOINT is set: %s", wrong.message)
    return None


def require_receiver(options: TracingOptions) -> None:
    """Refuse an endpoint of the configuration that cannot be spoken to; one of the environment is ignored instead.

    Raises:
        SettingsError: the packages are not installed, or the protocol is none that is spoken here.
    """
    wrong = _refusal(options) if options.endpoint else None
    if wrong is not None:
        raise wrong


def _refusal(options: TracingOptions) -> SettingsError | None:
    """Return why the receiver cannot be spoken to; None where it can."""
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


def sink_to(exporter: Any, options: TracingOptions, *, is_batched: bool = True) -> SpanSink:  # noqa: ANN401 - exporters differ
    """Return the tracing whose spans go to `exporter`, at once unless `is_batched`."""
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
    """An exporter whose failures cost spans and nothing else; they are told once a minute."""

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
        except Exception:  # noqa: BLE001 - whatever it is, it must not reach the server
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
        # They tell every failure, with text of the receiver or of the headers; `CarefulExporter` tells what matters.
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
    """Return a session in which a redirect is a failure: the exporter follows none, and takes each for a success."""
    import requests  # noqa: PLC0415 - comes with the exporter

    def refuse(response: requests.Response, **_: object) -> None:
        if response.is_redirect:
            response.close()
            raise requests.TooManyRedirects("the receiver of spans redirects")

    session = requests.Session()
    session.hooks["response"].append(refuse)
    return session


def _headers(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that the environment names, such as keys of the receiver.

    One that is malformed is left out and told by its place, because its text may be a key.
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
    """Return what decides which traces are kept; None leaves it to OTEL_TRACES_SAMPLER, where that is set."""
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased  # noqa: PLC0415 - as above

    if options.environ.get("OTEL_TRACES_SAMPLER"):
        return None
    ratio = TraceIdRatioBased(options.sample_ratio)
    if options.follows_callers:
        return ParentBased(root=ratio)
    return ParentBased(root=ratio, remote_parent_sampled=ratio, remote_parent_not_sampled=ratio)
