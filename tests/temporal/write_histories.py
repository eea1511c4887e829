"""Writes the histories that `test_histories.py` replays: `python -m tests.temporal.write_histories NAME...`.

They are written again only when the workflow is changed on purpose, which `docs/operations/temporal.md` describes; then
the old ones stay beside them as long as repairs of that release may run.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import re
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from reasond.v1.execution_pb2 import Budget
from reasond.v1.repairs_pb2 import (
    REPAIR_SEARCH_BEST_OF_N,
    REPAIR_SEARCH_GREEDY,
    REPAIR_SEARCH_LATS,
    REPAIR_SEARCH_REFINE_BEAM,
)
from reasond_server.assembly.app import Server
from reasond_server.config import load
from reasond_server.engines.temporal import TemporalEngine
from tests.faults.parts import FREE_PORTS
from tests.faults.test_repair_crashes import WRITTEN, edit, make_task, settings_of
from tests.faults.upstream import DONE, STREAM_HEAD, chunk, upstream, usage
from tests.temporal.temporal_server import TemporalServer, running_temporal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond.v1.repairs_pb2 import RepairTask
    from tests.faults.upstream import Conversation

FOLDER: Final = Path(__file__).parents[1] / "unit" / "engines" / "histories"
RIGHT_ATTEMPT: Final = 3
UNANSWERED: Final = "a task that the model does not know"
CASES: Final[Mapping[str, Mapping[str, int]]] = {
    "accepted": {"search": REPAIR_SEARCH_REFINE_BEAM, "num_candidates": 2},
    "lats": {"search": REPAIR_SEARCH_LATS, "num_candidates": 2},
    "greedy": {"search": REPAIR_SEARCH_GREEDY},
    "best_of_n": {"search": REPAIR_SEARCH_BEST_OF_N, "num_candidates": 2},
    "not_accepted": {"search": REPAIR_SEARCH_BEST_OF_N, "num_candidates": 2, "max_candidates": 2},
    "bounded": {"num_candidates": 2},
    "model_failed": {"num_candidates": 1},
    "shares": {"num_candidates": 1},
}


async def answer(conversation: Conversation) -> None:
    """Answer as a model whose third attempt is right; a task that asks for it gets errors."""
    body = conversation.json
    if "messages" not in body or UNANSWERED in body["messages"][-1]["content"]:
        await conversation.answer("404 Not Found", b"{}")
        return
    attempt = int(re.findall(r"Attempt (\d+)", body["messages"][-1]["content"])[-1])
    text = chunk(edit(9 if attempt == RIGHT_ATTEMPT else attempt)) + chunk(finish="stop") + usage(100, WRITTEN)
    await conversation.send(STREAM_HEAD + b"connection: close\r\n\r\n" + text + DONE)


def make_case(name: str) -> RepairTask:
    """Return the task of a case."""
    task = make_task()
    for key, setting in CASES[name].items():
        setattr(task.config, key, setting)
    if name == "shares":
        task.budget.CopyFrom(Budget(max_output_tokens=2 * WRITTEN))
    if name == "bounded":
        task.budget.CopyFrom(Budget(max_total_tokens=200_000))
    if name == "model_failed":
        task.description = UNANSWERED
    return task


def keep(_engine: TemporalEngine, _order: object) -> None:
    """Keep the payloads of a repair that is over."""


async def write_all(folder: Path, temporal: TemporalServer, names: Sequence[str]) -> None:
    """Run the cases and write their histories."""
    TemporalEngine.forget = keep  # type: ignore[assignment,method-assign]  # the payloads are read below
    async with upstream(answer) as model:
        environ = {
            **os.environ,
            **FREE_PORTS,
            **settings_of(model),
            "REASOND__STORE__URL": f"sqlite:///{folder / 'reasond.db'}",
            "REASOND__ENGINE__REPAIR": "temporal",
            "REASOND__ENGINE__ADDRESS": temporal.address,
        }
        server = Server(load(None, environ), environ=environ, dev=True)
        listening = await server.start()
        import reasond  # noqa: PLC0415 - after the server, as a program would

        async with reasond.AsyncClient(listening.grpc, token=listening.token) as client:
            for name in names:
                execution_id = await run_case(client, name)
                workflow_id = f"repair/sub:developer/{execution_id}"
                history = json.loads(await asyncio.to_thread(temporal.show_history, workflow_id))
                write_case(name, workflow_id, history, read_payloads(folder, execution_id))
        await server.stop()


async def run_case(client: Any, name: str) -> str:
    """Run a case to its end and return the id of its execution."""
    execution_id = ""
    try:
        async for each in client.repair_steps(make_case(name), keep_running=True):
            execution_id = each.execution_id
    except Exception as error:  # noqa: BLE001 - a case that fails is one of them
        sys.stdout.write(f"{name}: {error}\n")
    return execution_id


def read_payloads(folder: Path, execution_id: str) -> Mapping[str, bytes]:
    """Return what the cluster holds by its digest alone."""
    with sqlite3.connect(folder / "reasond.db") as file:
        rows = file.execute("SELECT name, body FROM payloads WHERE execution_id = ?", (execution_id,)).fetchall()
    return {name: body for name, body in rows if name.startswith("payload/")}


def write_case(name: str, workflow_id: str, history: Any, payloads: Mapping[str, bytes]) -> None:
    """Write one history with its payloads."""
    row = {
        "workflow_id": workflow_id,
        "history": history,
        "payloads": {digest: base64.b64encode(body).decode() for digest, body in payloads.items()},
    }
    FOLDER.mkdir(exist_ok=True)
    packed = gzip.compress(json.dumps(row, separators=(",", ":")).encode(), mtime=0)
    (FOLDER / f"{name}.json.gz").write_bytes(packed)
    sys.stdout.write(f"{name}: {len(history['events'])} events, {len(packed)} bytes\n")


def main() -> None:
    """Write the histories that the command names."""
    with tempfile.TemporaryDirectory() as name, running_temporal(Path(name)) as temporal:
        asyncio.run(write_all(Path(name), temporal, sys.argv[1:]))


if __name__ == "__main__":
    main()
