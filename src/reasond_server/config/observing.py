"""The settings of [logs] and [tracing]: what an operator sees of the server, and who else is told."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from reasond_server.config.sections import Section

_MAX_ENDPOINT = 2048


def _endpoint(value: str) -> str:
    """Return `value` if it is empty, or an address without credentials in it."""
    host = value.partition("://")[2].partition("/")[0]
    if value and (not value.startswith(("http://", "https://")) or not host or any(one.isspace() for one in value)):
        message = 'must be an address such as "http://127.0.0.1:4317"'
        raise ValueError(message)
    if "@" in value:
        message = "must not hold credentials: set OTEL_EXPORTER_OTLP_HEADERS in the environment"
        raise ValueError(message)
    return value


Endpoint = Annotated[str, AfterValidator(_endpoint)]


class LogsSettings(Section):
    """What the server writes to stderr about itself."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description='The least important lines that are written; "debug" also has the calls of health and reflection.',
    )
    format: Literal["auto", "json", "human"] = Field(
        default="auto",
        description='One JSON object per line, or text for a person; "auto" is human on a terminal and under --dev.',
    )


class TracingSettings(Section):
    """Spans over OTLP; needs the extra `otel` or `otel-http`, and is off while there is no endpoint."""

    endpoint: Endpoint = Field(
        default="",
        max_length=_MAX_ENDPOINT,
        description='Where an OTLP receiver is, such as "http://127.0.0.1:4317"; empty: as '
        "OTEL_EXPORTER_OTLP_ENDPOINT says, and off without it. Keys for it belong into OTEL_EXPORTER_OTLP_HEADERS.",
    )
    protocol: Literal["", "grpc", "http/protobuf"] = Field(
        default="",
        description='How the receiver is spoken to: "grpc" or "http/protobuf" (needs the extra otel-http; an endpoint '
        "without a path gets /v1/traces); empty: as OTEL_EXPORTER_OTLP_PROTOCOL says, and grpc without it.",
    )
    sample_ratio: float = Field(
        default=1.0, ge=0, le=1, description="Share of the traces that are kept, decided by their id."
    )
    follow_callers: bool = Field(
        default=True,
        description="Whether the traceparent of a caller whose token was accepted decides if its trace is kept; else "
        "sample_ratio does for all.",
    )
    content: bool = Field(
        default=False,
        description="Whether spans hold what was asked and written: messages, tool arguments and results, each cut to "
        "2,048 characters.",
    )
    propagate_to: tuple[Literal["models", "hosted_models", "tools"], ...] = Field(
        default=("models",),
        strict=False,
        max_length=3,
        description="Who is told where in the trace a call stands: your own model servers (models), known providers "
        "(hosted_models), hosts of http_get and MCP servers (tools).",
    )
