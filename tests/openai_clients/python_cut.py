"""Run by the tests: unmodified clients whose connections are cut and whose servers are killed, and who ask again.

Usage: python_cut.py QUESTIONS BASE_URL TOKEN. Each answer is told as a line of JSON, with whether it is right: it is
put together from what came between the cuts, and compared with the response as it is read afterwards.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import httpx
import openai
from openai import AsyncOpenAI, OpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.openai import OpenAIProvider

if TYPE_CHECKING:
    from collections.abc import Callable

MODEL = "reasond/direct"
RETRIES = 100
ENDS = {"response.completed", "response.failed", "response.incomplete"}
CUT = (openai.APIConnectionError, openai.InternalServerError, httpx.TransportError, json.JSONDecodeError)


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


def ask_pydantic_ai(client: OpenAI, question: str) -> dict[str, Any]:
    """Ask in the background, which pydantic-ai polls."""

    async def ask() -> Any:
        own = AsyncOpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=RETRIES)
        model = OpenAIResponsesModel(MODEL, provider=OpenAIProvider(openai_client=own))
        settings = OpenAIResponsesModelSettings(openai_background=True)
        return await Agent(model, model_settings=settings).run(question)

    found = asyncio.run(ask())
    text = client.responses.retrieve(found.response.provider_response_id).output_text
    return {"is_right": bool(text) and found.output == text}


def main() -> None:
    questions, base_url, token = sys.argv[1:]
    client = OpenAI(base_url=base_url, api_key=token, max_retries=RETRIES)
    ways = {
        "openai background": lambda question: stream(client, question, is_background=True),
        "openai stream": lambda question: stream(client, question, is_background=False),
        "openai whole": lambda question: create(client, question),
        "pydantic-ai background": lambda question: ask_pydantic_ai(client, question),
    }
    for number in range(int(questions)):
        name = [*ways][number % len(ways)]
        question = f"What is 6 times 7? question-{number}"
        print(json.dumps({"client": name, "question": f"question-{number}", **ways[name](question)}), flush=True)  # noqa: T201 - the test reads it


main()
