"""Sends what is in the outbox: each receiver has a task of its own, so that a slow one holds up no other.

Messages and their signatures are those of Standard Webhooks (standard-webhooks/spec/standard-webhooks.md, version 1). A
message names what happened and has no content.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pydantic_core import to_json

from reasond_server.base.asyncio_tasks import end_task
from reasond_server.errors.base import ReasondError, SettingsError
from reasond_server.eventlog.store import Notice
from reasond_server.tools.address_checks import AddressPolicy, RefusedAddressError
from reasond_server.tools.vetted_requests import describe_cause, find_failures, request_vetted
from reasond_server.types import Execution, ExecutionState, LoggedEvent
from reasond_server.types.turns import HandedOff
from reasond_server.webhooks.outbox import TASKS, Letter, Outbox, Packer, Parcel, Render
from reasond_server.webhooks.webhook_policy import (
    EndpointPolicy,
    WebhookEvent,
    WebhookForm,
    WebhookPolicy,
    decode_secret,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from reasond_server.eventlog.store import Append
    from reasond_server.telemetry.observers import Observer
    from reasond_server.tools.address_checks import Resolve

Endpoints = Mapping[str, "EndpointPolicy"]
_OPENAI_WIRE = "openai"
_log = logging.getLogger("reasond.webhooks")
_LOOK_S: Final = 1.0
_AT_ONCE: Final = 16
_FIRST_WAIT_S: Final = 5.0
_LONGEST_WAIT_S: Final = 6 * 3600.0
_GROWTH: Final = 3
_HOUR_S: Final = 3600.0
_LOOKS_PER_SWEEP: Final = 3600
# The store may take as long as that to answer before and after an attempt.
_LEASE_BEYOND_S: Final = 30.0
_OK: Final = range(200, 300)
_GONE: Final = 410
_MOST_TOLD: Final = 100_000


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


class _Receiver:
    """One receiver of the operator: its vetted URL, its keys and the policy of its addresses."""

    lanes: Final = 1

    def __init__(self, name: str, endpoint: EndpointPolicy) -> None:
        self.name = name
        self._form = endpoint.form
        self._keys = [decode_secret(each) for each in endpoint.secrets]
        host = _read_host(endpoint.url)
        self._policy = AddressPolicy(
            allow_hosts=(host,),
            allow_private_hosts=(host,) if endpoint.allow_private else (),
            allow_http=endpoint.allow_private,
        )
        self._target = self._policy.vet_url(endpoint.url)

    async def pack(self, letter: Letter, render: Render, now: datetime) -> Parcel | None:
        """See Packer."""
        body = letter.body.encode() if self._form is WebhookForm.REASOND else await render(letter)
        if body is None:
            return None
        headers = build_headers(letter.notice_id, body, keys=self._keys, now=now)
        return Parcel(target=self._target, policy=self._policy, headers=headers, body=body)


class WebhookSender:
    """Sends notices until their receivers have confirmed them with a status of 200 to 299, or for `retry_for_s`.

    A message whose confirmation was lost is sent again, with the same id. Redirects are not followed; 410 says that the
    receiver wants nothing more of this message. `render` makes messages in the form of a wire, `random` spreads waits.
    `more` receivers are those that the operator has not named.

    Raises:
        SettingsError: the address of a receiver is refused.
    """

    def __init__(
        self,
        *,
        outbox: Outbox,
        policy: WebhookPolicy,
        render: Render,
        now: Callable[[], datetime],
        random: Callable[[], float],
        observer: Observer,
        resolve: Resolve | None = None,
        more: Sequence[Packer] = (),
    ) -> None:
        self._outbox = outbox
        self._policy = policy
        self._render = render
        self._now = now
        self._random = random
        self._observer = observer
        self._resolve = resolve
        self._receivers: list[Packer] = [*open_receivers(policy), *more]
        self._tasks: list[asyncio.Task[None]] = []
        self._told: dict[tuple[str, str], str] = {}
        self._new: list[Notice] = []

    def begin(self) -> None:
        """Start to send."""
        self._tasks = [
            asyncio.create_task(self._serve(each), name=f"webhook {each.name}")
            for each in self._receivers
            for _ in range(each.lanes)
        ]

    async def aclose(self) -> None:
        """Stop; what is under way is sent again by the next process."""
        for task in self._tasks:
            await end_task(task)

    def note_budget(self, tenant: str, subject: str, left: float) -> None:
        """Tell once a day that of the caller's tokens of a day only the share `left` is left."""
        now = self._now()
        if left > self._policy.budget_share or self._told.get((tenant, subject)) == now.date().isoformat():
            return
        if len(self._told) >= _MOST_TOLD:
            self._told.clear()
        self._told[tenant, subject] = now.date().isoformat()
        self._new += build_budget_notices(self._policy.endpoints, tenant, subject, left=left, now=now)

    async def _serve(self, receiver: Packer) -> None:
        looks = 0
        while True:
            has_worked = False
            try:
                if looks % _LOOKS_PER_SWEEP == 0:
                    await self._outbox.forget(older_than_s=self._policy.retry_for_s + _HOUR_S)
                has_worked = await self._work(receiver)
                looks += not has_worked
            except ReasondError as error:
                _log.warning("the outbox of webhooks cannot be reached: %s", error.reason)
            except Exception:  # noqa: BLE001 - the task has no caller that could handle it
                _log.exception("webhooks could not be sent")
            if not has_worked:
                await asyncio.sleep(_LOOK_S)

    async def _work(self, receiver: Packer) -> bool:
        """Send what is due now; return whether there was something."""
        new, self._new = self._new, []
        try:
            if new:
                await self._outbox.add(new)
        except ReasondError:
            self._new += new
            raise
        lease_s = self._policy.timeout_s + _LEASE_BEYOND_S
        letters = await self._outbox.claim(receiver.name, lease_s=lease_s, limit=_AT_ONCE)
        ended = await asyncio.gather(*(self._deliver(receiver, each) for each in letters), return_exceptions=True)
        for failure in ended:
            if failure is not None:
                raise failure
        return bool(letters)

    async def _deliver(self, receiver: Packer, letter: Letter) -> None:
        """Try once to send a letter, and note what came of it."""
        failure = await self._send(receiver, letter)
        if failure is None:
            await self._outbox.remove(letter)
            return
        if not failure:
            self._observer.webhook_sent("delivered")
            await self._outbox.remove(letter)
            return
        wait_s = min(_FIRST_WAIT_S * _GROWTH ** min(letter.attempts - 1, 20), _LONGEST_WAIT_S)
        wait_s *= 0.5 + self._random() / 2
        facts = {"webhook": receiver.name, "webhook_id": letter.notice_id, "attempt": letter.attempts}
        is_last = self._outbox.measure_age(letter) + wait_s > self._policy.retry_for_s
        if failure == str(_GONE) or is_last:
            self._observer.webhook_sent("given_up")
            _log.error("a webhook is given up: %s", failure, extra=facts)
            await self._outbox.remove(letter)
            return
        self._observer.webhook_sent("failed")
        _log.warning("a webhook was not taken: %s", failure, extra=facts | {"retry_in_s": round(wait_s, 1)})
        await self._outbox.put_off(letter, wait_s=wait_s)

    async def _send(self, receiver: Packer, letter: Letter) -> str | None:
        """Send a message; return why it was not taken, empty if it was, and None if there was nothing to send."""
        timeout_s = self._policy.timeout_s
        try:
            parcel = await receiver.pack(letter, self._render, self._now())
            if parcel is None:
                return None
            async with (
                asyncio.timeout(timeout_s),
                request_vetted(
                    parcel.target,
                    parcel.policy,
                    headers=parcel.headers,
                    timeout_s=timeout_s,
                    body=parcel.body,
                    resolve=self._resolve,
                ) as response,
            ):
                return "" if response.status in _OK else str(response.status)
        except ReasondError as error:
            return error.reason
        except find_failures() as error:
            return describe_cause(error)


def open_receivers(policy: WebhookPolicy) -> Sequence[Packer]:
    """Return the receivers of the operator; nothing is sent yet.

    Raises:
        SettingsError: the address of one is refused.
    """
    opened = []
    for name, endpoint in policy.endpoints.items():
        try:
            opened.append(_Receiver(name, endpoint))
        except RefusedAddressError as error:
            raise SettingsError(
                f"webhooks.endpoints.{name}.url is refused: {error}",
                remedy="Name an https address, or set allow_private for a receiver within your network.",
            ) from None
    return opened


def _read_host(url: str) -> str:
    """Return the host of `url`, an address in its canonical form; empty if there is none."""
    host = ""
    with suppress(ValueError):
        host = (urlsplit(url).hostname or "").rstrip(".")
        host = str(ip_address(host))
    return host
