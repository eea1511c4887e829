"""Measure what a call to a model costs beside the openai package's `create()`, and the memory of the client.

Prints a table and writes results/model_calls.json beside this file. Every round makes every kind of call with both, one
after the other; the figure is the median over the rounds of the ratio of processor time within a round. The upstream is
another process, on a second processor if there is one.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai

from benchmarks.machine import new_event_loop, pin, two_processors, write_report
from benchmarks.startup import resident_megabytes, running
from benchmarks.upstream import running_upstream
from reasond_server.llm.model import ChatRequest, Message, Role, Text
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.model_factory import build_model

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reasond_server.llm.openai.openai_model import OpenAIModel

RESULTS = Path(__file__).resolve().parent / "results" / "model_calls.json"
PACKAGES = ("reasond-server", "openai", "aiohttp", "httpx2")
ROUNDS, CALLS, CHUNKS, MAX_TOKENS = 5, 50, 100, 1024
SIZE = "bytes=2048"
SHORT, LONG, STREAM, CHUNK = "call, 2 messages", "call, 100 messages", "100-chunk stream", "chunk"
KINDS = {SHORT: (2, f"fake?{SIZE}"), LONG: (100, f"fake?{SIZE}"), STREAM: (2, f"fake?{SIZE}&chunks={CHUNKS}")}
GOALS = {SHORT: 0.55, LONG: 0.15, CHUNK: 0.1}
LITELLM_MEGABYTES, MEMORY_GOAL = 325, 0.42


def build_messages(number: int) -> list[Message]:
    """Return a conversation of messages of 1 KiB."""
    roles = (Role.USER, Role.ASSISTANT)
    return [Message(role=roles[index % 2], content=f"{index} " * 256) for index in range(number)]


async def create(client: openai.AsyncOpenAI, model: str, messages: Sequence[Message]) -> int:
    """Return the characters of an answer to `create()`; streamed where there are chunks."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": one.role.value, "content": one.content} for one in messages],
        "max_tokens": MAX_TOKENS,
    }
    if "chunks" not in model:
        return len((await client.chat.completions.create(**body)).choices[0].message.content or "")
    characters = 0
    async with await client.chat.completions.create(**body, stream=True) as chunks:
        async for chunk in chunks:
            characters += len(chunk.choices[0].delta.content or "") if chunk.choices else 0
    return characters


async def stream(model: OpenAIModel, messages: Sequence[Message]) -> int:
    """Return the characters of an answer of our backend, which always streams."""
    async with aclosing(model.stream(ChatRequest(messages=messages, max_tokens=MAX_TOKENS))) as events:
        return sum([len(event.text) async for event in events if isinstance(event, Text)])


async def time_calls(ask: Callable[[], Awaitable[int]]) -> float:
    """Return the microseconds of processor time of a call; a first one warms up."""
    await ask()
    gc.collect()
    begun = time.process_time_ns()
    for _ in range(CALLS):
        await ask()
    return (time.process_time_ns() - begun) / CALLS / 1000


async def measure_round(client: openai.AsyncOpenAI, base_url: str) -> dict[str, tuple[float, float]]:
    """Return by kind the microseconds of processor time of a call by `create()` and by ours."""
    figures: dict[str, tuple[float, float]] = {}
    for kind, (number, model) in KINDS.items():
        messages = build_messages(number)
        backend = build_model(BackendOptions(name="bench", model=model, base_url=base_url, api_key="none"))
        theirs = await time_calls(partial(create, client, model, messages))
        figures[kind] = (theirs, await time_calls(partial(stream, backend, messages)))
        await backend.aclose()
    shares = zip(figures[STREAM], figures[SHORT], strict=True)
    theirs, ours = ((many - one) / (CHUNKS - 1) for many, one in shares)
    return {**figures, CHUNK: (theirs, ours)}


async def measure_calls(base_url: str) -> list[dict[str, tuple[float, float]]]:
    """Return the figures of all rounds."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        return [await measure_round(client, base_url) for _ in range(ROUNDS)]


def measure_memory(base_url: str) -> float:
    """Return the resident megabytes of a server with a backend, when it is ready."""
    backend = {"REASOND__LLM__PROVIDER": "openai", "REASOND__LLM__MODEL": "fake", "REASOND__LLM__BASE_URL": base_url}
    with running("memory:", backend) as (_, process_id, _addresses):
        return resident_megabytes(process_id)


def main() -> None:
    """Measure, print and save."""
    first, second = two_processors()
    pin(first)
    with running_upstream(core=second) as base_url:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            rounds = runner.run(measure_calls(base_url))
        memory = measure_memory(base_url)
    rows = [
        {
            "what": kind,
            "create": round(statistics.median(one[kind][0] for one in rounds), 1),
            "ours": round(statistics.median(one[kind][1] for one in rounds), 1),
            "ratio": round(statistics.median(one[kind][1] / one[kind][0] for one in rounds), 3),
            "goal": GOALS.get(kind),
        }
        for kind in (*KINDS, CHUNK)
    ]
    for row in rows:
        times = f"create() {row['create']:>9} us, ours {row['ours']:>9} us"
        print(f"{row['what']:<20} {times}, share {row['ratio']}, goal {row['goal']}")
    share = memory / LITELLM_MEGABYTES
    print(f"resident with a backend: {memory:.0f} MB, {share:.2f} of LiteLLM's {LITELLM_MEGABYTES}, goal {MEMORY_GOAL}")
    write_report(RESULTS, PACKAGES, rows=rows, resident_mb=round(memory, 1))


if __name__ == "__main__":
    main()
