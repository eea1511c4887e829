"""Which requests attach to one that is under way: those of the same caller, with the same body and the same session."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any, cast

from reasond_server.protocols.asked_runs import Attachments
from reasond_server.testing import FunctionModel, Reply
from reasond_server.types import Principal
from tests.unit.protocols.chat.chatting import serve_chats
from tests.unit.protocols.responses.responding import RESPONSES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.unit.protocols.chat.chatting import ChatSite

BODIES: list[dict[str, Any]] = [{"input": "a"}, {"input": "b"}, {"input": "a", "metadata": {"n": "1"}}]
SESSIONS = [
    {"session-id": "1"},
    {"session-id": "2"},
    {"thread-id": "1"},
    {"session-id": "1", "thread-id": "1"},
    {"x-client-request-id": "1"},
    {"x-client-request-id": "1", "x-stainless-retry-count": "3"},
]


async def begin(site: ChatSite, body: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    """Return the execution of a request whose stream is cut after its first event."""
    sent = {"model": "reasond", "stream": True, **body}
    async with site.client.stream("POST", RESPONSES, json=sent, headers=headers) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                told = json.loads(line.removeprefix("data: "))
                return str(told["response"]["reasond"]["execution_id"])
    raise AssertionError("no event came")


async def test_no_request_attaches_to_one_of_another_body_or_session() -> None:
    gate = asyncio.Event()
    model = FunctionModel(lambda _: Reply(text="<answer>42</answer>", hold=gate))
    async with serve_chats(model) as site:
        asked = [*itertools.product(range(len(BODIES)), range(len(SESSIONS)))]
        first = {one: await begin(site, BODIES[one[0]], SESSIONS[one[1]]) for one in asked}
        again = {one: await begin(site, BODIES[one[0]], SESSIONS[one[1]]) for one in reversed(asked)}
        alone = [await begin(site, BODIES[0], {}) for _ in range(3)]
        gate.set()
    assert first == again
    # How often a library has sent a request is no part of its session.
    sessions = len(SESSIONS) - 1
    assert len({*first.values()}) == len(BODIES) * sessions
    assert len({*first.values(), *alone}) == len(BODIES) * sessions + len(alone)


async def test_no_request_attaches_to_one_of_another_caller() -> None:
    attachments = Attachments(store=cast("Any", None), desk=cast("Any", None), within_s=5.0)
    callers = [
        Principal(subject=name, tenant=tenant, permissions=frozenset())
        for name, tenant in itertools.product(("ann", "bob", "ann\0bob"), ("t1", "t2"))
    ]
    keys = ["a" * 64, "b" * 64]
    names = {
        (one.subject, key): await attachments.find_request_id(one, key, is_first=False)
        for one in callers
        for key in keys
    }
    # Claims of another tenant are others.
    assert len({*names.values()}) == len(names)
    assert not await attachments.find_request_id(callers[0], "", is_first=False)
