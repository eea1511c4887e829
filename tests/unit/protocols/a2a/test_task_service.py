"""Tasks of A2A, by unmodified clients of a2a-sdk over all three bindings."""

from __future__ import annotations

import pytest
from a2a.types import TaskState

from tests.unit.protocols.a2a.agents import BINDINGS, read_answer, read_own, say, serve_agent


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_message_becomes_a_task_that_every_binding_reads(binding: str) -> None:
    async with serve_agent() as site:
        updates = await site.send(binding, say("What is 6 times 7?", message_id="m1"))
        assert [update.WhichOneof("payload") for update in updates] == [
            "task",
            "artifact_update",
            "artifact_update",
            "status_update",
        ]
        assert updates[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
        assert [read_own(getattr(each, each.WhichOneof("payload")))["generation"] for each in updates] == [1, 2, 3, 3]
        tasks = [await site.get(other, updates[0].task.id) for other in BINDINGS]
    assert tasks[0] == tasks[1] == tasks[2]
    assert read_answer(tasks[0]) == "42"
    assert [message.message_id for message in tasks[0].history] == ["m1"]
    assert tasks[0].context_id == updates[-1].status_update.context_id != ""


async def test_the_same_message_of_the_same_caller_is_the_same_task() -> None:
    async with serve_agent() as site:
        message = say("What is 6 times 7?", message_id="m1", context_id="talk")
        ids = {(await site.ask(binding, message)).id for binding in BINDINGS}
        other = await site.ask("GRPC", say("What is 6 times 7?", message_id="m2"))
    assert len(ids) == 1
    assert other.id not in ids
