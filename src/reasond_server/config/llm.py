"""The section [llm]: the language model of the server, and the further backends by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PlainValidator, StringConstraints

from reasond_server.config.section import BaseUrl, EnvironmentName, Section
from reasond_server.types.policy_sections import freeze

_KIBI = 1024
_MEBI = 1024 * _KIBI
_MAX_CAPABILITIES = 32

Capability = bool | int | str | tuple[str, ...]
BackendName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$", max_length=64)]
BackendNames = tuple[Annotated[str, StringConstraints(max_length=64)], ...]
CapabilityName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]


def _check_capability(value: object) -> Capability:
    """Return `value` if its type is allowed for a capability: boolean, integer, string or list of strings."""
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    message = "must be true, false, a whole number, a string or a list of strings"
    raise ValueError(message)


CapabilityTable = Annotated[
    Mapping[CapabilityName, Annotated[Capability, PlainValidator(_check_capability)]],
    AfterValidator(freeze),
]


class BackendSettings(Section):
    """One language model at one address; `llm/profiles.py` declares the capabilities."""

    model: str = Field(default="", max_length=200, description="Name of the model as the provider knows it.")
    api_key_env: EnvironmentName = Field(
        default="OPENAI_API_KEY",
        description="Name of the environment variable that holds the provider's key, never the key; empty: no key.",
    )
    base_url: BaseUrl = Field(
        default="",
        max_length=2048,
        description="Address of the endpoint, up to what stands before /chat/completions; empty: OPENAI_BASE_URL if "
        "set (for [llm] itself), else OpenAI's own.",
    )
    azure_api_version: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.-]*$", max_length=64)] = Field(
        default="",
        description="Version of Azure OpenAI's interface, such as 2024-10-21; set: base_url is the Azure resource and "
        "model the deployment.",
    )
    protocol: Literal["auto", "chat", "responses"] = Field(
        default="auto",
        description="Which interface is called: Chat Completions or Responses; auto takes Responses for models of "
        "OpenAI that have no other, else Chat Completions.",
    )
    profile: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]*$", max_length=64)] = Field(
        default="auto",
        description="What the server can do, by name (see docs/guides/model-backends.md); auto: by the names of model "
        "and host, generic where they tell nothing.",
    )
    count: Literal["auto", "server", "tokenizer", "tiktoken", "estimate", "bytes"] = Field(
        default="auto",
        description="How tokens are counted: by the server, by tokenizer_file, by tiktoken with ranks that are here "
        "already, by a calibrated estimate, or by bytes as an upper bound; auto: the first of them that is possible.",
    )
    tokenizer_file: str = Field(
        default="",
        max_length=4096,
        description="A tokenizer.json of the model, relative to the configuration file; needs the extra tokenizers.",
    )
    input_price_usd: float = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Price of a million input tokens in US dollars; with output_price_usd, results tell the cost; 0: "
        "nobody is told.",
    )
    cached_input_price_usd: float = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Price of a million input tokens that the provider has in its cache; 0: that of the others.",
    )
    output_price_usd: float = Field(
        default=0, ge=0, le=1_000_000, description="Price of a million output tokens in US dollars."
    )
    max_concurrency: int = Field(default=64, ge=1, le=10_000, description="Most calls at once; more of them wait.")
    connect_timeout_s: float = Field(
        default=5.0, ge=0.1, le=60, description="Seconds until a connection must be established."
    )
    first_token_timeout_s: float = Field(
        default=0,
        ge=0,
        le=3600,
        description="Seconds from the request to the first content; 0: 60, or what the profile says.",
    )
    idle_timeout_s: float = Field(
        default=0,
        ge=0,
        le=3600,
        description="Seconds between two pieces of content, keep-alives not counted; 0: 30, or what the profile says.",
    )
    total_timeout_s: float = Field(
        default=0,
        ge=0,
        le=86_400,
        description="Seconds for a whole call, retries included; a caller's earlier deadline ends the run sooner; 0: "
        "600, or what the profile says.",
    )
    max_attempts: int = Field(
        default=3,
        ge=1,
        le=10,
        description="Most attempts for one call, the first included; nothing is retried once tokens were accepted.",
    )
    first_wait_s: float = Field(
        default=0.5, ge=0.01, le=60, description="Seconds before the first retry; doubled each time, jittered."
    )
    max_wait_s: float = Field(
        default=20.0,
        ge=0.01,
        le=600,
        description="Longest wait before a retry; where the provider asks for more, the call fails and says so.",
    )
    max_line_bytes: int = Field(
        default=_MEBI, ge=4 * _KIBI, le=64 * _MEBI, description="Longest line of a response that is accepted, in bytes."
    )
    max_response_bytes: int = Field(
        default=8 * _MEBI,
        ge=64 * _KIBI,
        le=1024 * _MEBI,
        description="Largest response that is accepted, "
        "in bytes, at 64 more for each line; content adds up to 2 KiB for each token that was asked for.",
    )
    capabilities: CapabilityTable = Field(
        default_factory=lambda: MappingProxyType({}),
        max_length=_MAX_CAPABILITIES,
        description="What the profile has wrong about this server, by the profile's own names; "
        "`reasond backends check` prints it.",
    )


class _ProviderSettings(Section):
    """The provider and the names of backends; a class of its own, so that these keys come first in the section."""

    provider: Literal["", "demo", "openai"] = Field(
        default="",
        description='Who answers: "demo" (embedded rules, no language model) or "openai" (an OpenAI-compatible '
        "endpoint). Empty: openai if OPENAI_API_KEY or OPENAI_BASE_URL is set, else demo.",
    )
    offered: BackendNames = Field(
        default=(),
        strict=False,
        max_length=32,
        description="Backends of [llm.backends] that a task may name as its `model`. Empty: none.",
    )
    fallbacks: BackendNames = Field(
        default=(),
        strict=False,
        max_length=16,
        description="Backends of [llm.backends] that are asked in this order if a model refuses a call with an error "
        "that spent nothing.",
    )


class LlmSettings(BackendSettings, _ProviderSettings):
    """The language model of the server."""

    backends: Annotated[Mapping[BackendName, BackendSettings], AfterValidator(freeze)] = Field(
        default_factory=lambda: MappingProxyType({}),
        max_length=32,
        description="Further backends by name, each a table with the keys of [llm] except provider; "
        "`reasond backends check NAME` examines one.",
    )
