"""What is refused before an engine is used, and what `reasond doctor` tells of one."""

from __future__ import annotations

from typing import Any

import pytest

from reasond_server.assembly.workshops import build_engine, examine_engine
from reasond_server.config import load
from reasond_server.errors.base import SettingsError
from reasond_server.errors.repairs import EngineUnavailableError
from tests.faults.parts import FREE_PORTS

TEMPORAL = {"REASOND__ENGINE__REPAIR": "temporal", "REASOND__ENGINE__ADDRESS": "127.0.0.1:1"}
OFFERED = {"REASOND__REPAIR__ENABLED": "true"}


def settings_of(**environ: str) -> Any:
    return load(None, {**FREE_PORTS, **environ}).settings


class InMemory:
    """Stores without a database."""

    transactions = None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (TEMPORAL, "but repairs are not offered"),
        (TEMPORAL | OFFERED, "but the store is in memory"),
    ],
)
def test_an_engine_that_could_not_work_is_refused(environ: dict[str, str], message: str) -> None:
    stores: Any = InMemory()
    with pytest.raises(SettingsError, match=message):
        build_engine(settings_of(**environ), stores, {})


def test_without_an_engine_nothing_is_opened() -> None:
    stores: Any = InMemory()
    assert build_engine(settings_of(), stores, {}) is None


def test_an_engine_needs_content_to_be_kept() -> None:
    with pytest.raises(SettingsError) as refused:
        settings_of(**TEMPORAL, **OFFERED, REASOND__STORE__RECORD_CONTENT="false")
    assert [each.field for each in refused.value.violations] == ["engine.repair"]


async def test_a_cluster_that_does_not_answer_is_told() -> None:
    assert await examine_engine(settings_of(), {}) == "repairs are worked out in the server"
    with pytest.raises(EngineUnavailableError, match=r"cannot be reached at 127\.0\.0\.1:1"):
        await examine_engine(settings_of(**TEMPORAL, **OFFERED), {})
