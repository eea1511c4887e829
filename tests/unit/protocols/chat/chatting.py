"""A whole server in the process of a test, and a client that speaks to its /v1."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reasond_server.testing import FunctionModel, running_server
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    import httpx

    from reasond_server.assembly.app import Listening
    from reasond_server.llm.model import ChatModel
    from reasond_server.strategies.strategy import ReasoningStrategy

CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "What is 6 times 7?"}]


@dataclass(frozen=True, kw_only=True)
class ChatSite:
    """A server, and a client that sends its token."""

    listening: Listening
    client: httpx.AsyncClient

    async def ask(self, *, headers: Mapping[str, str] | None = None, **body: Any) -> httpx.Response:
        return await self.client.post(CHAT, json={"model": "reasond", "messages": QUESTION, **body}, headers=headers)

    async def stream(self, *, headers: Mapping[str, str] | None = None, **body: Any) -> list[str]:
        """Return the blocks of a stream."""
        asked = {"model": "reasond", "messages": QUESTION, "stream": True, **body}
        async with self.client.stream("POST", CHAT, json=asked, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            return (await response.aread()).decode().split("\n\n")[:-1]


@asynccontextmanager
async def serve_chats(
    model: ChatModel | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    strategies: Sequence[ReasoningStrategy[Any]] | None = None,
) -> AsyncIterator[ChatSite]:
    """Run a server whose model answers every question with 42, unless there is another one."""
    chosen = model or FunctionModel(lambda _: "6 times 7 is 42.<answer>42</answer>")
    async with running_server(model=chosen, environ=environ, strategies=strategies) as listening:
        headers = {"authorization": f"Bearer {listening.token}"}
        async with make_http_client(base_url=listening.http, headers=headers, timeout=180) as client:
            yield ChatSite(listening=listening, client=client)


def chunks_of(blocks: Sequence[str]) -> list[dict[str, Any]]:
    """Return the chunks of a stream that ended well, without its comments."""
    assert blocks[-1] == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1] if not block.startswith(":")]


def deltas_of(chunks: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return the joined texts of one member of the deltas."""
    return "".join(chunk["choices"][0]["delta"].get(name, "") for chunk in chunks if chunk["choices"])
