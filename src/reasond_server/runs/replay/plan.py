"""What has to be known to make a run again in another process, as JSON that is kept with the execution."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from reasond_server.clock import nonce_of
from reasond_server.errors import InternalError
from reasond_server.types import Budget, StrategySource, Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.types import Json

_VERSION = 1


class PlanError(InternalError):
    """An execution cannot be gone on with; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that was decided when the execution began.

    Attributes:
        config: what applies after precedence.
        nonce: the first one that the run draws.
        limit_s: seconds that the caller allows beside the budget.
        keep_running, has_request_id, is_unary: who may come back for it.
        subject: whose tokens it spends.
        permit: the name of the right by which its caller was admitted.
        calibration: what the run's token counter had learnt by then.
        trace: where its caller stood in a trace, so that whoever goes on with it continues the same one.
    """

    task: Task
    strategy: str
    source: StrategySource
    config: Json
    nonce: str
    limit_s: float | None = None
    keep_running: bool = False
    has_request_id: bool = False
    is_unary: bool = False
    subject: str = ""
    permit: str = ""
    calibration: Json = field(default_factory=dict)
    trace: str = ""


def encode_plan(plan: Plan) -> str:
    """Return `plan` as JSON text."""
    return json.dumps({"v": _VERSION, **asdict(plan)}, separators=(",", ":"), default=dict)


@lru_cache(maxsize=64)
def without_plan(reason: str) -> str:
    """Return what is kept of an execution that nobody can go on with, and why that is so."""
    return json.dumps({"v": _VERSION, "reason": reason})


def decode_plan(text: str) -> Plan:
    """Return the plan in `text`.

    Raises:
        PlanError: there is none, or another version of this program wrote it.
    """
    try:
        row: Any = json.loads(text) if text else {}
    except ValueError:
        raise PlanError("its plan cannot be read") from None
    if not isinstance(row, dict) or row.pop("v", None) != _VERSION:
        raise PlanError("its plan was written by another version of the server")
    if "reason" in row:
        raise PlanError(row["reason"])
    try:
        task = row.pop("task")
        budget = Budget(**task.pop("budget"))
        task["agent_capabilities"] = tuple(task["agent_capabilities"])
        return Plan(**{**row, "source": StrategySource(row["source"]), "task": Task(**{**task, "budget": budget})})
    except (KeyError, TypeError, ValueError, AttributeError):
        raise PlanError("its plan was written by another version of the server") from None


def nonces(first: str) -> Callable[[], str]:
    """Return a function that draws `first`, then marks that follow from it and that nobody can guess without it."""
    drawn = 0

    def draw() -> str:
        nonlocal drawn
        drawn += 1
        return first if drawn == 1 else _derived(first, drawn)

    return draw


def _derived(first: str, number: int) -> str:
    return nonce_of(int.from_bytes(hmac.digest(first.encode(), str(number).encode(), hashlib.sha256)))
