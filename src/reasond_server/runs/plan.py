"""What has to be known to make a run again in another process, as JSON that is kept with the execution."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from reasond_server.clock import nonce_of
from reasond_server.errors import NotResumableError
from reasond_server.runs.work import WorkRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.types import Budget, Execution, Json

_VERSION: Final = 1


class PlanError(NotResumableError):
    """An execution cannot be gone on with; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that was decided when the execution began.

    Attributes:
        nonce: the first one that the run draws.
        work: what its kind of work needs (`Work.describe`).
        limit_s: seconds that the caller allows beside the budget.
        keep_running, has_request_id, is_unary: who may come back for it.
        subject: whose tokens it spends.
        permit: the name of the permit by which its caller was admitted.
        calibration: what the run's token counter had learnt by then.
        trace: the caller's place in a trace, so that whoever goes on with it continues the same one.
    """

    nonce: str
    work: Json = field(default_factory=dict)
    limit_s: float | None = None
    keep_running: bool = False
    has_request_id: bool = False
    is_unary: bool = False
    subject: str = ""
    permit: str = ""
    calibration: Json = field(default_factory=dict)
    trace: str = ""

    def to_request(self, execution: Execution, *, budget: Budget) -> WorkRequest:
        """Return who asked for the execution."""
        return WorkRequest(
            tenant=execution.tenant,
            subject=self.subject,
            request_id=execution.request_id,
            keep_running=self.keep_running,
            time_limit_s=self.limit_s,
            is_unary=self.is_unary,
            trace=self.trace,
            permit=self.permit,
            budget=budget,
        )


_OWN: Final = tuple(each.name for each in fields(Plan) if each.name != "work")


def encode_plan(plan: Plan) -> str:
    """Return `plan` as JSON text; what the kind of work needs stands beside the rest, as in earlier releases."""
    told = {name: getattr(plan, name) for name in _OWN}
    # A limit of 0 seconds is one; all else that is false is said by its absence.
    own = {name: each for name, each in told.items() if each or (name == "limit_s" and each is not None)}
    row = {"v": _VERSION, **plan.work, **own}
    return json.dumps(row, separators=(",", ":"), default=dict)


@lru_cache(maxsize=64)
def encode_obstacle(reason: str) -> str:
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
        raise foreign_plan()
    if "reason" in row:
        raise PlanError(row["reason"])
    own = {name: row.pop(name) for name in _OWN if name in row}
    if "nonce" not in own:
        raise foreign_plan()
    return Plan(**own, work=row)


def foreign_plan() -> PlanError:
    """Make the error of a plan that this version of the server cannot read."""
    return PlanError("its plan was written by another version of the server")


def nonces(first: str) -> Callable[[], str]:
    """Return a function that draws `first`, then marks that follow from it and that nobody can guess without it."""
    drawn = 0

    def draw() -> str:
        nonlocal drawn
        drawn += 1
        return first if drawn == 1 else _derive(first, drawn)

    return draw


def _derive(first: str, number: int) -> str:
    return nonce_of(int.from_bytes(hmac.digest(first.encode(), str(number).encode(), hashlib.sha256)))
