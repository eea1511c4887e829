"""The settings of [limits]: what each caller may, and where that is counted."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - Pydantic reads the annotations when the models are made
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, StringConstraints

from reasond_server.config.sections import Section

_MOST = 1_000_000_000
StrategyName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]


def _frozen_weights(weights: Mapping[str, int]) -> Mapping[str, int]:
    return MappingProxyType(dict(weights))


class LimitsSettings(Section):
    """What each caller may; 0 sets no bound."""

    requests_per_minute: int = Field(
        default=0, ge=0, le=_MOST, description="Executions that a caller may start in a minute, by weight; 0 is any."
    )
    requests_per_hour: int = Field(
        default=0, ge=0, le=_MOST, description="Executions that a caller may start in an hour, by weight; 0 is any."
    )
    concurrent_requests: int = Field(
        default=0, ge=0, le=_MOST, description="Executions of a caller at once; 0 is any number."
    )
    tokens_per_minute: int = Field(
        default=0, ge=0, le=_MOST, description="Tokens that a caller may spend in a minute; 0 is any number."
    )
    tokens_per_day: int = Field(
        default=0, ge=0, le=_MOST, description="Tokens that a caller may spend in a day; 0 is any number."
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
        Mapping[StrategyName, Annotated[int, Field(ge=1, le=_MOST)]], AfterValidator(_frozen_weights)
    ] = Field(
        default_factory=lambda: MappingProxyType({}),
        description="What one execution of a strategy counts for; 1 where none is given.",
    )
