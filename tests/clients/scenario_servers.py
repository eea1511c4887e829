"""The servers of the scenarios, in this process, with a model that follows the scripts of all scenarios."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from reasond_server.access.token_keys import SigningKey
from reasond_server.access.tokens import TokenMinter
from reasond_server.assembly.app import Server
from reasond_server.config import load
from reasond_server.errors.model import ModelFailedError
from reasond_server.llm.model import ModelFinish, Role
from reasond_server.testing import FunctionModel, Reply
from reasond_server.types import ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from typing import Self

    from reasond_server.llm.model import ChatRequest
    from tests.clients.scenarios import Scenario

SECRET: Final = "a key of the scenarios that nobody guesses 41f7"
_NAME: Final = re.compile(r"scenario ([a-z0-9-]+):")
_STEP: Final = re.compile(r"step (\d+) of")
_STEP_WORDS: Final = 24
_LONG_AGO: Final = timedelta(hours=2)
_LIFETIME_S: Final = 3600

COMMON: Final = {
    "REASOND_CONFIG": os.devnull,
    "REASOND__SERVER__GRPC_ADDRESS": "127.0.0.1:0",
    "REASOND__SERVER__HTTP_ADDRESS": "",
    "REASOND__SERVER__DRAIN_DELAY_S": "0",
    "REASOND__SERVER__DRAIN_GRACE_S": "0",
    "REASOND__AUTH__KEYS": f'[{{ id = "scenarios", secret = "{SECRET}" }}]',
    "REASOND__REASONING__PERFORMANCE__MAX_CONCURRENT_REQUESTS": "200",
}
KINDS: Final[Mapping[str, Mapping[str, str]]] = {
    "plain": {},
    "talkative": {"REASOND__SERVER__HEARTBEAT_INTERVAL_S": "0.1"},
    # Of an hour: where a window ends between two requests, the second one is allowed.
    "limited": {"REASOND__LIMITS__REQUESTS_PER_HOUR": "1"},
    "aging": {
        "REASOND__SERVER__MAX_CONNECTION_AGE_S": "2",
        "REASOND__SERVER__MAX_CONNECTION_AGE_GRACE_S": "0",
    },
    "draining": {},
}
"""The settings of each kind of server."""


def mint(name: str, *, is_expired: bool = False) -> str:
    """Return a token for a tenant that is called as its scenario."""
    minter = TokenMinter(
        key=SigningKey(id="scenarios", secret=SECRET.encode()),
        issuer="reasond",
        audience="reasond",
        max_lifetime_s=_LIFETIME_S,
    )
    now = datetime.now(UTC) - (_LONG_AGO if is_expired else timedelta())
    return minter.mint(subject=name, permissions=["admin"], tenant=name, lifetime_s=_LIFETIME_S, now=now)


@dataclass
class ScriptOfAll:
    """Replies to every scenario as its script says, and counts its calls.

    Which step comes next stands in the prompt, so that an interrupted call that is made again gets the same reply.
    """

    scenarios: Mapping[str, Scenario]
    calls: Counter[str] = field(default_factory=Counter)
    listeners: dict[str, Callable[[int], None]] = field(default_factory=dict)

    def reply(self, request: ChatRequest) -> Reply:
        """Return the reply to a request."""
        prompt = "\n".join(message.content for message in request.messages)
        match = _NAME.search(prompt)
        assert match is not None, f"no scenario in {prompt[:200]!r}"
        name = match[1]
        script = self.scenarios[name].model
        self.calls[name] += 1
        if listener := self.listeners.get(name):
            listener(self.calls[name])
        hold = asyncio.Event()
        if script.answer is not None or self.calls[name] < script.steps:
            asyncio.get_running_loop().call_later(script.pause_ms / 1000, hold.set)
        if script.error:
            return Reply(error=ModelFailedError("The model failed."))
        results = sum(message.role is Role.TOOL for message in request.messages)
        if results < len(script.calls):
            arguments = json.dumps(script.calls[results])
            call = ToolCall(call_id=f"call_{results}", name="add", arguments_json=arguments)
            return Reply(tool_calls=[call], hold=hold)
        step = 1 + max((int(found) for found in _STEP.findall(prompt)), default=0)
        if step < script.steps:
            text = f"step {step} of {name} " + " ".join(f"w{step}x{place}" for place in range(_STEP_WORDS))
            return Reply(text=text, hold=hold, finish=ModelFinish.LENGTH)
        return Reply(text=(script.answer or "") if script.calls else f"<answer>{script.answer}</answer>", hold=hold)


class ScenarioServers:
    """Servers of every kind that is asked for, with one model; as a context manager it stops them all."""

    def __init__(self, scenarios: Iterable[Scenario], folder: Path) -> None:
        self.script = ScriptOfAll(scenarios={each.name: each for each in scenarios})
        self.targets: dict[str, str] = {}
        self._folder = folder
        self._running: dict[str, Server] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for kind in sorted({each.server for each in self.script.scenarios.values()}):
            await self._start(kind)
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._running.values():
            await server.stop()

    async def succeed(self, kind: str) -> str:
        """Drain a server, start its successor on the same store, and return where that listens."""
        await self._running.pop(kind).drain()
        return await self._start(kind)

    async def _start(self, kind: str) -> str:
        store = f"sqlite:///{self._folder / 'draining.db'}" if kind == "draining" else "memory:"
        environ = {**COMMON, **KINDS[kind], "REASOND__STORE__URL": store}
        model = FunctionModel(self.script.reply, has_native_tools=True)
        server = Server(load(None, environ), environ=environ, model=model)
        listening = await server.start()
        self._running[kind] = server
        self.targets[kind] = listening.grpc
        return listening.grpc
