"""What is asked, by whom, and within which bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Json = Mapping[str, Any]


class StrategySource(StrEnum):
    """Which level chose the strategy."""

    REQUEST = "request"
    AGENT = "agent"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bounds on one execution; None sets no bound."""

    max_total_tokens: int | None = None
    max_model_calls: int | None = None
    max_tool_calls: int | None = None
    max_elapsed_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a client asks to be worked out; text limits are checked by `reasoning.requests`.

    `config` holds only what the request set. `agent_capabilities` can only narrow the choice.
    """

    query: str
    material: str = ""
    strategy: str | None = None
    config: Json = field(default_factory=dict)
    agent: str | None = None
    agent_capabilities: Sequence[str] = ()
    budget: Budget = field(default_factory=Budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who calls, from the verified token: never from a field of the request."""

    subject: str
    tenant: str
    permissions: frozenset[str]
