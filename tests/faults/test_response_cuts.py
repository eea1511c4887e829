"""Responses are cut off at any byte, and their servers are killed: nothing is lost, doubled, reordered or paid twice.

By hand: `RESPONSE_CUTS=1000 RESPONSE_KILLS=100 pytest -n0 -s tests/faults/test_response_cuts.py`.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sqlite3
import sys
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import httpx
import psycopg
import pytest

from tests.engines.served import serving
from tests.faults.turn_servers import read_count
from tests.faults.upstream import DONE, STREAM_HEAD, chunk, upstream, usage
from tests.http_clients import make_http_client
from tests.unit.protocols.responses.responding import RESPONSES, put_together

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from tests.engines.served import Served
    from tests.faults.upstream import Conversation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(14_400)]

CUTS = read_count("RESPONSE_CUTS", 24)
KILLS = read_count("RESPONSE_KILLS", 1)
CLIENTS = 6
MODELS = {"reasond/plan_and_solve": 2, "reasond/direct": 1}
"""Models with their calls: the text of the first comes with each step, that of the second while it is written."""
MOST_BYTES = 9_000
"""A whole stream has about as many."""
MOST_RETRIES = 5
LIMIT_S = 3_600.0
QUESTION = re.compile(r"question-\d+")
KEY = re.compile(r"Bearer (\S+)")
REPLY = re.compile(r"Call (\d+) = ")


@dataclass
class Site:
    """Servers over one store, of which any may be dead, and the model that all of them call.

    Each server has its name as the key of its calls, and each reply has a number of its own.

    Attributes:
        calls: how often the model was asked each question.
        made: the question and the server of each call, in order.
        wanted: how many calls each question takes.
        on_record: the numbers of the replies that the store had when a server was killed.
        killed: the names of the servers that were killed.
    """

    store_url: str = ""
    calls: Counter[str] = field(default_factory=Counter)
    made: list[tuple[str, str]] = field(default_factory=list)
    wanted: dict[str, int] = field(default_factory=dict)
    on_record: set[int] = field(default_factory=set)
    killed: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    running: list[Served] = field(default_factory=list)
    cuts: int = 0
    kills: int = 0
    lost: int = 0
    ended: int = 0

    async def answer(self, conversation: Conversation) -> None:
        """Answer a model call with a text that no other call gets."""
        if b'"messages"' not in conversation.body:
            await conversation.answer("404 Not Found", b"{}")
            return
        question = QUESTION.findall(conversation.body.decode())[-1]
        self.calls[question] += 1
        self.made.append((question, KEY.findall(conversation.head)[0]))
        text = f"Call {len(self.made)} = {question} ☂ " + "wörds " * 60
        # Nothing waits for this: it varies what a kill meets.
        await asyncio.sleep(random.uniform(0, 0.05))  # noqa: S311 - no secret
        await conversation.send(STREAM_HEAD + b"connection: close\r\n\r\n")
        for at in range(0, len(text), 60):
            await conversation.send(chunk(text[at : at + 60]))
            await asyncio.sleep(random.uniform(0, 0.04))  # noqa: S311 - no secret
        await conversation.send(chunk("<answer>42</answer>") + chunk(finish="stop") + usage(20, 10) + DONE)

    async def start(self, stack: AsyncExitStack, folder: Path, environ: Mapping[str, str]) -> Served:
        """Start one more server, which ends with `stack`."""
        name = f"server{len(self.names)}"
        own = {**environ, "OPENAI_API_KEY": name, "REASOND__STORE__URL": self.store_url}
        server = await stack.enter_async_context(serving(folder, name, own))
        self.names[server.http] = name
        return server

    def kill(self, server: Served) -> None:
        """End a server by SIGKILL, and see which replies are on record."""
        self.kills += 1
        server.process.kill()
        server.process.wait()
        self.killed.add(self.names[server.http])
        self.on_record |= self.read_replies()

    def read_replies(self) -> set[int]:
        """Return the numbers of the replies that the store has, as records of calls or in what became of them."""
        query = "SELECT body FROM entries"
        if (file := self.store_url.removeprefix("sqlite:///")) != self.store_url:
            with closing(sqlite3.connect(file)) as connection:
                bodies = connection.execute(query).fetchall()
        else:
            with psycopg.connect(self.store_url) as connection:
                bodies = connection.execute(query).fetchall()
        return {int(number) for (body,) in bodies for number in REPLY.findall(body)}

    def check_payments(self) -> int:
        """Check that only calls without a record at the kill of their server were made again; return how many were."""
        kept, numbers = self.read_replies(), range(1, len(self.made) + 1)
        lost = [number for number in numbers if number not in kept]
        assert not self.on_record.intersection(lost), "a reply on record was paid again"
        assert Counter(self.made[number - 1][0] for number in kept) == self.wanted
        assert {self.made[number - 1][1] for number in lost} <= self.killed
        assert all(count <= self.wanted[question] for (question, _), count in Counter(self.made).items())
        return len(lost)

    @property
    def is_done(self) -> bool:
        """Whether there were as many cuts and kills as are wanted."""
        return self.cuts >= CUTS and self.kills >= KILLS

    @asynccontextmanager
    async def reading(self, method: str, path: str, **request: Any) -> AsyncIterator[httpx.Response]:
        """Send a request to any server."""
        server = random.choice(self.running)  # noqa: S311 - no secret
        headers = {"authorization": f"Bearer {server.token}", **request.pop("headers", {})}
        async with (
            make_http_client(base_url=f"http://{server.http}") as client,
            client.stream(method, path, headers=headers, **request) as response,
        ):
            yield response


@dataclass
class Reader:
    """A client of one response: the events that it got, whatever was cut off between them."""

    site: Site
    question: str
    model: str
    is_background: bool
    response_id: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)

    async def read(self, most_bytes: int) -> bool:
        """Read on, up to `most_bytes`, and return whether that was the end."""
        body = {"model": self.model, "input": self.question, "stream": True}
        headers = {"x-client-request-id": self.question}
        if self.response_id and self.is_background:
            after = {"starting_after": str(self.events[-1]["sequence_number"])} if self.events else {}
            path = f"{RESPONSES}/{self.response_id}"
            place = self.site.reading("GET", path, params={"stream": "true", **after})
        else:
            # A request that is sent again is answered from its beginning.
            self.events.clear()
            sent = {**body, "background": self.is_background}
            place = self.site.reading("POST", RESPONSES, json=sent, headers=headers)
        try:
            async with place as response:
                if response.status_code == 400:
                    self._begin_again(await response.aread())
                    return False
                if response.status_code != 200:
                    assert response.status_code in {409, 429, 503}, await response.aread()
                    return False
                return await self._take(response, most_bytes)
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            # Its server was killed.
            await asyncio.sleep(0.05)
            return False

    async def _take(self, response: httpx.Response, most_bytes: int) -> bool:
        rest, got = b"", 0
        async for piece in response.aiter_raw():
            piece = piece[: most_bytes - got]  # noqa: PLW2901 - what is left of it
            got += len(piece)
            *frames, rest = (rest + piece).split(b"\n\n")
            for frame in frames:
                data = frame.partition(b"data: ")[2]
                if data == b"[DONE]":
                    return True
                event = json.loads(data) if data else {}
                if event.get("type") == "error" and "CURSOR_EXPIRED" in json.dumps(event):
                    self._begin_again(data)
                elif event and event["type"] != "error":
                    self.events.append(event)
                    self.response_id = event.get("response", {}).get("id", self.response_id)
            if got >= most_bytes:
                self.site.cuts += 1
                return False
        return False

    def _begin_again(self, told: bytes) -> None:
        """Read from the start: the server has said that text of the answer was lost with its process."""
        assert b"CURSOR_EXPIRED" in told, told
        assert self.site.kills, told
        self.site.lost += 1
        self.events.clear()

    async def read_all(self) -> None:
        """Read to the end, with cuts at random as long as more of them are wanted."""
        async with asyncio.timeout(LIMIT_S):
            cuts = 0
            while True:
                # A whole delivery is settled after some seconds, so a request is not sent again without end.
                may_cut = self.site.cuts < CUTS and (self.is_background or cuts < MOST_RETRIES)
                if await self.read(random.randrange(MOST_BYTES) if may_cut else sys.maxsize):  # noqa: S311 - no secret
                    return
                cuts += 1


async def ask(site: Site, name: int) -> int:
    """Ask one question after another until the site is done, and check what each reader got; return how many."""
    asked = 0
    while not site.is_done:
        model = [*MODELS][(name + asked // 2) % 2]
        question = f"question-{name}{asked:05}"
        reader = Reader(site=site, question=question, model=model, is_background=asked % 2 == 0)
        await reader.read_all()
        whole = replace(reader, is_background=True, events=[])
        while not await whole.read(sys.maxsize):
            pass
        assert put_together(reader.events) == put_together(whole.events)
        assert [each for each in reader.events if "delta" not in each] == [
            each for each in whole.events if "delta" not in each
        ]
        numbers = [each["sequence_number"] for each in reader.events]
        assert numbers == sorted(set(numbers))
        ended = reader.events[-1]["response"]
        assert ended["status"] == "completed", str(ended["error"])
        site.wanted[question] = MODELS[model]
        site.ended += 1
        asked += 1
    return asked


async def kill_now_and_then(site: Site, stack: AsyncExitStack, folder: Path, environ: dict[str, str]) -> None:
    """Kill a server when some responses have ended and more calls have begun, and start another in its place."""
    for _ in range(KILLS):
        # A run that ends several processes before it gets further is given up.
        ended = site.ended + CLIENTS
        while site.ended < ended and not site.is_done:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        wanted = sum(site.calls.values()) + random.randrange(1, 4)  # noqa: S311 - no secret
        while sum(site.calls.values()) < wanted:  # noqa: ASYNC110 - the model tells nobody
            await asyncio.sleep(0.01)
        dead = random.choice(site.running)  # noqa: S311 - no secret
        site.kill(dead)
        site.running[site.running.index(dead)] = await site.start(stack, folder, environ)


def make_store(kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    """Return the address of an empty store."""
    if kind == "sqlite":
        return f"sqlite:///{folder / 'reasond.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_what_is_cut_off_is_whole_in_the_end_and_was_paid_once(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    site = Site(store_url=make_store(kind, tmp_path, request))
    async with upstream(site.answer) as model, AsyncExitStack() as stack:
        environ = {
            "REASOND__STORE__LEASE_S": "3",
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__BASE_URL": model.address,
            "REASOND__LLM__MODEL": "fake",
        }
        for _ in range(1 if kind == "sqlite" else 2):
            site.running.append(await site.start(stack, tmp_path, environ))
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(site, name)) for name in range(1, CLIENTS + 1)]
            group.create_task(kill_now_and_then(site, stack, tmp_path, environ))
        again = site.check_payments()
    responses = sum(each.result() for each in asked)
    sys.stdout.write(
        f"{kind}: {site.cuts} cuts, {site.kills} SIGKILLs, {responses} responses: 0 lost, doubled or reordered; "
        f"{again} calls had no record at a kill and were made again, {site.lost} readers were told that text is lost\n"
    )
