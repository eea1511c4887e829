"""Run by the tests: OpenAI's own client behind a proxy that cuts its connections, until it is told that all are made.

Usage: python_cut.py DIRECT_URL QUESTIONS BASE_URL TOKEN. Each response is put together from what came between the cuts,
and compared with its whole stream, which is read without the proxy.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx
import openai
from openai import OpenAI

ENDS = {"response.completed", "response.failed", "response.incomplete"}
CUT = (openai.APIConnectionError, openai.InternalServerError, httpx.TransportError, json.JSONDecodeError)


def put_together(events: list[dict[str, Any]]) -> list[Any]:
    """Return the events that are no deltas, and the text of all deltas of each item."""
    texts: dict[str, str] = {}
    for event in events:
        if "delta" in event:
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
    return [[event for event in events if "delta" not in event], texts]


def read_in_pieces(client: OpenAI, question: str) -> list[dict[str, Any]]:
    """Return the events of a background response, read on after each cut."""
    events: list[dict[str, Any]] = []
    key = question.replace(" ", "-")
    asked: Any = {"model": "reasond/direct", "input": question, "background": True, "stream": True}
    while not events or events[-1]["type"] not in ENDS:
        try:
            if events:
                response_id, after = events[0]["response"]["id"], events[-1]["sequence_number"]
                stream: Any = client.responses.retrieve(response_id, stream=True, starting_after=after)
            else:
                stream = client.responses.create(**asked, extra_headers={"Idempotency-Key": key})
            # One by one: what came before a cut is kept.
            events.extend(event.to_dict() for event in stream)
        except CUT:
            continue
    return events


def main() -> None:
    direct_url, questions, base_url, token = sys.argv[1:]
    client = OpenAI(base_url=base_url, api_key=token, max_retries=100)
    direct = OpenAI(base_url=direct_url, api_key=token)
    wrong, texts = [], set()
    for number in range(int(questions)):
        question = f"What is 6 times 7? {number}"
        events = read_in_pieces(client, question)
        whole = [each.to_dict() for each in direct.responses.retrieve(events[0]["response"]["id"], stream=True)]
        numbers = [event["sequence_number"] for event in events]
        if put_together(events) != put_together(whole) or numbers != sorted(set(numbers)):
            wrong.append(question)
        # The library itself sends a request again whose answer was cut off.
        texts.add(client.responses.create(model="reasond/direct", input=f"{question} Whole.").output_text)
    print(json.dumps({"client": "openai", "wrong": wrong, "texts": len(texts)}))  # noqa: T201 - the test reads it


main()
