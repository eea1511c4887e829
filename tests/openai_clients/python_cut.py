"""Run by the tests: unmodified clients whose connections are cut and whose servers are killed, and who ask again.

Usage: python_cut.py QUESTIONS BASE_URL TOKEN. Each answer is told as a line of JSON, with whether it is right: it is
put together from what came between the cuts, and compared with the response as it is read afterwards.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx2
import openai
from openai import AsyncOpenAI, OpenAI
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelAPIError, UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.openai import OpenAIProvider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

MODEL = "reasond/direct"
STEPS = "reasond/chain_of_thought"
"""A model whose text comes with its step: none of it is lost with a server, and no stream begins again."""
RETRIES = 100
LIMIT_S = 600.0
ENDS = {"response.completed", "response.failed", "response.incomplete"}
CUT = (openai.APIConnectionError, openai.InternalServerError, json.JSONDecodeError)


def put_together(events: list[dict[str, Any]]) -> list[Any]:
    """Return the events that are no deltas, and the text of all deltas of each item."""
    texts: dict[str, str] = {}
    for event in events:
        if "delta" in event:
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
    return [[event for event in events if "delta" not in event], texts]


def follow(open_stream: Callable[[list[dict[str, Any]]], Any], *, resumes: bool) -> tuple[list[dict[str, Any]], int]:
    """Return the events of a response, read on after each cut or from its start, and how often text was lost."""
    events: list[dict[str, Any]] = []
    lost = 0
    while not events or events[-1]["type"] not in ENDS:
        if not resumes:
            events.clear()
        try:
            # One by one: what came before a cut is kept.
            events.extend(event.to_dict() for event in open_stream(events))
        except CUT:
            continue
        except openai.APIError as error:
            if "CURSOR_EXPIRED" not in str(error.body):
                raise
            # The process that wrote the text was killed: the server says so, and the client begins again.
            lost += 1
            events.clear()
    return events, lost


def stream(client: OpenAI, question: str, *, is_background: bool) -> dict[str, Any]:
    """Stream an answer, and compare it with the response's own stream."""
    asked: Any = {"model": MODEL, "input": question, "background": is_background, "stream": True}

    def go_on(events: list[dict[str, Any]]) -> Any:
        if not events:
            return client.responses.create(**asked, extra_headers={"Idempotency-Key": question.replace(" ", "-")})
        response_id, after = events[0]["response"]["id"], events[-1]["sequence_number"]
        return client.responses.retrieve(response_id, stream=True, starting_after=after)

    events, lost = follow(go_on, resumes=is_background)
    own_id = events[0]["response"]["id"]
    whole, _ = follow(lambda _: client.responses.retrieve(own_id, stream=True), resumes=False)
    numbers = [event["sequence_number"] for event in events]
    is_whole = put_together(events) == put_together(whole) and numbers == sorted(set(numbers))
    return {"is_right": is_whole and events[-1]["type"] == "response.completed", "lost": lost}


def create(client: OpenAI, question: str) -> dict[str, Any]:
    """Ask for a whole answer: the library itself sends a request again whose answer was cut off."""
    made = client.responses.create(model=MODEL, input=question)
    return {"is_right": bool(made.output_text) and made.output_text == client.responses.retrieve(made.id).output_text}


class EndingStream(httpx2.AsyncByteStream):
    """The pieces of a stream, which ends where it breaks off."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with suppress(httpx2.TransportError):
            async for piece in self._inner:
                yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


class EndingTransport(httpx2.AsyncHTTPTransport):
    """Ends streams that break off as some proxies do: pydantic-ai reads on by itself only after such an end.

    `resumed` counts the streams that it read on.
    """

    resumed = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.resumed += b"starting_after" in request.url.query
        response = await super().handle_async_request(request)
        if response.headers["content-type"].startswith("text/event-stream"):
            response.stream = EndingStream(response.stream)
        return response


def ask_pydantic_ai(client: OpenAI, question: str, *, is_stream: bool) -> dict[str, Any]:
    """Ask in the background; pydantic-ai polls, or reads a stream on after its last event."""

    async def ask() -> tuple[str, str, int]:
        transport = EndingTransport()
        web = httpx2.AsyncClient(transport=transport, timeout=LIMIT_S)
        own = AsyncOpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=RETRIES, http_client=web)
        model = OpenAIResponsesModel(STEPS if is_stream else MODEL, provider=OpenAIProvider(openai_client=own))
        key = {"Idempotency-Key": question.replace(" ", "-")}
        agent = Agent(model, model_settings=OpenAIResponsesModelSettings(openai_background=True, extra_headers=key))
        while is_stream:
            # It gives up where nothing had come before the cut.
            with suppress(ModelAPIError, UnexpectedModelBehavior):
                async with agent.run_stream(question) as streamed:
                    output = await streamed.get_output()
                return output, str(streamed.response.provider_response_id), transport.resumed
        found = await agent.run(question)
        return found.output, str(found.response.provider_response_id), 0

    output, response_id, resumed = asyncio.run(ask())
    text = client.responses.retrieve(response_id).output_text
    return {"is_right": bool(text) and output == text, "resumed": resumed}


def main() -> None:
    questions, base_url, token = sys.argv[1:]
    client = OpenAI(base_url=base_url, api_key=token, max_retries=RETRIES)
    ways = {
        "openai background": lambda question: stream(client, question, is_background=True),
        "openai stream": lambda question: stream(client, question, is_background=False),
        "openai whole": lambda question: create(client, question),
        "pydantic-ai background": lambda question: ask_pydantic_ai(client, question, is_stream=False),
        "pydantic-ai stream": lambda question: ask_pydantic_ai(client, question, is_stream=True),
    }
    for number in range(int(questions)):
        name = [*ways][number % len(ways)]
        question = f"What is 6 times 7? question-{number}"
        print(json.dumps({"client": name, "question": f"question-{number}", **ways[name](question)}), flush=True)  # noqa: T201 - the test reads it


main()
