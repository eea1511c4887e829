"""Notices of both databases go to real receivers on loopback until they are confirmed."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from openai import OpenAI
from pydantic import SecretStr
from standardwebhooks import Webhook

from reasond_server.assembly.stores import StoreOptions, open_stores
from reasond_server.errors.base import SettingsError
from reasond_server.eventlog.store import Notice
from reasond_server.telemetry.observers import Observer
from reasond_server.webhooks.outbox import Outbox
from reasond_server.webhooks.webhook_policy import (
    EndpointPolicy,
    WebhookEvent,
    WebhookForm,
    WebhookPolicy,
    decode_secret,
)
from reasond_server.webhooks.webhook_sender import WebhookSender, build_headers
from tests.receivers import OLD_SECRET, SECRET, receiving
from tests.unit.eventlog.stored.conftest import Time

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

NOTHING_LEFT_S = 120.0


def endpoint(url: str, *secrets: str, **values: Any) -> EndpointPolicy:
    return EndpointPolicy(
        url=url,
        secrets=tuple(map(SecretStr, secrets or (SECRET,))),
        **{"allow_private": True, **values},
    )


def notice(notice_id: str = "msg_1", name: str = "desk", body: str = '{"type":"execution.ended"}') -> Notice:
    return Notice(notice_id=notice_id, endpoint=name, tenant="acme", execution_id="e1", sequence=3, body=body)


class Counting(Observer):
    """Counts the outcomes of attempts."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def webhook_sent(self, outcome: str) -> None:
        self.outcomes.append(outcome)


class Desk:
    """An outbox in a database, and senders that send what is in it."""

    def __init__(self, outbox: Outbox, time: Time, rows: Any) -> None:
        self.outbox, self.time, self.rows = outbox, time, rows
        self.observer = Counting()

    def sender(self, *, render: Any = None, resolve: Any = None, **policy: Any) -> WebhookSender:
        return WebhookSender(
            outbox=self.outbox,
            policy=WebhookPolicy(**policy),
            render=render,
            now=self.time.now,
            random=lambda: 1.0,
            observer=self.observer,
            resolve=resolve,
        )

    async def count(self) -> int:
        return int((await self.rows.select("SELECT count(*) FROM notices", {}))[0][0])

    async def wait_until_empty(self) -> None:
        async with asyncio.timeout(NOTHING_LEFT_S):
            while await self.count():  # noqa: ASYNC110 - a database tells nothing
                await asyncio.sleep(0.02)

    async def wait_for_outcomes(self, *outcomes: str) -> None:
        async with asyncio.timeout(NOTHING_LEFT_S):
            while self.observer.outcomes != list(outcomes):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.02)


@pytest.fixture(params=["sqlite", "postgres"])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Desk, None]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    time = Time()
    options = StoreOptions(
        url=url,
        data_dir=str(tmp_path),
        now=time.now,
        monotonic=time.monotonic,
        max_bytes=10**6,
        max_agents=1,
    )
    stores = await open_stores(options)
    assert stores.transactions is not None
    yield Desk(Outbox(stores.transactions, now=time.now), time, stores.transactions)
    await stores.aclose()


@asynccontextmanager
async def at_work(*senders: WebhookSender) -> AsyncGenerator[None, None]:
    for each in senders:
        each.begin()
    try:
        yield
    finally:
        for each in senders:
            await each.aclose()


async def test_a_message_is_accepted_by_the_standards_own_verifier_and_sent_once(desk: Desk) -> None:
    async with receiving() as receiver:
        # The verifier takes no message of another time.
        desk.time.time = real_now()
        await desk.outbox.add([notice()])
        async with at_work(desk.sender(endpoints={"desk": endpoint(receiver.url)})):
            (message,) = await receiver.wait_for(1)
            await desk.wait_until_empty()
        assert (message.path, message.id) == ("/hooks", "msg_1")
        assert Webhook(SECRET).verify(message.body, dict(message.headers)) == {"type": "execution.ended"}
        assert "authorization" not in message.headers
        assert len(receiver.messages) == 1
        assert desk.observer.outcomes == ["delivered"]


def real_now() -> datetime:
    return datetime.now(UTC)


@pytest.mark.parametrize("secret", [SECRET, OLD_SECRET])
def test_while_a_secret_is_replaced_both_verify(secret: str) -> None:
    event = {"id": "evt_1", "object": "event", "created_at": 1, "type": "response.completed", "data": {"id": "resp_1"}}
    body = json.dumps(event).encode()
    keys = [decode_secret(SecretStr(each)) for each in (SECRET, OLD_SECRET)]
    headers = build_headers("msg_1", body, keys=keys, now=real_now())
    assert headers["webhook-signature"].count("v1,") == 2
    assert Webhook(secret).verify(body, headers) == event
    unwrapped: Any = OpenAI(api_key="none").webhooks.unwrap(body, headers, secret=secret)
    assert (unwrapped.type, unwrapped.data.id) == ("response.completed", "resp_1")


async def test_two_processes_do_not_send_the_same_message(desk: Desk) -> None:
    async with receiving() as receiver:
        await desk.outbox.add([notice(f"msg_{n}") for n in range(40)])
        policy = {"desk": endpoint(receiver.url)}
        async with at_work(desk.sender(endpoints=policy), desk.sender(endpoints=policy)):
            messages = await receiver.wait_for(40)
            await desk.wait_until_empty()
        assert sorted(each.id for each in messages) == sorted(f"msg_{n}" for n in range(40))


async def test_what_was_claimed_by_a_process_that_died_is_sent_with_the_same_id_after_its_lease(desk: Desk) -> None:
    async with receiving() as receiver:
        await desk.outbox.add([notice()])
        assert len(await desk.outbox.claim("desk", lease_s=60, limit=9)) == 1
        async with at_work(desk.sender(endpoints={"desk": endpoint(receiver.url)})):
            assert not await desk.outbox.claim("desk", lease_s=60, limit=9)
            await desk.time.advance(60)
            assert [each.id for each in await receiver.wait_for(1)] == ["msg_1"]
            await desk.wait_until_empty()


@pytest.mark.parametrize("answer", ["500 Internal Server Error", "302 Found\r\nLocation: /elsewhere", "429 Busy"])
async def test_a_refused_message_comes_again_later_and_a_redirect_is_not_followed(desk: Desk, answer: str) -> None:
    async with receiving() as receiver:
        receiver.answers = [answer]
        await desk.outbox.add([notice()])
        async with at_work(desk.sender(endpoints={"desk": endpoint(receiver.url)})):
            await desk.wait_for_outcomes("failed")
            await desk.time.advance(5)
            messages = await receiver.wait_for(2)
            await desk.wait_until_empty()
        assert [(each.id, each.path) for each in messages] == [("msg_1", "/hooks")] * 2


async def test_a_receiver_that_is_down_or_slow_does_not_hold_up_another(desk: Desk) -> None:
    async with receiving() as slow, receiving() as quick:
        slow.answers = [None] * 16
        await desk.outbox.add([*(notice(f"msg_{n}", "slow") for n in range(16)), notice("msg_x", "quick")])
        endpoints = {"slow": endpoint(slow.url), "quick": endpoint(quick.url), "down": endpoint("http://127.0.0.1:1/")}
        await desk.outbox.add([notice("msg_y", "down")])
        async with at_work(desk.sender(endpoints=endpoints, timeout_s=300.0)):
            await quick.wait_for(1)
            await slow.wait_for(16)
            async with asyncio.timeout(NOTHING_LEFT_S):
                while await desk.count() > 17:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.02)
        assert sorted(desk.observer.outcomes) == ["delivered", "failed"]


async def test_a_slow_answer_counts_as_none(desk: Desk) -> None:
    async with receiving() as receiver:
        receiver.answers = [None]
        await desk.outbox.add([notice()])
        async with at_work(desk.sender(endpoints={"desk": endpoint(receiver.url)}, timeout_s=0.2)):
            await desk.wait_for_outcomes("failed")
        assert await desk.count() == 1


@pytest.mark.parametrize(("answer", "retry_for_s"), [("503 Busy", 0.0), ("410 Gone", 86_400.0)])
async def test_attempts_end(desk: Desk, answer: str, retry_for_s: float) -> None:
    async with receiving() as receiver:
        receiver.answers = [answer]
        await desk.outbox.add([notice()])
        async with at_work(desk.sender(endpoints={"desk": endpoint(receiver.url)}, retry_for_s=retry_for_s)):
            await desk.wait_for_outcomes("given_up")
            await desk.wait_until_empty()
        assert len(receiver.messages) == 1


async def test_a_message_is_tried_again_while_the_clock_of_the_store_is_held_back(desk: Desk) -> None:
    desk.outbox = Outbox(desk.rows, now=lambda: desk.time.now() - timedelta(days=4))
    async with receiving() as receiver:
        receiver.answers = ["503 Busy"]
        await desk.outbox.add([notice()])
        async with at_work(desk.sender(endpoints={"desk": endpoint(receiver.url)}, retry_for_s=86_400.0)):
            await desk.wait_for_outcomes("failed")
            await desk.time.advance(5)
            await desk.wait_for_outcomes("failed", "delivered")


def test_an_address_of_ipv6_may_be_written_in_any_form(desk: Desk) -> None:
    for url in ("https://[2001:4860:4860:0::8888]/", "https://[::ffff:8.8.8.8]/"):
        desk.sender(endpoints={"desk": endpoint(url, allow_private=False)})


async def test_waits_grow_up_to_an_end(desk: Desk) -> None:
    async with receiving() as receiver:
        receiver.answers = ["500 No"] * 5
        await desk.outbox.add([notice()])
        async with at_work(desk.sender(endpoints={"desk": endpoint(receiver.url)}, retry_for_s=300.0)):
            for number, wait_s in enumerate((5, 15, 45, 135), start=1):
                await desk.wait_for_outcomes(*["failed"] * number)
                await desk.time.advance(wait_s - 1)
                assert len(receiver.messages) == number
                await desk.time.advance(1)
                await receiver.wait_for(number + 1)
            await desk.wait_for_outcomes(*["failed"] * 4, "given_up")


@pytest.mark.parametrize(
    "addresses", [["10.0.0.1"], ["169.254.169.254"], ["8.8.8.8", "127.0.0.1"], ["::ffff:127.0.0.1"], []]
)
async def test_a_private_address_is_not_connected_to(desk: Desk, addresses: Sequence[str]) -> None:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return addresses

    async with receiving() as receiver:
        await desk.outbox.add([notice()])
        one = endpoint(f"https://hooks.test:{receiver.port}/", allow_private=False)
        async with at_work(desk.sender(endpoints={"desk": one}, resolve=resolve)):
            await desk.wait_for_outcomes("failed")
        assert not receiver.messages


@pytest.mark.parametrize(
    "url", ["http://hooks.test/", "ftp://hooks.test/", "https://user:word@hooks.test/", "https://", "https://[::1", "x"]
)
async def test_an_address_that_is_refused_ends_the_start(desk: Desk, url: str) -> None:
    with pytest.raises(SettingsError, match=r"webhooks\.endpoints\.desk\.url is refused"):
        desk.sender(endpoints={"desk": endpoint(url, allow_private=False)})


async def test_a_budget_near_its_end_is_told_once_a_day_with_the_same_id_everywhere(desk: Desk) -> None:
    async with receiving() as receiver, receiving() as other:
        endpoints = {"desk": endpoint(receiver.url), "chat": endpoint(other.url, form=WebhookForm.OPENAI)}
        one, two = desk.sender(endpoints=endpoints), desk.sender(endpoints=endpoints)
        for sender in (one, two):
            sender.note_budget("acme", "ann", 0.11)
            sender.note_budget("acme", "ann", 0.1)
            sender.note_budget("acme", "ann", 0.02)
        async with at_work(one):
            (message,) = await receiver.wait_for(1)
            await desk.wait_until_empty()
        body = json.loads(message.body)
        assert body["type"] == WebhookEvent.BUDGET
        assert body["data"] == {"tenant": "acme", "subject": "ann", "left_ratio": 0.1}
        async with at_work(two):
            assert (await receiver.wait_for(2))[1].id == message.id
            await desk.wait_until_empty()
            await desk.time.advance(86_400)
            two.note_budget("acme", "ann", 0.02)
            assert (await receiver.wait_for(3))[2].id != message.id
        assert not other.messages


async def test_messages_for_a_receiver_that_is_no_longer_configured_are_forgotten(desk: Desk) -> None:
    async with receiving() as receiver:
        await desk.outbox.add([notice(name="gone")])
        await desk.time.advance(4 * 86_400)
        async with at_work(desk.sender(endpoints={"desk": endpoint(receiver.url)})):
            await desk.wait_until_empty()
        assert not receiver.messages
