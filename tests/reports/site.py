"""The one server that all rows are fed to, beside its model server, in the event loop of a thread."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from reasond import AsyncClient
from reasond_server.testing import running_server
from tests.http_clients import make_http_client
from tests.reports.model_server import serving_models

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    import httpx

    from reasond_server.assembly.app import Listening
    from tests.reports.model_server import ModelServer

ResultT = TypeVar("ResultT")
_SETTINGS: Final = {
    "REASOND__LLM__PROVIDER": "openai",
    "REASOND__LLM__MODEL": "some-model",
    "REASOND__LLM__API_KEY_ENV": "",
    "REASOND__LLM__FIRST_WAIT_S": "0.01",
    "REASOND__LLM__OFFERED": '["enforcing"]',
    "REASOND__LLM__BACKENDS__ENFORCING__MODEL": "enforcing-model",
    "REASOND__LLM__BACKENDS__ENFORCING__CAPABILITIES__JSON_SCHEMA": "guided",
    "REASOND__LLM__BACKENDS__ENFORCING__FIRST_WAIT_S": "0.01",
    "REASOND__REASONING__PROGRAM_ENVIRONMENT": "python",
    "REASOND__REPAIR__ENABLED": "true",
    "REASOND__REPAIR__NUM_CANDIDATES": "1",
    "REASOND__REPAIR__CRITIC_TIMEOUT_MS": "60000",
    "REASOND__REPAIR__ENVIRONMENTS__PYTHON__PRESET": "python",
    "REASOND__REPAIR__ENVIRONMENTS__PYTHON__ROOT": sys.prefix,
    "REASOND__REPAIR__COMMANDS__SCRIPT": '["python", "check.py"]',
}


@dataclass(frozen=True, kw_only=True)
class Site:
    """A running server, its model server, and clients of both kinds of wires."""

    listening: Listening
    models: ModelServer
    client: AsyncClient
    http: httpx.AsyncClient


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs coroutines in the loop of the site."""

    site: Site
    loop: asyncio.AbstractEventLoop

    def run(self, work: Coroutine[None, None, ResultT]) -> ResultT:
        """Return the result of `work`."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()


@contextmanager
def running_site() -> Iterator[Runner]:
    """Run the servers while the context is open."""
    ready: Future[tuple[Runner, asyncio.Event]] = Future()

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            models = await stack.enter_async_context(serving_models())
            places = ("REASOND__LLM__BASE_URL", "REASOND__LLM__BACKENDS__ENFORCING__BASE_URL")
            environ = {**_SETTINGS, **dict.fromkeys(places, models.address)}
            listening = await stack.enter_async_context(running_server(environ=environ))
            client = await stack.enter_async_context(AsyncClient(listening.grpc, token=listening.token))
            headers = {"authorization": f"Bearer {listening.token}"}
            http = await stack.enter_async_context(make_http_client(base_url=listening.http, headers=headers))
            site = Site(listening=listening, models=models, client=client, http=http)
            finished = asyncio.Event()
            ready.set_result((Runner(site=site, loop=asyncio.get_running_loop()), finished))
            await finished.wait()

    def work() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=work, name="reports")
    thread.start()
    try:
        runner, finished = ready.result()
        try:
            yield runner
        finally:
            runner.loop.call_soon_threadsafe(finished.set)
    finally:
        thread.join()
