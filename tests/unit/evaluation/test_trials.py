"""Trials against a real server: each is paid once, whatever ends the command, and the budget holds."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest

import reasond
from reasond import AsyncClient
from reasond_server.errors.base import SettingsError
from reasond_server.errors.model import ModelFailedError, ModelUnavailableError
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
        self.is_down = False

    def __call__(self, request: ChatRequest) -> str:
        if self.is_down:
            raise ModelUnavailableError("the model server is down")
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


async def test_what_failed_before_anything_was_spent_is_no_result_and_is_asked_again(tmp_path: Path) -> None:
    adder = Adder()
    async with serve(adder) as client:
        # A budget that covers no call, and a model server that is down: neither says anything about the questions.
        short = await run(client, tmp_path, make_items(3), ways=WAYS[:1], budget=TokenBudget(most=3, each=1))
        adder.is_down = True
        down = await run(client, tmp_path, make_items(3), ways=WAYS[:1])
        adder.is_down = False
        trials = await run(client, tmp_path, make_items(3), ways=WAYS[:1])
    for failed in (short, down):
        assert [(t.is_unspent, bool(t.note), t.execution_id) for t in failed] == [(True, True, "")] * 3
    assert [t.is_right for t in trials] == [True] * 3
    assert len((tmp_path / "record.jsonl").read_text().splitlines()) == 3


async def test_a_failure_that_was_paid_stays_and_an_old_record_of_one_that_was_not_is_passed_over(
    tmp_path: Path,
) -> None:
    adder = Adder(fails=1)
    record = tmp_path / "record.jsonl"
    async with serve(adder) as client:
        (first,) = await run(client, tmp_path, make_items(2)[1:], ways=WAYS[:1])
        adder.fails = -1
        (kept,) = await run(client, tmp_path, make_items(2)[1:], ways=WAYS[:1])
        record.write_text(json.dumps(asdict(replace(first, input_tokens=0, output_tokens=0))) + "\n")
        await client.delete_execution(first.execution_id)
        (asked,) = await run(client, tmp_path, make_items(2)[1:], ways=WAYS[:1])
    assert (first.is_failed, first.is_unspent, kept, asked.is_right) == (True, False, first, True)


@pytest.mark.parametrize(("way", "error"), [("nonsense", reasond.StrategyError), ("direct", reasond.ReasondError)])
async def test_what_no_call_can_do_ends_the_evaluation_at_once(
    tmp_path: Path, way: str, error: type[Exception]
) -> None:
    adder = Adder()
    async with serve(adder) as client:
        with pytest.raises(error):
            await run(client, tmp_path, make_items(50), ways=[read_way(way, model="" if way != "direct" else "none")])
    assert adder.calls == 0


async def test_repeats_are_executions_of_their_own(tmp_path: Path) -> None:
    adder = Adder()
    async with serve(adder) as client:
        trials = await run(client, tmp_path, make_items(2), ways=[read_way("direct")], repeats=3)
    assert len({t.execution_id for t in trials}) == adder.calls == 6
