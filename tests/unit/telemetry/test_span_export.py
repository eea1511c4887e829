"""Where spans are sent, which spans are kept, and what a failing receiver costs."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace.export import SpanExportResult

from reasond_server.errors.base import SettingsError
from reasond_server.telemetry.propagation import TraceContext
from reasond_server.telemetry.span_export import CarefulExporter, TracingOptions, build_sink, open_sink
from tests.spans import Spans

if TYPE_CHECKING:
    from collections.abc import Sequence

SAMPLED = TraceContext(trace_id="f" * 32, span_id="b" * 16, is_sampled=True)
UNSAMPLED = TraceContext(trace_id="0" * 31 + "1", span_id="b" * 16, is_sampled=False)


class Exporter:
    """Gives the answers of the test in order."""

    def __init__(self, *answers: object) -> None:
        self._answers = list(answers)
        self.is_closed = False

    def export(self, _spans: Sequence[Any]) -> object:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def shutdown(self) -> None:
        self.is_closed = True


def list_kept(caller: TraceContext | None, **options: Any) -> bool:
    spans = Spans(options=TracingOptions(**options))
    span = spans.sink.tracing.serve("s", {}, caller=caller)
    span.set({"a": 1})
    span.fail("X")
    span.rename("t")
    span.link(SAMPLED)
    span.end()
    return bool(spans.all)


def test_without_an_endpoint_nothing_is_traced() -> None:
    assert build_sink(TracingOptions()) is None
    off = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317", "OTEL_SDK_DISABLED": "True"}
    assert build_sink(TracingOptions(environ=off)) is None


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"])
async def test_an_endpoint_of_the_environment_turns_it_on(name: str) -> None:
    sink = build_sink(TracingOptions(environ={name: "127.0.0.1:9"}))
    assert sink is not None
    await sink.aclose(within_s=120)


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ({"endpoint": "http://h:4317"}, "http://h:4317"),
        ({"endpoint": "http://h:4318", "protocol": "http/protobuf"}, "http://h:4318/v1/traces"),
        ({"endpoint": "http://h:4318/", "protocol": "http/protobuf"}, "http://h:4318/v1/traces"),
        ({"endpoint": "https://h/otlp/v1/traces", "protocol": "http/protobuf"}, "https://h/otlp/v1/traces"),
        (
            {"endpoint": "http://h", "protocol": "grpc", "environ": {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}},
            "http://h",
        ),
        (
            {"environ": {"OTEL_EXPORTER_OTLP_ENDPOINT": "h/base/", "OTEL_EXPORTER_OTLP_PROTOCOL": "HTTP/protobuf"}},
            "http://h/base/v1/traces",
        ),
        (
            {
                "environ": {
                    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://no",
                    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h/own",
                    "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
                }
            },
            "http://h/own",
        ),
    ],
)
def test_the_address_of_a_receiver_over_http_has_the_path_that_the_protocol_fixes(
    options: dict[str, Any], address: str
) -> None:
    assert TracingOptions(**options).address == address


def test_a_protocol_that_is_not_spoken_is_refused_or_told(caplog: pytest.LogCaptureFixture) -> None:
    environ = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    assert build_sink(TracingOptions(environ=environ)) is None
    assert "nothing is traced" in caplog.text
    assert "'http/json', which is not spoken here" in caplog.text
    with pytest.raises(SettingsError, match=r"\[tracing\] endpoint is 'http://h', but .*'http/json'") as refused:
        build_sink(TracingOptions(endpoint="http://h", environ=environ))
    assert "http/protobuf" in refused.value.remedy
    assert build_sink(TracingOptions(endpoint="", protocol="grpc")) is None


@pytest.mark.parametrize(("protocol", "extra"), [("grpc", "otel"), ("http/protobuf", "otel-http")])
def test_the_extra_that_is_missing_is_named(protocol: str, extra: str) -> None:
    found = run_without_the_package(
        "from reasond_server.telemetry.span_export import *\n"
        f"try: build_sink(TracingOptions(endpoint='http://x', protocol={protocol!r}))\n"
        "except SettingsError as error: print(error.remedy)"
    )
    assert f"reasond-server[{extra}]" in found.stdout


async def test_a_malformed_header_is_told_by_its_place_and_the_others_are_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        headers = {"OTEL_EXPORTER_OTLP_HEADERS": "x-team=a%20b, x-license: k4n4ry,,x-more=c=d"}
        sink = build_sink(TracingOptions(endpoint="http://127.0.0.1:9", environ=headers))
    assert sink is not None
    processor: Any = sink._provider._active_span_processor._span_processors[0]
    sent = processor.span_exporter._exporter._headers
    assert {("x-team", "a b"), ("x-more", "c=d")} <= set(sent)
    assert [line for line in caplog.messages if "header" in line.lower()] == [
        "header 2 of OTEL_EXPORTER_OTLP_HEADERS is left out: it is not name=value"
    ]
    assert "k4n4ry" not in caplog.text
    await sink.aclose(within_s=120)


async def test_a_receiver_that_redirects_gets_the_spans_and_the_headers_nowhere_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    came: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            came.append((self.path, self.headers["x-key"]))
            self.send_response(307)
            self.send_header("location", "/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        sink = build_sink(
            TracingOptions(
                endpoint=f"http://127.0.0.1:{server.server_port}",
                protocol="http/protobuf",
                environ={"OTEL_EXPORTER_OTLP_HEADERS": "x-key=k4n4ry"},
            )
        )
        assert sink is not None
        sink.tracing.serve("asked", {}, caller=None).end()
        await sink.aclose(within_s=120)
        server.shutdown()
        thread.join()
    assert came == [("/v1/traces", "k4n4ry")]
    assert "spans could not be exported and are lost" in caplog.text


def run_without_the_package(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a process that cannot import opentelemetry."""
    hidden = "import sys; sys.modules['opentelemetry'] = None\n"
    return subprocess.run(
        [sys.executable, "-c", hidden + code], check=False, timeout=180, capture_output=True, text=True
    )


def test_without_the_package_a_configured_endpoint_is_refused_and_one_of_the_cluster_is_told() -> None:
    found = run_without_the_package(
        "from reasond_server.telemetry.span_export import *\n"
        "assert build_sink(TracingOptions()) is None\n"
        "assert build_sink(TracingOptions(environ={'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://x'})) is None\n"
        "build_sink(TracingOptions(endpoint='http://x'))"
    )
    assert "nothing is traced" in found.stderr
    assert "SettingsError: [tracing] endpoint is 'http://x', but opentelemetry.sdk is not installed" in found.stderr
    assert "Install reasond-server[otel]" in SettingsError("a", remedy="Install reasond-server[otel]").full_message


@pytest.mark.slow
def test_a_server_that_traces_nothing_imports_nothing_of_it() -> None:
    found = run_without_the_package(
        "import asyncio\n"
        "from reasond_server.testing import running_server\n"
        "async def main():\n"
        "    async with running_server(): pass\n"
        "asyncio.run(main())\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry.')]"
    )
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    ("caller", "options", "is_kept"),
    [
        (None, {}, True),
        (None, {"sample_ratio": 0.0}, False),
        (SAMPLED, {"sample_ratio": 0.0}, True),
        (UNSAMPLED, {}, False),
        (SAMPLED, {"sample_ratio": 0.0, "follows_callers": False}, False),
        (UNSAMPLED, {"follows_callers": False}, True),
    ],
)
def test_a_trace_is_kept_as_the_caller_or_the_ratio_says(
    caller: TraceContext | None, options: dict[str, Any], *, is_kept: bool
) -> None:
    assert list_kept(caller, **options) is is_kept


def test_the_sampler_of_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    assert not list_kept(None, environ={"OTEL_TRACES_SAMPLER": "always_off"})


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, "reasond"),
        ({"OTEL_SERVICE_NAME": "mine"}, "mine"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=theirs,service.version=9"}, "theirs"),
    ],
)
def test_the_resource_is_named_by_the_environment_or_by_us(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], name: str
) -> None:
    for key, value in environ.items():
        monkeypatch.setenv(key, value)
    spans = Spans(options=TracingOptions(environ=environ, version="1.2", instance_id="i"))
    spans.sink.tracing.serve("s", {}, caller=None).end()
    attributes = spans.one("s").resource.attributes
    assert (attributes["service.name"], attributes["service.instance.id"]) == (name, "i")
    assert attributes["service.version"] == ("9" if name == "theirs" else "1.2")


def test_failures_are_told_once_a_minute_with_what_was_lost(caplog: pytest.LogCaptureFixture) -> None:
    times = iter([0.0, 59.0, 60.0])
    answers = [SpanExportResult.FAILURE, ValueError("token of the receiver"), SpanExportResult.SUCCESS]
    inner: Any = Exporter(*answers, SpanExportResult.FAILURE)
    exporter = CarefulExporter(inner, target="http://user:pass@host:4317", monotonic=lambda: next(times))
    spans: Any = [object(), object()]
    with caplog.at_level(logging.INFO):
        for _ in range(4):
            exporter.export(spans)
    told = [vars(record) for record in caplog.records]
    assert [(one["lost_spans"], one["endpoint"]) for one in told] == [(2, "host:4317"), (4, "host:4317")]
    assert "receiver" not in caplog.text
    exporter.shutdown()
    assert inner.is_closed


async def test_an_end_that_takes_too_long_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    class Stuck(Exporter):
        """Never returns from `shutdown`."""

        def shutdown(self) -> None:
            release.wait(180)

    sink = open_sink(Stuck(), TracingOptions(), is_batched=False)
    await asyncio.wait_for(sink.aclose(within_s=0.05), 120)
    release.set()
    assert "could not be exported in time" in caplog.text
