"""Write the stores that later code must read, with the code of the tree that it runs in:

    .venv/bin/python -m tests.compat.write_fixtures RELEASE

Written are tests/compat/stores/RELEASE/{sqlite,postgres}.sql and, as .json beside each, what callers were shown (of the
SQLite file over both transports). Each store was written by two servers: one that keeps no content, then one that does.
Both were killed. Only this program reaches into the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from reasond import AsyncClient
from reasond_server.errors.model import ModelFailedError
from reasond_server.eventlog.leases import LeaseKeeper
from reasond_server.eventlog.stored.postgres_store import PostgresExecutionStore
from reasond_server.eventlog.stored.sqlite_store import SqliteExecutionStore
from reasond_server.testing import Reply, running_server
from reasond_server.types import Iteration
from tests.compat.questions import (
    AGENT,
    ENDED,
    LOST,
    RECORDED,
    REDACTED,
    RUNNING,
    STEPS_SEEN,
    Question,
    name_of,
    settings,
)
from tests.compat.replies import question_of, reply_to, replying_model
from tests.compat.shown import Caller, plain
from tests.engines.postgres import postgres_program, running_postgres

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reasond_server.llm.model import ChatRequest

STORES: Final = Path(__file__).resolve().parent / "stores"
WITHOUT_CONTENT, WITH_CONTENT = "without", "with"
LONG_AGO: Final = 1.0
_NOT_SQL: Final = re.compile(r"^(--.*|\\.*|SET .*|SELECT pg_catalog\.set_config.*|)$")


class _Standing:
    """Replies as `reply_to`, until a question's model must be held or must fail."""

    def __init__(self) -> None:
        self.questions: dict[str, Question] = {}
        self.calls: Counter[str] = Counter()
        self.standing: set[str] = set()
        self.never = asyncio.Event()

    def __call__(self, request: ChatRequest) -> Reply:
        name = name_of(question_of(request))
        number, question = self.calls[name], self.questions[name]
        self.calls[name] += 1
        if number == question.fails_at:
            return Reply(text="half a thought", error=ModelFailedError("The model broke off"), error_after=6)
        if question.stands_at is not None and number >= question.stands_at:
            self.standing.add(name)
            return Reply(text="never", hold=self.never)
        return reply_to(request)


class _Asking:
    """Asks the questions of one server and records the outcome of each."""

    def __init__(self, caller: Caller, standing: _Standing) -> None:
        self.caller = caller
        self.standing = standing
        self.ids: dict[str, str] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def ask_to_end(self, question: Question) -> None:
        """Ask and wait for the end."""
        self.standing.questions[question.name] = question
        self.standing.calls[question.name] = 0
        with suppress(Exception):
            await self._follow(question)
        await self._remember(question.name, question)

    async def ask_until_standing(self, question: Question) -> None:
        """Ask and wait until the model or a tool is held."""
        before = set(self.ids.values()) | {each.execution_id async for each in self.caller.client.list_executions()}
        self.standing.questions[question.name] = question
        self.standing.calls[question.name] = 0
        self.standing.standing.discard(question.name)
        self.tasks.append(asyncio.create_task(self._follow(question)))
        # Polling is acceptable in a program that is run by hand.
        while question.stands_at is not None and question.name not in self.standing.standing:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.05)
        fresh: set[str] = set()
        while not fresh:
            await asyncio.sleep(0.05)
            fresh = {each.execution_id async for each in self.caller.client.list_executions()} - before
        (self.ids[question.name],) = fresh
        await asyncio.sleep(0.5 if question.stands_at is None else 0)

    async def _follow(self, question: Question) -> None:
        client, request_id = self.caller.client, question.request_id or None
        if question.is_unary:
            await client.reason(**question.task, request_id=request_id, timeout_s=math.inf)
            return
        stream = client.reason_iterations(
            **question.task, request_id=request_id, keep_running=question.keep_running, timeout_s=math.inf
        )
        async for _ in stream:
            pass

    async def _remember(self, name: str, question: Question) -> None:
        known = set(self.ids.values())
        fresh = [each async for each in self.caller.client.list_executions() if each.execution_id not in known]
        (one,) = [each for each in fresh if each.strategy == question.strategy]
        self.ids[name] = one.execution_id


async def _write(url: str, phase: str, told: Path, notes: Path) -> None:
    standing = _Standing()
    more = {"REASOND__STORE__RECORD_CONTENT": str(phase == WITH_CONTENT).lower()}
    async with (
        running_server(model=replying_model(standing), environ=settings(url, notes, **more)) as server,
        AsyncClient(server.grpc, token=server.token) as client,
    ):
        caller = Caller(client=client, http=server.http, token=server.token)
        if phase == WITHOUT_CONTENT:
            await _write_redacted(_Asking(caller, standing), told)
        else:
            await _write_kept(_Asking(caller, standing), told, notes, has_jsonrpc=url.startswith("sqlite"))
        os.kill(os.getpid(), signal.SIGKILL)


async def _write_redacted(asking: _Asking, told: Path) -> None:
    for question in REDACTED:
        await asking.ask_to_end(question)
    await asking.ask_until_standing(LOST)
    await asyncio.sleep(1)
    _save(told, {"redacted": {name: {"execution_id": one} for name, one in asking.ids.items()}})


async def _write_kept(asking: _Asking, told: Path, notes: Path, *, has_jsonrpc: bool) -> None:
    caller, seen = asking.caller, _load(told)
    known = {one["execution_id"] for one in seen["redacted"].values()}
    asking.ids.update({f"redacted {place}": one for place, one in enumerate(known)})
    agent = await caller.client.register_agent(dict(AGENT), agent_id="wall-keeper")
    for question in ENDED:
        if question.stands_at is None:
            await asking.ask_to_end(question)
            continue
        await asking.ask_until_standing(question)
        await caller.client.cancel_execution(asking.ids[question.name])
    ended = {question.name: asking.ids[question.name] for question in ENDED}
    notes.with_suffix(".held").touch()
    for question in RUNNING:
        if question.name == RECORDED:
            await asyncio.sleep(1)
            _withhold_steps()
        await asking.ask_until_standing(question)
    await asyncio.sleep(1)
    seen["agents"] = [plain(agent)]
    seen["lost"] = seen["redacted"].pop(LOST.name)
    redacted = {name: one["execution_id"] for name, one in seen["redacted"].items()}
    for group, ids in (("ended", ended), ("redacted", redacted)):
        seen[group] = {name: await caller.whole(one, has_jsonrpc=has_jsonrpc) for name, one in ids.items()}
    seen["running"] = {}
    for question in RUNNING:
        execution_id, until = asking.ids[question.name], STEPS_SEEN[question.name] + 1
        events = await caller.events(execution_id, until=until)
        seen["running"][question.name] = {"execution_id": execution_id, "events": events}
    _save(told, seen)


def _withhold_steps() -> None:
    """Let the store commit no further step, so that a kill falls between a tool's result and its step."""
    for store in (PostgresExecutionStore, SqliteExecutionStore):
        append = store.append

        async def withhold(self: Any, parts: Any, append: Any = append) -> Any:
            entries = [entry for part in parts for entry in part.entries]
            if any(isinstance(getattr(entry, "event", None), Iteration) for entry in entries):
                await asyncio.Event().wait()
            return await append(self, parts)

        store.append = withhold  # type: ignore[assignment,method-assign]  # the process is killed soon


def _take_nothing_over() -> None:
    """Turn recovery off, so that the executions of the server before stay for later code."""

    async def recover(_: Any) -> None:
        pass

    LeaseKeeper._recover = recover  # type: ignore[assignment,method-assign]


def _load(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def _save(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def _write_by_servers(url: str, folder: Path) -> Path:
    """Fill the store at `url` by servers in their own processes, and return the file with what callers saw."""
    told = folder / "told.json"
    for phase in (WITHOUT_CONTENT, WITH_CONTENT):
        command = [sys.executable, "-m", "tests.compat.write_fixtures", phase, url, str(told), str(folder / "notes")]
        code = subprocess.run(command, check=False, timeout=300).returncode
        if code != -signal.SIGKILL:
            raise SystemExit(f"the server ended with {code}")
    return told


def _readable(told: Path) -> str:
    """Return what callers saw, with one execution per line."""
    seen = _load(told)
    groups = []
    for group, value in sorted(seen.items()):
        if group in {"ended", "redacted", "running"}:
            lines = [f"{json.dumps(name)}: {_compact(one)}" for name, one in value.items()]
            groups.append(f"{json.dumps(group)}: {{\n" + ",\n".join(lines) + "\n}")
        else:
            groups.append(f"{json.dumps(group)}: {_compact(value)}")
    return "{\n" + ",\n".join(groups) + "\n}\n"


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _sqlite_dump(path: Path) -> Iterable[str]:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE executions SET lease_until = ? WHERE state = 'running'", (LONG_AGO,))
        connection.commit()
        yield from connection.iterdump()


def _postgres_dump(url: str) -> Iterable[str]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE executions SET lease_until = %s WHERE state = 'running'", (LONG_AGO,))
    program = postgres_program("pg_dump")
    assert program is not None, "PostgreSQL brings pg_dump"
    command = [program, "--inserts", "--no-owner", "--no-privileges", f"--dbname={url}"]
    text = subprocess.run(command, check=True, timeout=180, stdout=subprocess.PIPE).stdout.decode()
    yield from (line for line in text.splitlines() if not _NOT_SQL.match(line))


def main() -> None:
    """Write the fixtures, or run one of the servers that fill a store."""
    if len(sys.argv) > 2:
        phase, address, told_file, notes_file = sys.argv[1:]
        if phase == WITH_CONTENT:
            _take_nothing_over()
        asyncio.run(_write(address, phase, Path(told_file), Path(notes_file)))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="folder below tests/compat/stores, named after the release")
    folder = STORES / parser.parse_args().name
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        told = _write_by_servers(f"sqlite:///{work / 'store.db'}", work)
        (folder / "sqlite.json").write_text(_readable(told), encoding="utf-8")
        (folder / "sqlite.sql").write_text("\n".join(_sqlite_dump(work / "store.db")) + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as name, running_postgres() as server:
        url = server.new_database()
        subprocess.run(
            [Path(sys.executable).with_name("reasond"), "migrate"],
            env={**os.environ, "REASOND__STORE__URL": url},
            check=True,
            timeout=180,
        )
        told = _write_by_servers(url, Path(name))
        (folder / "postgres.json").write_text(_readable(told), encoding="utf-8")
        (folder / "postgres.sql").write_text("\n".join(_postgres_dump(url)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
