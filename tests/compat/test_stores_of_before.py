"""Stores written by earlier releases: ended executions read the same as before, and running ones are resumed.

`write_fixtures.py` describes how they were made. They were written with the longest retention and expire in 2036.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from reasond import AsyncClient
from reasond_server.assembly.stores import migrate_stores
from reasond_server.runs.recorded_calls import compute_request_digest, compute_texts_digest
from reasond_server.testing import running_server
from tests.compat.questions import (
    ENDED,
    HANGING,
    LOST,
    NOTED_AFTERWARDS,
    RECORDED,
    REDACTED,
    RUNNING,
    STEPS_SEEN,
    Question,
    name_of,
    settings,
)
from tests.compat.replies import ANSWER, question_of, replying_model
from tests.compat.shown import Caller, plain

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.testing import FunctionModel

STORES: Final = Path(__file__).resolve().parent / "stores"
QUESTIONS: Final = {question.name: question for question in RUNNING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A store of an earlier release: its current address, what its callers saw, and the file of the tool."""

    url: str
    shown: dict[str, Any]
    notes: Path

    @asynccontextmanager
    async def serve(self, model: FunctionModel | None = None) -> AsyncGenerator[Caller, None]:
        """Serve it with today's code."""
        environ = settings(self.url, self.notes)
        async with (
            running_server(model=model or replying_model(), environ=environ) as server,
            AsyncClient(server.grpc, token=server.token) as client,
        ):
            yield Caller(client=client, http=server.http, token=server.token)

    @property
    def noted(self) -> list[str]:
        """The texts that the tool was called with since."""
        return self.notes.read_text("utf-8").splitlines() if self.notes.exists() else []


PATHS: Final = sorted(STORES.glob("*/*.sql"))


def name_store(path: Path) -> str:
    """Return the name of the store at `path` in test ids: the release and the engine."""
    return f"{path.parent.name}-{path.stem}"


@pytest.fixture(params=PATHS, ids=name_store)
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Left:
    """Every available store, loaded into a new file or database and migrated."""
    path: Path = request.param
    statements = path.read_text("utf-8")
    if path.stem == "sqlite":
        file = tmp_path / "store.db"
        with closing(sqlite3.connect(file)) as connection:
            connection.executescript(statements)
        url = f"sqlite:///{file}"
    else:
        url = request.getfixturevalue("postgres").new_database()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statements.encode())
    migrate_stores(url=url, data_dir="")
    shown = json.loads(path.with_suffix(".json").read_text("utf-8"))
    return Left(url=url, shown=shown, notes=tmp_path / "notes")


async def follow_all(caller: Caller, execution_id: str, question: Question) -> list[Any]:
    """Follow an execution to its end, as its caller would after the server died, and return its events."""
    if question.is_unary:
        await caller.client.reason(**question.task, request_id=question.request_id)
    elif question.request_id:
        again = caller.client.reason_iterations(**question.task, request_id=question.request_id, keep_running=True)
        async for event in again:
            assert event.execution_id == execution_id
    return await caller.events(execution_id)


async def test_ended_executions_read_as_before_and_make_no_model_call(left: Left) -> None:
    shown = left.shown
    assert set(shown["ended"]) == {question.name for question in ENDED}
    assert set(shown["redacted"]) == {question.name for question in REDACTED}
    told = [*shown["ended"].values(), *shown["redacted"].values()]
    (asked,) = [question for question in ENDED if question.request_id]
    model = replying_model()
    async with left.serve(model) as caller:
        for one in told:
            assert await caller.whole(one["execution_id"], has_jsonrpc="jsonrpc" in one) == one
        assert [plain(agent) async for agent in caller.client.list_agents()] == shown["agents"]
        listed = {each.execution_id: plain(each) async for each in caller.client.list_executions()}
        again = await caller.client.reason(**asked.task, request_id=asked.request_id)
    running = [one["execution_id"] for one in (*shown["running"].values(), shown["lost"])]
    assert set(listed) == {*(one["execution_id"] for one in told), *running}
    assert [listed[one["execution_id"]] for one in told] == [one["execution"]["execution"] for one in told]
    assert (again.execution_id, again.answer) == (shown["ended"][asked.name]["execution_id"], ANSWER)
    assert asked.name not in {name_of(question_of(request)) for request in model.requests}


@pytest.fixture(params=["the code of today", "every prompt is another"])
def _code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with today's prompts, and with changed ones, as in a later release, so that no recorded call matches."""
    if request.param == "every prompt is another":
        monkeypatch.setattr(
            "reasond_server.runs.run_journal.compute_request_digest",
            lambda asked: compute_texts_digest("other", compute_request_digest(asked)),
        )
        monkeypatch.setattr("reasond_server.runs.run_journal.compute_older_digest", compute_request_digest)


@pytest.mark.usefixtures("_code")
async def test_what_was_at_work_is_gone_on_with_and_no_tool_is_called_twice(left: Left) -> None:
    shown = left.shown["running"]
    assert set(shown) == set(QUESTIONS)
    async with left.serve() as caller:
        logs = {name: await follow_all(caller, told["execution_id"], QUESTIONS[name]) for name, told in shown.items()}
        lost = await caller.events(left.shown["lost"]["execution_id"])
    for name, events in logs.items():
        before = shown[name]["events"]
        assert len(before) == 1 + STEPS_SEEN[name]
        assert events[: len(before)] == before, name
        assert [int(event["sequence"]) for event in events] == list(range(1, len(events) + 1)), name
        assert [event["iteration"].get("index", 0) for event in events[1:-1]] == list(range(len(events) - 2)), name
        end = events[-1]["completed"]
        if name == HANGING:
            assert end["error"]["reason"] == "ERROR_REASON_TOOL_OUTCOME_UNKNOWN"
        else:
            assert (end["finish_reason"], end["answer"]) == ("FINISH_REASON_ANSWERED", ANSWER), name
    assert sorted(left.noted) == sorted(NOTED_AFTERWARDS)
    observations = logs[RECORDED][1]["iteration"]["react"]["observations"]
    assert observations == [{"call_id": "c1", "result_json": '{"result":"noted recorded one"}'}]
    assert lost[-1]["completed"]["finish_reason"] == "FINISH_REASON_FAILED"
    assert ["iteration" in event for event in lost] == [False, *[True] * (LOST.stands_at or 0), False]
