"""Effects: recorded before they begin, executed once although processes die, with the same key in every process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.base import InternalError
from reasond_server.errors.turns import ToolOutcomeUnknownError
from reasond_server.runs.effects import Effects
from reasond_server.runs.run_journal import RunJournal
from reasond_server.strategies.strategy import RunContext, StrategyConfig
from reasond_server.testing import ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.eventlog.store import Record

NONCE = "n" * 28


class Memory:
    """Keeps records, and commits when the test allows it."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.may_commit = asyncio.Event()
        self.may_commit.set()

    async def wait_for_room(self) -> None:
        await asyncio.sleep(0)

    async def flush(self) -> None:
        await self.may_commit.wait()

    def effects(self, records: Sequence[Record] = (), *, tenant: str = "acme") -> tuple[Effects, RunJournal]:
        journal = RunJournal(records=records, write=self.records.append, sink=self)
        return Effects(nonce=NONCE, tenant=tenant, journal=journal), journal


async def test_what_was_completed_is_answered_from_the_record() -> None:
    memory = Memory()
    effects, _ = memory.effects()
    assert not effects.has_begun
    async with effects.begin("mail", "ab", is_idempotent=False) as effect:
        assert effect.recorded is None
        assert [record.key for record in memory.records] == ["mail-started:ab:1"]
        await effect.complete('"sent"')
    assert [record.key for record in memory.records] == ["mail-started:ab:1", "mail-result:ab:1"]
    again, journal = memory.effects(memory.records)
    assert again.has_begun
    async with again.begin("mail", "ab", is_idempotent=False) as effect:
        assert effect.recorded == '"sent"'
        await effect.complete("never kept")
    assert (journal.recalled, len(memory.records)) == (1, 2)


@pytest.mark.parametrize("is_idempotent", [True, False])
async def test_what_was_begun_is_done_again_with_the_same_key_only_if_that_does_no_harm(*, is_idempotent: bool) -> None:
    memory = Memory()
    effects, _ = memory.effects()
    async with effects.begin("mail", "ab", is_idempotent=is_idempotent) as effect:
        key = effect.idempotency_key
    again, _ = memory.effects(memory.records)
    repeated = again.begin("mail", "ab", is_idempotent=is_idempotent)
    if is_idempotent:
        async with repeated:
            assert repeated.idempotency_key == key
    else:
        with pytest.raises(ToolOutcomeUnknownError, match="'mail'"):
            await repeated.__aenter__()
    assert len(memory.records) == 1


async def test_keys_differ_by_tenant_kind_digest_and_occurrence_and_cannot_be_guessed() -> None:
    (one, _), (other, _) = Memory().effects(), Memory().effects(tenant="other")
    begun = [
        effects.begin(kind, digest, is_idempotent=True)
        for effects in (one, other)
        for kind in ("mail", "pay")
        for digest in ("ab", "cd", "ab")
    ]
    keys = {effect.idempotency_key for effect in begun}
    assert len(keys) == len(begun)
    assert all(len(key) == 64 for key in keys)
    assert Effects(nonce="m" * 28, tenant="acme", journal=None).derive_key("mail:ab:1") not in keys


async def test_who_waits_for_the_commit_of_a_result_can_be_fenced() -> None:
    memory = Memory()
    effects, journal = memory.effects()
    async with effects.begin("mail", "ab", is_idempotent=False) as effect:
        assert journal.is_acting
        memory.may_commit.clear()
        completing = asyncio.create_task(effect.complete("1"))
        await asyncio.sleep(0)
        assert not journal.is_acting
        memory.may_commit.set()
        await completing


async def test_an_effect_that_cannot_be_put_on_record_does_not_happen() -> None:
    memory = Memory()
    effects, journal = memory.effects()
    memory.may_commit.clear()
    entering = asyncio.create_task(effects.begin("mail", "ab", is_idempotent=False).__aenter__())
    await asyncio.sleep(0)
    journal.close()
    memory.may_commit.set()
    with pytest.raises(InternalError, match="the run is over"):
        await entering
    idle = list[str]()
    journal.hold_calls(when_idle=lambda: idle.append("idle"))
    assert (idle, journal.is_acting) == (["idle"], False)


async def test_without_a_journal_an_effect_is_done_and_nothing_is_kept() -> None:
    effects = Effects(nonce=NONCE, tenant="acme", journal=None)
    async with effects.begin("mail", "ab", is_idempotent=False) as effect:
        assert effect.recorded is None
        await effect.complete("1")
    assert effects.has_begun


async def test_a_run_without_a_server_has_effects_that_are_done() -> None:
    context = RunContext(config=StrategyConfig(), model=ScriptedModel([]))
    keys = []
    for _ in range(2):
        async with context.effect("mail", "ab", is_idempotent=False) as effect:
            assert effect.recorded is None
            keys.append(effect.idempotency_key)
            await effect.complete("1")
    assert len(set(keys)) == 2
