"""Measure how soon a model engine is free again after its caller has gone away: `make bench`.

Prints a table and writes results/cancel.json beside this file. A real llama.cpp server runs a model that never stops by
itself and may write 32,000 tokens. Calls are abandoned after their first token, once by closing the adapter's stream
and once by a gRPC client that disconnects. The time ends when `/slots` shows no busy slot; one query takes about a
millisecond, which is included.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import circumstances, new_event_loop
from reasond import AsyncClient
from reasond_server.llm.model import ChatRequest, Message, Role
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.building import build_model
from reasond_server.llm.profiles import find_profile
from reasond_server.testing import running_server
from tests.engines.serving import running_engine

if TYPE_CHECKING:
    from reasond_server.llm.model import ChatModel
    from tests.engines.serving import Engine

RESULTS = Path(__file__).resolve().parent / "results" / "cancel.json"
PACKAGES = ("reasond-server", "openai", "aiohttp", "grpcio", "xllamacpp")
CANCELS = 200
WINDOW = 32_768
MOST_TOKENS = 32_000
GOAL_MS = 100.0
LIMIT_S = 30.0
MILLI = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """How long the slot stayed busy, in milliseconds, over `cancels` calls."""

    name: str
    cancels: int
    p50_ms: float
    p99_ms: float
    longest_ms: float
    tokens_written: int

    @property
    def is_met(self) -> bool:
        """Whether 99 of 100 slots are free within the goal."""
        return self.p99_ms < GOAL_MS


def measure_of(name: str, seconds: list[float], *, tokens_written: int) -> Measure:
    """Return the figures of many cancels."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    p50, p99, longest = (round(value * MILLI, 2) for value in (cuts[49], cuts[98], max(seconds)))
    return Measure(
        name=name,
        cancels=len(seconds),
        p50_ms=p50,
        p99_ms=p99,
        longest_ms=longest,
        tokens_written=tokens_written,
    )


def await_slots(engine: Engine, busy: int) -> None:
    """Wait until `busy` slots are busy."""
    limit = time.monotonic() + LIMIT_S
    while engine.busy_slots() != busy:
        if time.monotonic() > limit:
            raise SystemExit(f"there are not {busy} busy slots after {LIMIT_S:g} s")


async def streams(engine: Engine, model: ChatModel) -> list[float]:
    """Close the stream of the adapter after its first event, many times."""
    ask = (Message(role=Role.USER, content="Go on."),)
    seconds = []
    for _ in range(CANCELS):
        request = ChatRequest(messages=ask, max_tokens=MOST_TOKENS, temperature=0.0)
        async with aclosing(model.stream(request)) as events:
            await anext(events)
            begun = time.perf_counter()
        await asyncio.to_thread(await_slots, engine, 0)
        seconds.append(time.perf_counter() - begun)
    return seconds


async def clients(engine: Engine, model: ChatModel) -> list[float]:
    """Disconnect a gRPC client in the middle of a run, many times."""
    seconds = []
    async with running_server(model=model) as server, AsyncClient(server.grpc, token=server.token) as client:
        for _ in range(CANCELS):
            config = {"max_tokens": MOST_TOKENS}
            call = asyncio.create_task(client.reason("Go on.", strategy="chain_of_thought", config=config))
            await asyncio.to_thread(await_slots, engine, 1)
            begun = time.perf_counter()
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
            await asyncio.to_thread(await_slots, engine, 0)
            seconds.append(time.perf_counter() - begun)
    return seconds


async def measure(engine: Engine) -> list[Measure]:
    """Measure both ways of abandoning a call."""
    profile = find_profile(engine.chain, engine.base_url, "llamacpp")
    model = build_model(BackendOptions(name="engine", model=engine.chain, base_url=engine.base_url, profile=profile))
    measures, written = [], engine.tokens_written()
    try:
        for name, run in (("the adapter's stream is closed", streams), ("a gRPC client goes away", clients)):
            seconds = await run(engine, model)
            now = engine.tokens_written()
            measures.append(measure_of(name, seconds, tokens_written=now - written))
            written = now
    finally:
        await model.aclose()
    return measures


def main() -> None:
    """Measure, print and write the results."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_engine("endless", folder=Path(folder), slots=1, window=WINDOW) as engine,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        measures = runner.run(measure(engine))
    for one in measures:
        verdict = "met" if one.is_met else "MISSED"
        print(
            f"{one.name:<31} p50 {one.p50_ms:6.1f} ms   p99 {one.p99_ms:6.1f} ms   longest {one.longest_ms:6.1f} ms   "
            f"goal p99 < {GOAL_MS:g} ms: {verdict} ({one.cancels} calls)"
        )
    report = {"circumstances": circumstances(PACKAGES), "measures": [asdict(one) for one in measures]}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
