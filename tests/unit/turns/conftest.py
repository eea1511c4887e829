from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reasond_server.assembly.stores import StoreOptions, open_stores
from tests.turning import WallClock
from tests.unit.turns.recovering import Servers, forget_all

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path


@pytest.fixture(params=["sqlite", "postgres"])
async def servers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Servers, None]:
    time = WallClock()
    url = f"sqlite:///{tmp_path}/log.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    stores = await open_stores(
        StoreOptions(
            url=url,
            data_dir=str(tmp_path),
            now=time.now,
            monotonic=time.monotonic,
            max_bytes=10**8,
            max_agents=10,
            max_agents_per_tenant=10,
            synchronous="off",
            max_file_bytes=10**9,
        )
    )
    found = Servers(stores.executions, time)
    if request.param == "postgres":
        await forget_all(stores.executions)
    try:
        yield found
    finally:
        for server in found.all:
            await server.stop()
        await stores.aclose()
