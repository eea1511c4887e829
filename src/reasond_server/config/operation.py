"""The sections for the operation of a server: [store], [limits], [logs], [metrics] and [tracing]."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, SecretStr, StringConstraints

from reasond_server.config.section import Address, Section
from reasond_server.types.policy_sections import StrategyName, freeze

_KIBI: Final = 1024
_MEBI: Final = 1024 * _KIBI
_DAY_S: Final = 86_400
_LONGEST_RETENTION_S: Final = 3650 * _DAY_S
_URL: Final = re.compile(r"(memory:|sqlite:///.+|postgres(ql)?://.*)?", re.DOTALL)

TenantName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Retention = Annotated[float, Field(ge=1, le=_LONGEST_RETENTION_S)]
_MOST_PER_CALLER = 1_000_000_000


def _store_url(value: str) -> str:
    """Return `value` if its form is supported."""
    if not _URL.fullmatch(value):
        message = 'must be "memory:", "sqlite:///path", "postgresql://user:password@host/database" or empty'
        raise ValueError(message)
    return value


RetentionTable = Annotated[Mapping[TenantName, Retention], AfterValidator(freeze)]


class StoreSettings(Section):
    """Where executions and agents are stored, and for how long."""

    url: Annotated[str, AfterValidator(_store_url)] = Field(
        default="",
        max_length=4096,
        description='Where executions and agents are kept: "memory:" (they end with the process), '
        '"sqlite:///path" (one server) or "postgresql://user:password@host/database" (any number of servers, needs '
        "the extra postgres). Empty: a SQLite file in data_dir, and with --dev in memory. A password is better given "
        "by REASOND__STORE__URL.",
    )
    data_dir: str = Field(
        default="",
        max_length=4096,
        description="Folder of the SQLite file reasond.db, on a local disk; empty: reasond in $XDG_STATE_HOME, else "
        "in ~/.local/state.",
    )
    retention_s: float = Field(
        default=3600.0,
        ge=1,
        le=_LONGEST_RETENTION_S,
        description="Seconds that an execution is kept after its end.",
    )
    record_content: bool = Field(
        default=True,
        description="Whether questions, materials, steps and answers are stored; false: only what is no content, so "
        "that a run can be resumed while it lives, but neither read afterwards nor recovered.",
    )
    record_prompts: bool = Field(
        default=False,
        description="Whether the prompts and replies of model calls are stored with an execution, as long as it is "
        "kept: up to 65,536 characters of a call and 1,048,576 of an execution. Never without record_content. On in "
        "the demo.",
    )
    lease_s: float = Field(
        default=15.0,
        ge=1,
        le=600,
        description="Seconds after which a server that gives no sign of life loses its runs to another one.",
    )
    reattach_s: float = Field(
        default=30.0,
        ge=0,
        le=3600,
        description="Seconds that a recovered run waits for somebody to follow it again, unless it is kept running; "
        "also one whose client left a stream of /v1/responses, and one that a unary call with a request id left if its "
        "calls are not kept.",
    )
    synchronous: Literal["normal", "full"] = Field(
        default="normal",
        description="When SQLite waits for the disk: normal survives a crash of the process, full (slower) also the "
        "loss of power.",
    )
    max_file_bytes: int = Field(
        default=0,
        ge=0,
        le=1024 * 1024 * _MEBI,
        description="Largest size of the SQLite file, or of the executions that PostgreSQL holds, "
        "above 0; 0 sets no bound but the disk.",
    )
    max_bytes: int = Field(
        default=64 * _MEBI,
        ge=64 * _KIBI,
        le=64 * 1024 * _MEBI,
        description="Most bytes that executions take in memory; a file and PostgreSQL have max_file_bytes.",
    )
    tenant_share: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Largest share that the open executions of one tenant may take of what those of others leave of "
        "max_bytes or max_file_bytes. 1 sets no bound.",
    )
    tenant_waiting: int = Field(
        default=10_000,
        ge=0,
        le=1_000_000,
        description="Most turns of one tenant that wait for their client, in any store; 0 sets no bound.",
    )
    tenant_bytes: int = Field(
        default=0,
        ge=0,
        le=1024 * 1024 * _MEBI,
        description="Most bytes in the open executions of one tenant, in any store; 0 sets no bound but tenant_share.",
    )
    clock_hold_s: float = Field(
        default=3600.0,
        ge=0,
        le=_LONGEST_RETENTION_S,
        description="Seconds that nothing expires by a clock that jumped by more than a minute, or is that far off the "
        "time that the store had last; after that it counts. 0: at once. PostgreSQL tells the time itself.",
    )
    tenant_retention_s: RetentionTable = Field(
        default_factory=lambda: MappingProxyType({}),
        max_length=10_000,
        description="retention_s of single tenants, by their name in the token.",
    )


class LimitsSettings(Section):
    """The limits of each caller; 0 means no limit."""

    requests_per_minute: int = Field(
        default=0,
        ge=0,
        le=_MOST_PER_CALLER,
        description="Executions that a caller may start in a minute, by weight; 0 is any.",
    )
    requests_per_hour: int = Field(
        default=0,
        ge=0,
        le=_MOST_PER_CALLER,
        description="Executions that a caller may start in an hour, by weight; 0 is any.",
    )
    concurrent_requests: int = Field(
        default=0, ge=0, le=_MOST_PER_CALLER, description="Executions of a caller at once; 0 is any number."
    )
    tokens_per_minute: int = Field(
        default=0, ge=0, le=_MOST_PER_CALLER, description="Tokens that a caller may spend in a minute; 0 is any number."
    )
    tokens_per_day: int = Field(
        default=0, ge=0, le=_MOST_PER_CALLER, description="Tokens that a caller may spend in a day; 0 is any number."
    )
    by: Literal["subject", "tenant"] = Field(
        default="subject", description="Who is one caller: each subject, or a tenant with all its subjects."
    )
    storage: Literal["memory", "redis"] = Field(
        default="memory", description="Where is counted: in each server for itself, or in Redis for all together."
    )
    redis_url: SecretStr = Field(
        default=SecretStr(""), strict=False, description='Address of Redis, such as "redis://127.0.0.1:6379/0".'
    )
    replicas: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="Servers that share the limits: each keeps its part while Redis is out of reach.",
    )
    on_backend_failure: Literal["local", "closed", "open"] = Field(
        default="local",
        description="While Redis is out of reach: keep a share of the limits, refuse everything, or refuse nothing.",
    )
    weights: Annotated[
        Mapping[StrategyName, Annotated[int, Field(ge=1, le=_MOST_PER_CALLER)]], AfterValidator(freeze)
    ] = Field(
        default_factory=lambda: MappingProxyType({}),
        description="What one execution of a strategy counts for; 1 where none is given.",
    )


_MAX_ENDPOINT = 2048


def _check_endpoint(value: str) -> str:
    """Return `value` if it is empty, or an address without credentials."""
    host = value.partition("://")[2].partition("/")[0]
    if value and (not value.startswith(("http://", "https://")) or not host or any(one.isspace() for one in value)):
        message = 'must be an address such as "http://127.0.0.1:4317"'
        raise ValueError(message)
    if "@" in value:
        message = "must not hold credentials: set OTEL_EXPORTER_OTLP_HEADERS in the environment"
        raise ValueError(message)
    return value


Endpoint = Annotated[str, AfterValidator(_check_endpoint)]


class LogsSettings(Section):
    """The server's own log on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description='The least important lines that are written; "debug" also has the calls of health and reflection.',
    )
    format: Literal["auto", "json", "human"] = Field(
        default="auto",
        description='One JSON object per line, or text for a person; "auto" is human on a terminal and under --dev.',
    )


class TracingSettings(Section):
    """Spans over OTLP; needs the extra `otel` or `otel-http`, and is off without an endpoint."""

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


class MetricsSettings(Section):
    """Where Prometheus reads the metrics, or who is sent them; nothing is counted if nobody gets them."""

    address: Address = Field(
        default="",
        description="Where /metrics is served apart from everything else, host:port, such as 127.0.0.1:9464; port 0 "
        "picks a free one; empty: nowhere. On a loopback address nobody needs a token.",
    )
    on_http: bool = Field(
        default=True,
        description="Whether server.http_address serves /metrics as well, to tokens with the permission metrics:read.",
    )
    endpoint: Endpoint = Field(
        default="",
        max_length=_MAX_ENDPOINT,
        description="Where an OTLP receiver takes metrics, like [tracing] endpoint; empty: as "
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT says.",
    )
    protocol: Literal["", "grpc", "http/protobuf"] = Field(
        default="", description="How it is spoken to, like [tracing] protocol."
    )
    allow_anonymous: bool = Field(
        default=False,
        description="Whether metrics.address needs no token where other machines can reach it; for networks that let "
        "only Prometheus through.",
    )
