"""The plan of a run: what another process needs to restore it, as JSON that is stored with the execution."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import PydanticSerializationError, to_json

from reasond_server.base.clock import encode_nonce
from reasond_server.errors.executions import NotResumableError
from reasond_server.runs.work import WorkRequest
from reasond_server.types import write_value
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.types import Budget, Execution, Json

_VERSION: Final = 1


class PlanError(NotResumableError):
    """An execution cannot be resumed; the message says why."""


@value
class Plan:
    """Everything that was decided when the execution began.

    Attributes:
        nonce: makes the keys of its effects.
        mark: the first nonce for the fences of its prompts; empty in old plans, where it is `nonce`.
        work: what its kind of work needs (`Work.describe`).
        limit_s: the caller's time limit in seconds, in addition to the budget.
        keep_running, has_request_id, is_unary: decide which callers may come back for it.
        subject: whose tokens it spends.
        permit: the name of the permit with which its caller was admitted.
        calibration: what the run's token counter had learnt by then.
        trace: the caller's trace context, so that a process that resumes the run continues the same trace.
    """

    nonce: str
    mark: str = ""
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
        """Return the request from which the execution was started."""
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
    """Return `plan` as JSON text; the fields of `work` are on the same level as the others."""
    fields = {name: getattr(plan, name) for name in _OWN}
    # False and empty values are left out, but a limit of 0 seconds is a real limit.
    own = {name: each for name, each in fields.items() if each or (name == "limit_s" and each is not None)}
    return _encode({"v": _VERSION, **plan.work, **own})


@lru_cache(maxsize=64)
def encode_obstacle(reason: str) -> str:
    """Return the plan text of an execution that cannot be resumed; it holds the `reason`."""
    return json.dumps({"v": _VERSION, "reason": reason})


def encode_unresumable(reason: str, work: Json) -> str:
    """Return the plan text of an execution that cannot be resumed, with what `read_work` shall return."""
    return _encode({"v": _VERSION, **work, "reason": reason})


def _encode(row: Json) -> str:
    try:
        # A sixth of the time of `json.dumps` for a long text.
        return to_json(row, inf_nan_mode="constants", fallback=write_value).decode()
    except PydanticSerializationError:
        # A lone surrogate, which no UTF-8 has.
        return json.dumps(row, separators=(",", ":"), default=write_value)


def read_work(text: str) -> Json:
    """Return what the kind of work wrote into a plan; empty if there is none, or another version wrote it."""
    try:
        row: Any = json.loads(text) if text else {}
    except ValueError:
        return {}
    if not isinstance(row, dict) or row.get("v") != _VERSION:
        return {}
    return {name: each for name, each in row.items() if name not in {"v", "reason", *_OWN}}


def decode_plan(text: str) -> Plan:
    """Return the plan in `text`.

    Raises:
        PlanError: there is no plan, or another version of this program wrote it.
    """
    try:
        row: Any = json.loads(text) if text else {}
    except ValueError:
        raise PlanError("its plan cannot be read") from None
    if not isinstance(row, dict) or row.pop("v", None) != _VERSION:
        raise build_foreign_plan_error()
    if "reason" in row:
        raise PlanError(row["reason"])
    own = {name: row.pop(name) for name in _OWN if name in row}
    if "nonce" not in own:
        raise build_foreign_plan_error()
    return Plan(**own, work=row)


def build_foreign_plan_error() -> PlanError:
    """Make the error of a plan that this version of the server cannot read."""
    return PlanError("its plan was written by another version of the server")


def make_nonces(first: str) -> Callable[[], str]:
    """Return a function that returns `first`, then nonces derived from it; nobody can guess them without `first`."""
    drawn = 0

    def draw() -> str:
        nonlocal drawn
        drawn += 1
        return first if drawn == 1 else derive_nonce(first, str(drawn))

    return draw


def derive_nonce(key: str, text: str) -> str:
    """Return the nonce of `text` under `key`: always the same, and not to be guessed without `key`."""
    mac = hmac.digest(key.encode(), text.encode("utf-8", "surrogatepass"), hashlib.sha256)
    return encode_nonce(int.from_bytes(mac))
