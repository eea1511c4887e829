"""Trials against a real server: each is paid once, whatever ends the command, and the budget holds."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import reasond
from reasond import AsyncClient
from reasond_server.errors.base import SettingsError
from reasond_server.errors.model import ModelFailedError
from reasond_server.evaluation.graders import Graders
from reasond_server.evaluation.items import Grader, Item
from reasond_server.evaluation.trials import TokenBudget, Trial, Trials, open_record, read_way
from reasond_server.testing import FunctionModel, running_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from reasond_server.llm.model import ChatRequest

WAYS = [read_way("direct"), read_way("self_consistency:samples=3")]


def make_items(count: int) -> Sequence[Item]:
    return [
        Item(item_id=str(n), question=f"What is {n} and 1?", grader=Grader.NUMBER, right=str(n + 1))
        for n in range(count)
    ]


class Adder:
    """Adds right but for 3; with `fails` it fails for that number."""

    def __init__(self, fails: int = -1) -> None:
        self.calls = 0
        self.fails = fails

    def __call__(self, request: ChatRequest) -> str:
        self.calls += 1
        text = " ".join(message.content for message in request.messages)
        number = int(text.partition("What is ")[2].split()[0])
        if number == self.fails:
            raise ModelFailedError("the model is ill")
        return f"Adding. <answer>{number + 1 + (number == 3)}</answer>"


@asynccontextmanager
async def serve(adder: Adder) -> AsyncIterator[AsyncClient]:
    async with (
        running_server(model=FunctionModel(adder, name="adder")) as server,
        AsyncClient(server.grpc, token=server.token) as client,
    ):
        yield client


async def run(client: AsyncClient, path: Path, items: Sequence[Item], **more: Any) -> Sequence[Trial]:
    with open_record(path / "record.jsonl") as record:
        ways = more.pop("ways", WAYS)
        made = Trials(
            client=client, graders=Graders(), record=record, items=items, ways=ways, served_model="adder", **more
        )
        return await made.run()


async def test_every_question_is_asked_in_each_way_and_graded(tmp_path: Path) -> None:
    adder = Adder()
    async with serve(adder) as client:
        trials = await run(client, tmp_path, make_items(5))
    assert [(t.item_id, t.way) for t in trials[:3]] == [
        ("0", "direct"),
        ("0", "self_consistency:samples=3"),
        ("1", "direct"),
    ]
    assert {t.item_id for t in trials if not t.is_right} == {"3"}
    assert sum(t.calls for t in trials) == adder.calls == 5 + 5 * 2
    assert all(t.finish == "ANSWERED" and t.tokens > 0 and t.execution_id for t in trials)


async def test_what_the_record_has_is_neither_asked_nor_paid_again_but_graded_anew(tmp_path: Path) -> None:
    adder = Adder()
    async with serve(adder) as client:
        await run(client, tmp_path, make_items(4))
        asked = adder.calls
        corrected = [Item(item_id=i.item_id, question=i.question, grader=i.grader, right="5") for i in make_items(4)]
        trials = await run(client, tmp_path, corrected)
    assert adder.calls == asked
    assert {t.item_id for t in trials if t.is_right} == {"3"}


async def test_a_record_that_was_lost_finds_the_executions_at_the_server(tmp_path: Path) -> None:
    adder = Adder()
    async with serve(adder) as client:
        first = await run(client, tmp_path, make_items(4))
        (tmp_path / "record.jsonl").unlink()
        again = await run(client, tmp_path, make_items(4))
        assert adder.calls == 4 + 8
    assert [t.execution_id for t in again] == [t.execution_id for t in first]
    assert [t.tokens for t in again] == [t.tokens for t in first]


async def test_a_line_that_was_cut_is_left_out_and_another_file_is_refused(tmp_path: Path) -> None:
    adder = Adder()
    file = tmp_path / "record.jsonl"
    async with serve(adder) as client:
        await run(client, tmp_path, make_items(2))
        file.write_bytes(file.read_bytes() + b'{"key": "cut')
        await run(client, tmp_path, make_items(2))
    assert all(json.loads(line) for line in file.read_text().splitlines())
    file.write_text("question,answer\n")
    with pytest.raises(SettingsError, match="is no record of trials"), open_record(file):
        pass


@pytest.mark.parametrize("most", [1, 60, 200, 500])
async def test_the_budget_is_never_over(tmp_path: Path, most: int) -> None:
    async with serve(Adder()) as client:
        budget = TokenBudget(most=most, each=400)
        trials = await run(client, tmp_path, make_items(20), budget=budget, at_once=5)
    assert sum(t.tokens for t in trials) == budget.spent <= most
    assert len(trials) < 40


async def test_a_model_that_fails_is_a_wrong_answer_and_is_told(tmp_path: Path) -> None:
    async with serve(Adder(fails=1)) as client:
        trials = await run(client, tmp_path, make_items(2), ways=[read_way("direct")])
    assert [(t.is_failed, t.is_right) for t in trials] == [(False, True), (True, False)]
    assert trials[1].note


async def test_what_no_call_can_do_ends_the_evaluation_at_once(tmp_path: Path) -> None:
    adder = Adder()
    async with serve(adder) as client:
        with pytest.raises(reasond.StrategyError):
            await run(client, tmp_path, make_items(50), ways=[read_way("nonsense")])
    assert adder.calls == 0


async def test_repeats_are_executions_of_their_own(tmp_path: Path) -> None:
    adder = Adder()
    async with serve(adder) as client:
        trials = await run(client, tmp_path, make_items(2), ways=[read_way("direct")], repeats=3)
    assert len({t.execution_id for t in trials}) == adder.calls == 6
