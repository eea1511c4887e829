"""A browser and the servers that the tests of the console share in a module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from reasond_server.cli.commands.demo import list_variables
from reasond_server.testing import running_server
from tests.browsing import running_browser
from tests.console.scripted_server import STRATEGIES, Script
from tests.console.showing import KEY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser

    from reasond_server.base.addresses import Listening


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with running_browser() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def demo() -> AsyncIterator[Listening]:
    """A server with the demo model, which repairs too."""
    environ = {**list_variables(), "REASOND__TURNS__NEEDS_APPROVAL": '["current_time"]'}
    async with running_server(environ=environ) as listening:
        yield listening


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def script() -> Script:
    return Script()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scripted(script: Script) -> AsyncIterator[Listening]:
    """A server with a scripted model, whose tokens `mint` makes."""
    environ = {"REASOND__AUTH__KEYS": f'[{{ id = "{KEY.id}", secret = "{KEY.secret.decode()}" }}]'}
    environ |= {"REASOND__AUTH__LEEWAY_S": "0", "REASOND__STORE__RECORD_PROMPTS": "true"}
    async with running_server(model=script.model(), strategies=STRATEGIES, environ=environ) as listening:
        yield listening
