"""The whole server in the process of a test: real sockets on free loopback ports, everything else as in production."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from reasond_server.assembly.app import Listening, Server
from reasond_server.config import load
from reasond_server.reasoning.registry import StrategyRegistry

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Mapping, Sequence

    from reasond_server.llm.model import ChatModel
    from reasond_server.strategies.strategy import ReasoningStrategy
    from reasond_server.telemetry.span_export import SpanSink

_SETTINGS = {
    "REASOND_CONFIG": os.devnull,
    "REASOND__SERVER__GRPC_ADDRESS": "127.0.0.1:0",
    "REASOND__SERVER__HTTP_ADDRESS": "127.0.0.1:0",
    "REASOND__SERVER__DRAIN_DELAY_S": "0",
}


@asynccontextmanager
async def running_server(
    *,
    model: ChatModel | None = None,
    strategies: Sequence[ReasoningStrategy[Any]] | None = None,
    environ: Mapping[str, str] | None = None,
    spans: SpanSink | None = None,
) -> AsyncGenerator[Listening, None]:
    """Run a server inside the context; yields the addresses and a token with all permissions.

    `model` replaces the demo model and `strategies` the installed strategies. `environ` sets keys as environment
    variables do, such as {"REASOND__STORE__RETENTION_S": "1"}; no file is read. `spans` receives the spans.

    Raises:
        SettingsError: the settings are not valid.
    """
    values = {**_SETTINGS, **(environ or {})}
    registry = None if strategies is None else StrategyRegistry(strategies)
    server = Server(load(None, values), environ=values, dev=True, model=model, registry=registry, spans=spans)
    listening = await server.start()
    try:
        yield listening
    finally:
        await server.stop()


@contextmanager
def running_server_in_thread(
    *,
    model: ChatModel | None = None,
    strategies: Sequence[ReasoningStrategy[Any]] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Generator[Listening, None, None]:
    """Run a server as `running_server` does, for a test without an event loop: the server's loop runs in a thread."""
    ready: Future[tuple[Listening, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        async with running_server(model=model, strategies=strategies, environ=environ) as listening:
            finished = asyncio.Event()
            ready.set_result((listening, asyncio.get_running_loop(), finished))
            await finished.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=run, name="reasond")
    thread.start()
    try:
        listening, loop, finished = ready.result()
        try:
            yield listening
        finally:
            loop.call_soon_threadsafe(finished.set)
    finally:
        thread.join()
