"""A client's task, its budget, and the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Json = Mapping[str, Any]


class StrategySource(StrEnum):
    """The level of precedence that chose the strategy."""

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
    """The task of a client; `reasoning.requests` checks the lengths of its texts.

    `config` holds only the parameters that the request set. `agent_capabilities` can only narrow the choice of the
    strategy.
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
    """The caller as the verified token names it, never as a field of the request names it.

    `key_id` is the id of the API key that it called with; empty for other tokens and certificates.
    """

    subject: str
    tenant: str
    permissions: frozenset[str]
    key_id: str = ""
