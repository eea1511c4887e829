"""The clients that benchmarks/adapter.py compares: each makes one call and reads the answer."""

from __future__ import annotations

import json
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import aiohttp
import httpx2
import openai

from reasond_server.llm.model import ChatRequest, Finished, Message, Role, Text
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.building import build_model

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, Sequence

    from reasond_server.llm.openai.openai_model import OpenAIModel

MAX_TOKENS = 1024
TEMPERATURE = 0.7
KEY = "none"
DATA = b"data: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The messages to send, as `messages` for reasond and as `dicts` for all others; both exist before the call."""

    messages: Sequence[Message]
    dicts: Sequence[dict[str, str]]


class Client(Protocol):
    """Makes calls to one upstream; the model name selects the upstream's behaviour."""

    async def call(self, model: str, said: Conversation, *, is_streamed: bool) -> int:
        """Return the characters of the answer."""
        ...


def body_of(model: str, said: Conversation, *, is_streamed: bool) -> dict[str, Any]:
    """Return the request as JSON values."""
    body = {
        "model": model,
        "messages": said.dicts,
        "max_tokens": MAX_TOKENS,
        "temperature": TEMPERATURE,
    }
    return {**body, "stream": True, "stream_options": {"include_usage": True}} if is_streamed else body


class Created:
    """`create()` of the openai package, used as its documentation shows."""

    def __init__(self, client: openai.AsyncOpenAI) -> None:
        self._client = client

    async def call(self, model: str, said: Conversation, *, is_streamed: bool) -> int:
        """See Client."""
        body = body_of(model, said, is_streamed=is_streamed)
        if not is_streamed:
            whole = await self._client.chat.completions.create(**body)
            return len(whole.choices[0].message.content or "")
        characters = 0
        async with await self._client.chat.completions.create(**body) as chunks:
            async for chunk in chunks:
                if chunk.choices:
                    characters += len(chunk.choices[0].delta.content or "")
        return characters


class Posted:
    """`post()` of the openai package with a minimal reader: the layer below create()."""

    def __init__(self, client: openai.AsyncOpenAI) -> None:
        self._client = client

    async def call(self, model: str, said: Conversation, *, is_streamed: bool) -> int:
        """See Client."""
        body = body_of(model, said, is_streamed=is_streamed)
        if not is_streamed:
            whole = await self._client.post("/chat/completions", cast_to=httpx2.Response, body=body)
            return characters_of(whole.content)
        answer = await self._client.post(
            "/chat/completions",
            cast_to=httpx2.Response,
            body=body,
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )
        response = cast("httpx2.Response", answer)  # what it returns is the response, whatever its types say
        try:
            return await streamed_characters(response.aiter_bytes())
        finally:
            await response.aclose()


class Bare:
    """aiohttp and nothing else: no retries, no deadlines, no limits, no error types."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self._session = session
        self._url = f"{base_url}/chat/completions"

    async def call(self, model: str, said: Conversation, *, is_streamed: bool) -> int:
        """See Client."""
        body = body_of(model, said, is_streamed=is_streamed)
        async with self._session.post(self._url, json=body) as response:
            if not is_streamed:
                return characters_of(await response.read())
            return await streamed_characters(response.content.iter_any())


class Adapter:
    """The server's own backend: always streamed, with all its limits, errors and counts."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._models: dict[str, OpenAIModel] = {}

    async def call(self, model: str, said: Conversation, *, is_streamed: bool) -> int:
        """See Client; `is_streamed` is ignored: the adapter always streams, because closing it frees the engine."""
        del is_streamed
        backend = self._models.get(model)
        if backend is None:
            options = BackendOptions(name="bench", model=model, base_url=self._base_url, api_key=KEY)
            backend = self._models[model] = build_model(options)
        request = ChatRequest(messages=said.messages, max_tokens=MAX_TOKENS, temperature=TEMPERATURE)
        characters = 0
        has_ended = False
        async with aclosing(backend.stream(request)) as events:
            async for event in events:
                if isinstance(event, Text):
                    characters += len(event.text)
                has_ended = isinstance(event, Finished)
        return characters if has_ended else 0

    async def aclose(self) -> None:
        """Close the connections."""
        for model in self._models.values():
            await model.aclose()


def characters_of(body: bytes) -> int:
    """Return the length of the answer in a whole response, in characters."""
    return len(json.loads(body)["choices"][0]["message"]["content"])


async def streamed_characters(parts: AsyncIterable[bytes]) -> int:
    """Return the length of the answer in a stream, in characters, reading nothing else."""
    characters, rest = 0, b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(DATA) and line != b"data: [DONE]":
                choices = json.loads(line[len(DATA) :])["choices"]
                characters += len(choices[0]["delta"].get("content") or "") if choices else 0
    return characters


@asynccontextmanager
async def created_by_default(base_url: str) -> AsyncGenerator[Client, None]:
    """Open `create()` on the package's default transport."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key=KEY, max_retries=0) as client:
        yield Created(client)


@asynccontextmanager
async def created_on_aiohttp(base_url: str) -> AsyncGenerator[Client, None]:
    """Open `create()` on the package's aiohttp transport."""
    async with openai.AsyncOpenAI(
        base_url=base_url, api_key=KEY, max_retries=0, http_client=openai.DefaultAioHttpClient()
    ) as client:
        yield Created(client)


@asynccontextmanager
async def posted_on_aiohttp(base_url: str) -> AsyncGenerator[Client, None]:
    """Open `post()` on the package's aiohttp transport."""
    async with openai.AsyncOpenAI(
        base_url=base_url, api_key=KEY, max_retries=0, http_client=openai.DefaultAioHttpClient()
    ) as client:
        yield Posted(client)


@asynccontextmanager
async def bare_aiohttp(base_url: str) -> AsyncGenerator[Client, None]:
    """Open aiohttp alone."""
    async with aiohttp.ClientSession() as session:
        yield Bare(session, base_url)


@asynccontextmanager
async def our_adapter(base_url: str) -> AsyncGenerator[Client, None]:
    """Open the server's own backend."""
    adapter = Adapter(base_url)
    try:
        yield adapter
    finally:
        await adapter.aclose()


def history(messages: int, size: int = 2048) -> Conversation:
    """Return a conversation of `messages` messages that ends with the user's; the longest has `size` bytes."""
    first = Message(role=Role.SYSTEM, content="Reason step by step.")
    return of_messages([first, *turns(messages - 2), Message(role=Role.USER, content="q" * size)])


def went_on(before: Conversation, size: int = 2048) -> Conversation:
    """Return the conversation with two more messages; the second is the user's and has `size` bytes."""
    new = of_messages([*turns(1), Message(role=Role.USER, content="q" * size)])
    return Conversation(messages=[*before.messages, *new.messages], dicts=[*before.dicts, *new.dicts])


def turns(number: int) -> list[Message]:
    """Return short messages of user and assistant."""
    return [
        Message(role=Role.ASSISTANT if at % 2 else Role.USER, content=f"Step {at}: " + "a" * 60) for at in range(number)
    ]


def of_messages(messages: Sequence[Message]) -> Conversation:
    """Return messages in both forms."""
    dicts = [{"role": str(message.role), "content": message.content} for message in messages]
    return Conversation(messages=messages, dicts=dicts)
