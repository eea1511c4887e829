"""A log of each strategy as callers read it, byte for byte: times, ids and replies are fixed, so only code can differ.

`python -m tests.compat.test_logs_of_before` writes them with the code of the tree that it runs in.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from reasond import AsyncClient
from reasond_server.assembly.app import Server
from reasond_server.assembly.core import make_system_clock
from reasond_server.config import load
from reasond_server.errors.model import ModelFailedError
from reasond_server.testing import Reply
from tests.compat.questions import ENDED, Question, name_of, settings
from tests.compat.replies import question_of, reply_to, replying_model
from tests.compat.shown import Caller

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.llm.model import ChatRequest

GOLDEN: Final = Path(__file__).resolve().parent / "golden"
NOW: Final = datetime(2026, 11, 22, 12, tzinfo=UTC)
NONCE: Final = "qzkvhwbnmcjtrxplaoysdgeufiqh"
_OWN_ADDRESSES: Final = {
    "REASOND_CONFIG": os.devnull,
    "REASOND__SERVER__GRPC_ADDRESS": "127.0.0.1:0",
    "REASOND__SERVER__HTTP_ADDRESS": "127.0.0.1:0",
    "REASOND__SERVER__DRAIN_DELAY_S": "0",
}
_TREE: Final = {"max_depth": 3, "branching": 3, "beam_width": 2, "seed": 7}
_CUT: Final = {"chunk_size": 1200, "carryover_size": 512, "max_iterations": 2}
QUESTIONS: Final = {
    question.name: question
    for question in (
        *(one for one in ENDED if one.stands_at is None and not one.is_unary),
        *(
            Question(
                name=f"{search}-{evaluator}",
                strategy="tree_of_thought",
                config={**_TREE, "search": search, "evaluator": evaluator},
            )
            for search in ("beam", "best_first")
            for evaluator in ("value", "vote")
        ),
        Question(name="cut", strategy="bounded_context", query="Write much.", config=_CUT),
        Question(name="split", strategy="self_consistency", config={"samples": 4, "min_agreement": 0.9}),
        Question(name="unread", strategy="react", query="How high?", config={"max_iterations": 2}),
    )
}


def reply(request: ChatRequest) -> Reply:
    """Return the reply of the model, without end if the question asks for a long one."""
    question = QUESTIONS[name_of(question_of(request))]
    if question.fails_at is not None and sum(bool(each.tool_calls) for each in request.messages) == question.fails_at:
        return Reply(text="half a thought", error=ModelFailedError("The model broke off"), error_after=6)
    if question.name == "cut" and "The window is full" not in request.messages[-1].content:
        return Reply(text="The wall goes on and on. " * 400)
    return reply_to(request)


@asynccontextmanager
async def serve(folder: Path) -> AsyncGenerator[Caller, None]:
    """Serve with a fixed time, counted ids and one nonce."""
    ids = count(1)
    clock = replace(
        make_system_clock(),
        now=lambda: NOW,
        monotonic=lambda: 0.0,
        new_id=lambda: f"{next(ids):032x}",
        new_nonce=lambda: NONCE,
    )
    environ = {**_OWN_ADDRESSES, **settings("memory:", folder / "notes")}
    server = Server(load(None, environ), environ=environ, dev=True, model=replying_model(reply), clock=clock)
    listening = await server.start()
    try:
        async with AsyncClient(listening.grpc, token=listening.token) as client:
            yield Caller(client=client, http=listening.http, token=listening.token)
    finally:
        await server.stop()


async def log(caller: Caller, question: Question) -> str:
    """Run the question and return all that can be read of it afterwards, one event per line."""
    stream = caller.client.reason_iterations(**question.task, request_id=f"golden-{question.name}", keep_running=True)
    execution_id = (await anext(aiter(stream))).execution_id
    await caller.events(execution_id)
    told = await caller.whole(execution_id, has_jsonrpc=True)
    lines = [json.dumps(each) for each in (*told["events"], told["execution"], told["jsonrpc"])]
    # Ids of calls and executions come from one counter.
    return "[\n" + ",\n".join(lines).replace(execution_id, "EXECUTION") + "\n]\n"


async def write_logs(folder: Path) -> dict[str, str]:
    """Return the logs of all questions by name."""
    async with serve(folder) as caller:
        return {name: await log(caller, question) for name, question in QUESTIONS.items()}


async def test_callers_read_earlier_logs_byte_for_byte(tmp_path: Path) -> None:
    logs = await write_logs(tmp_path)
    assert set(logs) == {path.stem for path in GOLDEN.glob("*.json")}
    for name, text in logs.items():
        assert text == (GOLDEN / f"{name}.json").read_text(encoding="utf-8"), name


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        for stem, text in asyncio.run(write_logs(Path(name))).items():
            (GOLDEN / f"{stem}.json").write_text(text, encoding="utf-8")
