"""Messages of Standard Webhooks: what they say, and their signatures.

Source: standard-webhooks/spec/standard-webhooks.md, version 1. A message names what happened and has no content.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from reasond_server.eventlog.store import Append, Notice
from reasond_server.types import Execution, ExecutionState, LoggedEvent
from reasond_server.types.turns import HandedOff
from reasond_server.webhooks.task_receivers import TASKS
from reasond_server.webhooks.webhook_policy import EndpointPolicy, WebhookEvent, WebhookForm

if TYPE_CHECKING:
    from datetime import datetime


Endpoints = Mapping[str, "EndpointPolicy"]
_OPENAI_WIRE = "openai"


def add_notices(endpoints: Endpoints, part: Append, *, has_tasks: bool = False) -> Append:
    """Return `part` with a notice for each receiver that wants to know what it brings about.

    With `has_tasks` clients may have named more, whom one notice stands for.
    """
    execution, last = part.execution, part.entries[-1] if part.entries else None
    if execution.state is ExecutionState.RUNNING or not isinstance(last, LoggedEvent):
        return part
    happening = WebhookEvent.ENDED if execution.state.has_ended else WebhookEvent.WAITING
    names = [
        name
        for name, each in endpoints.items()
        if _is_wanted(each, happening, execution.tenant)
        and (each.form is WebhookForm.REASOND or execution.wire == _OPENAI_WIRE)
    ]
    if not names and not has_tasks:
        return part
    body = _write(happening, last.create_time, _describe(execution, last))
    key = f"msg_{execution.execution_id}_{execution.last_sequence}"
    notices = [_build_notice(name, key, execution, body) for name in names]
    return replace(part, notices=[*notices, *([_build_notice(TASKS, key, execution, "")] if has_tasks else [])])


def build_budget_notices(
    endpoints: Endpoints, tenant: str, subject: str, *, left: float, now: datetime
) -> Sequence[Notice]:
    """Return what receivers are told of a caller of whose tokens of a day the share `left` is left.

    The id is the same all day (UTC), in every process. With an empty `subject` the budget is that of the tenant.
    """
    data = {"tenant": tenant, "left_ratio": round(max(0.0, left), 4)} | ({"subject": subject} if subject else {})
    caller = to_json([tenant, subject, now.date().isoformat()])
    key = f"msg_budget_{hashlib.sha256(caller).hexdigest()[:32]}"
    return [
        Notice(
            notice_id=key,
            endpoint=name,
            tenant=tenant,
            execution_id="",
            sequence=0,
            body=_write(WebhookEvent.BUDGET, now, data),
        )
        for name, each in endpoints.items()
        if _is_wanted(each, WebhookEvent.BUDGET, tenant) and each.form is WebhookForm.REASOND
    ]


def build_headers(notice_id: str, body: bytes, *, keys: Sequence[bytes], now: datetime) -> dict[str, str]:
    """Return the headers of a message that is sent `now`, with a signature for each of the `keys`."""
    timestamp = str(int(now.timestamp()))
    signed = f"{notice_id}.{timestamp}.".encode() + body
    signatures = [base64.b64encode(hmac.digest(key, signed, "sha256")).decode() for key in keys]
    return {
        "Content-Type": "application/json",
        "webhook-id": notice_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{each}" for each in signatures),
    }


def _is_wanted(endpoint: EndpointPolicy, happening: WebhookEvent, tenant: str) -> bool:
    return happening in endpoint.events and (not endpoint.tenants or tenant in endpoint.tenants)


def _build_notice(endpoint: str, key: str, execution: Execution, body: str) -> Notice:
    return Notice(
        notice_id=key,
        endpoint=endpoint,
        tenant=execution.tenant,
        execution_id=execution.execution_id,
        sequence=execution.last_sequence,
        body=body,
    )


def _describe(execution: Execution, last: LoggedEvent) -> dict[str, Any]:
    """Return what is told of an execution; members without a value are left out."""
    members: dict[str, Any] = {
        "execution_id": execution.execution_id,
        "tenant": execution.tenant,
        "kind": execution.kind,
        "state": execution.state,
        "finish_reason": execution.finish_reason,
        "request_id": execution.request_id,
        "session_id": execution.session_id,
        "sequence": execution.last_sequence,
        "usage": {"input_tokens": execution.usage.input_tokens, "output_tokens": execution.usage.output_tokens},
    }
    if isinstance(last.event, HandedOff):
        members["waits_for"] = sorted({call.kind.value for call in last.event.calls})
        members["expire_time"] = last.event.expire_time
    return {name: each for name, each in members.items() if each not in (None, "")}


def _write(happening: WebhookEvent, time: datetime, data: Mapping[str, Any]) -> str:
    return to_json({"type": happening, "timestamp": time, "data": data}).decode()
