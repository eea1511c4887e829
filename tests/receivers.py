"""A receiver of webhooks on loopback, for tests."""

from __future__ import annotations

import asyncio
import base64
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.accepting import accepting

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

SECRET: Final = "whsec_" + base64.b64encode(b"a secret of twenty-four bytes").decode()
OLD_SECRET: Final = "whsec_" + base64.b64encode(b"what was the secret before it").decode()
LIMIT_S: Final = 120.0


@dataclass(frozen=True)
class Message:
    """A request as it came: its path, its headers by small names, and its body."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


@dataclass
class Receiver:
    """Keeps every request, and answers with the next of `answers`; without one with 204.

    An answer is a status with further header lines, or None: nothing is answered until the sender goes.
    """

    port: int = 0
    answers: list[str | None] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    came: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): each.strip() for name, _, each in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers["content-length"]))
            answer = self.answers.pop(0) if self.answers else "204 No Content"
            async with self.came:
                self.messages.append(Message(first.split(" ")[1], headers, body))
                self.came.notify_all()
            if answer is None:
                await reader.read()
            else:
                writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n".encode())
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def wait_for(self, count: int) -> list[Message]:
        """Return the messages once there are `count`."""
        async with asyncio.timeout(LIMIT_S), self.came:
            await self.came.wait_for(lambda: len(self.messages) >= count)
        return self.messages


@asynccontextmanager
async def receiving(port: int = 0) -> AsyncGenerator[Receiver, None]:
    receiver = Receiver()
    async with accepting(receiver.handle, port=port) as receiver.port:
        yield receiver


def webhook_environ(url: str, name: str = "desk", **values: str) -> dict[str, str]:
    """Return the environment that configures a receiver on loopback."""
    keys = {"URL": url, "SECRETS": f'["{SECRET}"]', "ALLOW_PRIVATE": "true"} | {
        key.upper(): value for key, value in values.items()
    }
    return {f"REASOND__WEBHOOKS__ENDPOINTS__{name.upper()}__{key}": value for key, value in keys.items()}
