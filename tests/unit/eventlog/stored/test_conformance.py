"""Memory, SQLite and PostgreSQL fulfil the same contract."""

import pytest

from tests.stores.conformance import ExecutionStoreConformance
from tests.unit.eventlog.stored.conftest import Opened


@pytest.mark.parametrize("check", ExecutionStoreConformance.CHECKS)
async def test_every_store_keeps_the_contract(any_store: Opened, check: str) -> None:
    await ExecutionStoreConformance(any_store.store, pass_time=any_store.pass_time).check(check)
