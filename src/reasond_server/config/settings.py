"""Every key of config.toml with its default, range and meaning; the guide and the example are generated from it.

Keys that end in `_s` are in seconds, `_ms` in milliseconds, `_bytes` in bytes. Values have exactly the declared type
(but an integer is accepted for a float).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from reasond_server.base.plugins import list_built_in
from reasond_server.config.auth import AuthSettings
from reasond_server.config.llm import LlmSettings
from reasond_server.config.operation import (
    LimitsSettings,
    LogsSettings,
    MetricsSettings,
    StoreSettings,
    TracingSettings,
)
from reasond_server.config.repairs import EngineSettings, RepairSettings
from reasond_server.config.section import Address, BaseUrl, Section
from reasond_server.config.tools import Host, ToolsSettings
from reasond_server.protocols.model_catalogue import ModelPreset
from reasond_server.turns.policy import TurnPolicy
from reasond_server.types.policy_sections import ScalarValue, StrategyName, freeze
from reasond_server.types.tasks import Budget, TaskForm
from reasond_server.webhooks.webhook_policy import WebhookPolicy


def _require_free(name: str) -> str:
    """Return `name` unless it is the server's own."""
    if name == "reasond":
        message = "is the server's own model; take another name"
        raise ValueError(message)
    return name


ModelName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$", max_length=64), AfterValidator(_require_free)
]


ChatModels = Annotated[Mapping[ModelName, ModelPreset], AfterValidator(freeze)]


class OpenAiSettings(Section):
    """The interface at /v1 of the HTTP listener, for clients of OpenAI and Anthropic."""

    enabled: bool = Field(
        default=True,
        description="Whether /v1/chat/completions, /v1/responses, /v1/messages and /v1/models are served on "
        "http_address.",
    )
    max_pdf_files: int = Field(
        default=4,
        ge=0,
        le=100,
        description="Most PDF files in a request at /v1 whose text is read, where the extra documents is installed; "
        "0: none.",
    )
    models: ChatModels = Field(
        default_factory=lambda: MappingProxyType({}),
        max_length=256,
        description="Models by name beside reasond and reasond/<strategy>, each a table of strategy, config, budget, "
        "agent, include_deltas and server_tools; see docs/guides/openai-clients.md.",
    )


class A2aSettings(Section):
    """A2A: the tasks of other agents."""

    enabled: bool = Field(
        default=False,
        description="Whether A2A 1.0 is served at /a2a/ of http_address and as lf.a2a.v1.A2AService of gRPC; needs "
        "reasond-server[a2a].",
    )
    max_elapsed_s: float = Field(
        default=3_600.0,
        ge=0.001,
        le=86_400,
        description="Most seconds of a task whose message names no budget.",
    )
    max_total_tokens: int = Field(
        default=0,
        ge=0,
        le=2**53 - 1,
        description="Most tokens of such a task; 0: any.",
    )
    push_hosts: tuple[Host, ...] = Field(
        default=(),
        strict=False,
        max_length=1000,
        description='Hosts that clients may have told of their tasks, such as "*.example.com"; empty: none. Needs a '
        "database.",
    )
    push_allow_private: bool = Field(
        default=False,
        description="Whether push_hosts may have private addresses, and URLs of http.",
    )

    @property
    def has_push(self) -> bool:
        """Whether there are push notifications."""
        return self.enabled and bool(self.push_hosts)

    @property
    def budget(self) -> Budget:
        """The bounds on a task whose message names none."""
        return Budget(max_elapsed_s=self.max_elapsed_s, max_total_tokens=self.max_total_tokens or None)


class McpSettings(Section):
    """The interface at /mcp of the HTTP listener, for hosts of the Model Context Protocol."""

    enabled: bool = Field(
        default=True, description="Whether /mcp is served on http_address, as tools. Needs the extra mcp."
    )


_KIBI = 1024
_MEBI = 1024 * _KIBI
_DAY_S = 86_400


StrategyKey = Annotated[str, StringConstraints(pattern=r"^(default|max_allowed)_[a-z_][a-z0-9_]*$", max_length=128)]
StrategyTable = Annotated[Mapping[StrategyKey, ScalarValue], AfterValidator(freeze)]


class ServerSettings(Section):
    """Addresses, shutdown and limits for clients."""

    grpc_address: Address = Field(
        default="127.0.0.1:50051",
        description="Where gRPC listens, host:port; port 0 picks a free one; empty turns TCP off where "
        "grpc_unix_socket is set.",
    )
    http_address: Address = Field(
        default="127.0.0.1:8001",
        description="Where HTTP (JSON-RPC, agent card, health) listens, host:port; port 0 picks a free one; "
        "empty turns HTTP off.",
    )
    cors_origins: tuple[Annotated[str, StringConstraints(pattern=r"^https?://[^\s/?#*]+$", max_length=256)], ...] = (
        Field(
            default=(),
            strict=False,
            max_length=100,
            description="Origins of pages in browsers that may call HTTP, such as https://app.example; "
            "their calls need a token as all others do.",
        )
    )
    console: bool = Field(
        default=True,
        description="Whether HTTP serves /console: pages for a browser, which show data for a token only.",
    )
    grpc_unix_socket: str = Field(
        default="", max_length=100, description="Path of a Unix socket on which gRPC listens as well; empty: none."
    )
    admin_address: Address = Field(
        default="",
        description="Where channelz listens, host:port; whoever reaches it sees all connections; empty turns it off.",
    )
    public_grpc_url: BaseUrl = Field(
        default="",
        max_length=2048,
        description="Where others reach gRPC, as the agent card shall say, such as https://reason.example.com:443; "
        "empty: where it listens.",
    )
    public_http_url: BaseUrl = Field(
        default="",
        max_length=2048,
        description="Where others reach HTTP, as the agent card shall say, without the path of JSON-RPC; empty: where "
        "it listens.",
    )
    tls: Literal["off", "files", "terminated-upstream"] = Field(
        default="off",
        description='How connections are encrypted: "off" (loopback only), "files" (with the certificate below) or '
        '"terminated-upstream" (a proxy in front ends TLS, and only the proxy reaches this server).',
    )
    tls_certificate: str = Field(
        default="", description="PEM file of the certificate chain; read again when it changes."
    )
    tls_private_key: str = Field(
        default="", description="PEM file of the certificate's private key; read again likewise."
    )
    tls_client_ca: str = Field(
        default="",
        description="PEM file of authorities; if set, clients must present a certificate that one of them signed.",
    )
    reflection: bool = Field(default=True, description="Whether gRPC reflection tells callers what can be called.")
    load_reports: Literal["off", "calls", "streams", "both"] = Field(
        default="off",
        description="Where gRPC clients learn the load (ORCA): in trailers of calls, or in streams, without a token.",
    )
    load_report_interval_s: float = Field(
        default=1.0,
        ge=0.1,
        le=60,
        description="Seconds between measurements of the load, and reports.",
    )
    workers: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Processes that serve together, started and replaced by the first; more than 1 need PostgreSQL.",
    )
    so_reuseport: bool = Field(
        default=False, description="Whether several processes may listen on the same port (SO_REUSEPORT)."
    )
    drain_delay_s: float = Field(
        default=5.0,
        ge=0,
        le=300,
        description="Seconds from the signal to stop until the listeners close, so that load balancers notice first; "
        "with --dev none unless it is set.",
    )
    drain_grace_s: float = Field(
        default=25.0,
        ge=0,
        le=3600,
        description="Seconds that running calls have to end, after drain_delay_s, before they are cut.",
    )
    max_receive_bytes: int = Field(
        default=4 * _MEBI, ge=64 * _KIBI, le=64 * _MEBI, description="Largest gRPC message that is accepted, in bytes."
    )
    max_send_bytes: int = Field(
        default=4 * _MEBI, ge=64 * _KIBI, le=64 * _MEBI, description="Largest gRPC message that is sent, in bytes."
    )
    max_http_body_bytes: int = Field(
        default=8 * _MEBI, ge=64 * _KIBI, le=64 * _MEBI, description="Largest HTTP body that is accepted, in bytes."
    )
    max_history_bytes: int = Field(
        default=4 * _MEBI,
        ge=64 * _KIBI,
        le=64 * _MEBI,
        description="Most bytes of the earlier messages that a task or a turn may bring, images aside.",
    )
    max_history_messages: int = Field(
        default=10_000, ge=100, le=1_000_000, description="Most earlier messages that a task or a turn may bring."
    )
    max_metadata_bytes: int = Field(
        default=8192, ge=1024, le=64 * _KIBI, description="Most bytes of gRPC metadata that are accepted with one call."
    )
    max_concurrent_streams: int = Field(
        default=256,
        ge=1,
        le=100_000,
        description="Most calls at once on one connection; further ones wait for a place or are refused.",
    )
    max_grpc_connections: int = Field(
        default=1000, ge=1, le=100_000, description="Most gRPC connections at once; further ones are closed at once."
    )
    max_http_connections: int = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="Most HTTP connections at once; one more closes the oldest without a valid token, and calls beyond "
        "that are refused with OVERLOADED.",
    )
    max_pending_calls: int = Field(
        default=20_000,
        ge=100,
        le=1_000_000,
        description="Most gRPC calls that are begun and wait to be looked at; further ones end as CANCELLED.",
    )
    keepalive_time_s: float = Field(
        default=60.0, ge=1, le=7200, description="Seconds of silence after which a connection is probed."
    )
    keepalive_timeout_s: float = Field(
        default=20.0,
        ge=1,
        le=600,
        description="Seconds without an answer to a probe after which a connection is closed.",
    )
    min_ping_interval_s: float = Field(
        default=10.0,
        ge=0.1,
        le=3600,
        description="Fewest seconds between a client's probes; more eager clients are cut off.",
    )
    max_connection_age_s: float = Field(
        default=1800.0, ge=1, le=604_800, description="Seconds after which a connection is asked to reconnect."
    )
    max_connection_age_grace_s: float = Field(
        default=600.0, ge=0, le=_DAY_S, description="Seconds that calls on such a connection have to end."
    )
    heartbeat_interval_s: float = Field(
        default=10.0, ge=0.05, le=300, description="Seconds of silence on a stream after which a heartbeat is sent."
    )
    delta_flush_ms: int = Field(
        default=30,
        ge=0,
        le=1000,
        description="Most milliseconds that text waits to be joined with what follows; not after silence. 0: no wait.",
    )
    write_timeout_s: float = Field(
        default=30.0,
        ge=0.1,
        le=3600,
        description="Seconds that a client may take nothing of a stream before the stream is ended (SLOW_CONSUMER); "
        "it can be resumed.",
    )
    max_jsonrpc_batch: int = Field(default=20, ge=1, le=1000, description="Most calls in one JSON-RPC batch.")


class PerformanceSettings(Section):
    """The concurrency of the core."""

    max_concurrent_requests: int = Field(
        default=100, ge=1, le=100_000, description="Most executions at once; more of them wait."
    )
    max_queued_requests: int = Field(
        default=100,
        ge=0,
        le=100_000,
        description="Most executions that wait for a place; more are refused with OVERLOADED. 0: none waits.",
    )
    queue_timeout_ms: int = Field(
        default=5000,
        ge=1,
        le=600_000,
        description="Milliseconds that an execution waits for a place at most, its caller's deadline aside.",
    )
    strategy_selection_timeout_ms: int = Field(
        default=50,
        ge=1,
        le=60_000,
        description="Milliseconds that choosing a strategy may take, the agent's look-up included.",
    )
    enable_metrics: bool = Field(
        default=True,
        description="Whether what happens is counted, for Prometheus to read as [metrics] says.",
    )


class ChoiceSettings(Section):
    """What `auto` takes for tasks of one form; `reasond eval --choose` writes it."""

    strategy: StrategyName = Field(description="Strategy of these tasks.")
    config: Annotated[Mapping[str, bool | int | float | str], AfterValidator(freeze)] = Field(
        default_factory=lambda: MappingProxyType({}), max_length=64, description="Parameters of the strategy."
    )
    why: str = Field(default="", max_length=1000, description="The figures that justify it; callers are told them.")


class ReasoningSettings(Section):
    """The enabled strategies and their defaults."""

    default_strategy: Annotated[str, StringConstraints(pattern=r"^([a-z_][a-z0-9_]*)?$", max_length=64)] = Field(
        default="chain_of_thought",
        description="Strategy of tasks for which neither the request nor the agent names one; empty: they must.",
    )
    auto: bool = Field(
        default=False,
        description="Whether tasks that do not fit the model's window are read by bounded_context in place of the "
        "default strategy, and tasks may name the strategy auto.",
    )
    choices: Annotated[Mapping[TaskForm, ChoiceSettings], AfterValidator(freeze)] = Field(
        default_factory=lambda: MappingProxyType({}),
        description="What auto takes for tasks that fit the window: a table for those with an answer schema, one for "
        "others with material, and one for questions alone.",
    )
    enabled_strategies: tuple[StrategyName, ...] = Field(
        default_factory=lambda: tuple(list_built_in("reasond.strategies")),
        strict=False,
        max_length=100,
        description="Strategies that may be used; an empty list serves none.",
    )
    program_environment: Annotated[str, StringConstraints(pattern=r"^([a-z][a-z0-9_-]*)?$", max_length=64)] = Field(
        default="",
        description="Environment of [repair.environments] in whose sandbox the Python programs of models run, which "
        "program_of_thought needs; empty: none is run.",
    )
    strategies: Annotated[Mapping[StrategyName, StrategyTable], AfterValidator(freeze)] = Field(
        default_factory=lambda: MappingProxyType({}),
        description="One table per strategy: default_<parameter> is used where neither the request nor the agent sets "
        "the parameter; max_allowed_<parameter without max_> is the most that anybody may set.",
    )
    performance: PerformanceSettings = Field(default_factory=PerformanceSettings)

    @property
    def effective_default_strategy(self) -> str | None:
        """The default strategy; None if it is not enabled, as on a server without strategies."""
        return self.default_strategy if self.default_strategy in self.enabled_strategies else None


class AgentsSettings(Section):
    """The directory of agents."""

    max_agents: int = Field(
        default=1000, ge=1, le=100_000, description="Most agents that can be registered, of all tenants together."
    )
    max_agents_per_tenant: int = Field(
        default=250, ge=1, le=100_000, description="Most agents that one tenant can register."
    )
    max_card_bytes: int = Field(
        default=256 * _KIBI, ge=1024, le=256 * _KIBI, description="Largest agent card that is accepted, in bytes."
    )


class Settings(Section):
    """The whole configuration."""

    server: ServerSettings = Field(default_factory=ServerSettings)
    llm: LlmSettings = Field(default_factory=LlmSettings)
    reasoning: ReasoningSettings = Field(default_factory=ReasoningSettings)
    tools: ToolsSettings = Field(default_factory=ToolsSettings)
    turns: TurnPolicy = Field(default_factory=TurnPolicy)
    repair: RepairSettings = Field(default_factory=RepairSettings)
    engine: EngineSettings = Field(default_factory=EngineSettings)
    openai: OpenAiSettings = Field(default_factory=OpenAiSettings)
    a2a: A2aSettings = Field(default_factory=A2aSettings)
    mcp: McpSettings = Field(default_factory=McpSettings)
    auth: AuthSettings = Field(default_factory=AuthSettings)
    limits: LimitsSettings = Field(default_factory=LimitsSettings)
    agents: AgentsSettings = Field(default_factory=AgentsSettings)
    store: StoreSettings = Field(default_factory=StoreSettings)
    metrics: MetricsSettings = Field(default_factory=MetricsSettings)
    logs: LogsSettings = Field(default_factory=LogsSettings)
    tracing: TracingSettings = Field(default_factory=TracingSettings)
    webhooks: WebhookPolicy = Field(default_factory=WebhookPolicy)
