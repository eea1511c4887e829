"""Sites for the tests of the HTTP side; each is stopped at the end of its test."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.unit.http_api.parts import ServeSite, Site, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def serve_site() -> AsyncIterator[ServeSite]:
    """A function that starts a site."""
    async with AsyncExitStack() as stack:
        yield partial(serve, stack)


@pytest.fixture
async def site(serve_site: ServeSite) -> Site:
    """A site whose model answers every question with 42."""
    return await serve_site()
