"""The tasks of `benchmarks.prompts`, and what it takes for a right answer."""

from __future__ import annotations

import argparse
import ast
import itertools
import json
from math import log
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.prompts import (
    HERE,
    PLAIN,
    Figures,
    RecordedModel,
    Way,
    connect,
    is_right,
    is_task_right,
    list_ways,
    read_record,
    split_words,
)
from reasond_server.evaluation.graders import Graders
from reasond_server.evaluation.items import Grader, read_items
from reasond_server.llm.model import ChatRequest, Message, Role, Text
from reasond_server.strategies.chain_of_thought import ChainOfThought
from reasond_server.testing import FunctionModel, FunctionPrograms, Reply
from reasond_server.tools.programs import ProgramResult
from reasond_server.types import TokenChance

if TYPE_CHECKING:
    from pathlib import Path

    from reasond_server.llm.model import ChatModel

MEDIANS = "What is the median?\nA) 6\nB) 6.5\nC) 7\nD) 4"


@pytest.mark.parametrize(
    ("answer", "right", "question", "is_taken"),
    [
        ("B", "B", MEDIANS, True),
        ("B) 6.5", "B", MEDIANS, True),
        ("6.5", "B", MEDIANS, True),
        ("6", "B", MEDIANS, False),
        ("6.5 or 4", "B", MEDIANS, False),
        ("nothing of these", "B", MEDIANS, False),
        ("So 1,260 euros", "1260", "", True),
        ("1260 or 1261", "1260", "", False),
        ("462.00000000000006", "462", "", True),
        ("In Paris.", "paris", "", True),
    ],
)
def test_a_choice_is_right_by_its_letter_or_by_its_text_alone(
    answer: str, right: str, question: str, *, is_taken: bool
) -> None:
    assert is_right(answer, right, question) is is_taken


@pytest.mark.parametrize(
    ("answer", "is_taken"),
    [
        ("1215", True),
        ("The rent is 1,215.00 euros.", True),
        ("It begins at 1,140 euros. In the third year it is 1215€.", True),
        ("1215 or 1140", False),
        ("1215, and later 1260", False),
        ("It is 1,140.", False),
        ("It was 1215. No: 1140", False),
        ("12155", False),
        ("121.5", False),
        ("", False),
    ],
)
def test_a_value_of_a_text_is_right_if_it_is_named_without_those_beside_it(answer: str, *, is_taken: bool) -> None:
    assert is_right(answer, "1215", wrong=["1140", "1260"]) is is_taken


@pytest.mark.parametrize(("answer", "is_taken"), [("at 6:50", True), ("06:50 (7:40 was the berth)", False)])
def test_times_are_compared_by_their_numbers(answer: str, *, is_taken: bool) -> None:
    assert is_right(answer, "06:50", wrong=["07:40"]) is is_taken


WITHOUT_ANSWERS = {"programs", "repairs", "repair_subjects"}


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(HERE.glob("*.jsonl")) if path.stem not in WITHOUT_ANSWERS],
    ids=lambda path: path.stem,
)
def test_tasks_are_all_different_and_right_by_their_own_answer(path: Path) -> None:
    tasks = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert len({each["question"] for each in tasks}) == len(tasks)
    assert all(is_right(each["answer"], each["answer"], each["question"], each.get("wrong", ())) for each in tasks)


def test_a_value_to_find_stands_once_in_its_text_with_wrong_ones_beside_it() -> None:
    tasks = [json.loads(line) for line in (HERE / "extraction.jsonl").read_text("utf-8").splitlines()]
    for each in tasks:
        words = split_words(each["material"])
        assert words.count(split_words(each["answer"])) == 1, each["question"]
        assert all(split_words(wrong) in words for wrong in each["wrong"]), each["question"]
        assert not any(is_right(wrong, each["answer"], wrong=each["wrong"]) for wrong in each["wrong"])
        assert 2500 <= len(each["material"]) <= 4500, each["question"]


def test_each_program_to_write_has_tests_of_the_function_that_it_names() -> None:
    items = read_items(HERE / "programs.jsonl")
    assert len(items) == len({item.question for item in items}) == 40
    for item in items:
        tested = {
            each.func.id
            for each in ast.walk(ast.parse(item.tests))
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
        }
        name = item.question.partition("function ")[2].partition("(")[0]
        assert (item.grader, item.kind) == (Grader.PYTHON, "program")
        assert name in tested
        assert 4 <= item.tests.count("assert ") + item.tests.count("raise AssertionError") <= 8


@pytest.mark.parametrize(
    ("reply", "is_taken"),
    [
        ("Here it is:\n```python\ndef f(x):\n    return x + 1\n```\nIt prints\n```\n2\n```", True),
        ("```python\ndef f(x):\n    return x\n```", False),
        ("I cannot", False),
    ],
)
async def test_a_program_is_right_if_its_tests_pass(reply: str, *, is_taken: bool) -> None:
    task = {"question": "Write f(x).", "tests": "assert f(1) == 2"}

    def run(source: str) -> ProgramResult:
        return ProgramResult(output="", exit_code=0 if "x + 1" in source and "prints" not in source else 1)

    programs = FunctionPrograms(run)
    for way in (Way(name=PLAIN, config={"max_tokens": 99}), Way(name="steps", strategy=ChainOfThought())):
        figures = Figures(way=way.name, questions=1)
        model = RecordedModel(model=FunctionModel(lambda _: reply), record={}, path=None)
        answer, _ = await way.ask(model, task, figures, programs)
        assert await is_task_right(task, answer, Graders(programs=programs)) is is_taken
        assert figures.unread == (way.name == PLAIN and "```" not in reply)


async def judge_samples(path: Path, model: ChatModel) -> tuple[str, int]:
    """Return the answer of best_of_n with expected scores, and the calls."""
    options = argparse.Namespace(max_tokens=512, samples=3, temperature=0.0, vote_temperature=0.3)
    way = next(each for each in list_ways(options) if each.name == "best_of_n, expected_score")
    recorded = RecordedModel(model=model, record=read_record(path), path=path)
    programs = FunctionPrograms(lambda _: ProgramResult(output="", exit_code=0))
    answer, _ = await way.ask(recorded, {"question": "How many?"}, Figures(way=way.name, questions=1), programs)
    return answer, recorded.usage.model_calls


async def test_probabilities_decide_the_same_from_the_record(tmp_path: Path) -> None:
    def reply(request: ChatRequest) -> Reply:
        if request.label.startswith("sample "):
            return Reply(text=f"So. <answer>{request.label[-1]}</answer>")
        # The judge writes 5 for each, and only for the answer 1 it could have written 9.
        other = "9" if "Final answer: 1" in request.messages[-1].content else "2"
        digit = TokenChance(text="5", logprob=log(0.6), top=(("5", log(0.6)), (other, log(0.4))))
        return Reply(text="<answer>5</answer>", tokens=[TokenChance(text="<answer>", logprob=0.0), digit])

    model = FunctionModel(reply)
    model.most_logprobs = 20
    path = tmp_path / "record.jsonl"
    assert await judge_samples(path, model) == ("1", 6)
    assert await judge_samples(path, connect("", "m")) == ("1", 6)


async def test_votes_that_stop_early_take_the_first_samples_of_a_certain_vote(tmp_path: Path) -> None:
    options = argparse.Namespace(max_tokens=512, samples=40, temperature=0.0, vote_temperature=0.7)
    model = FunctionModel(lambda _: "So. <answer>4</answer>")
    record, path, taken = dict[str, Any](), tmp_path / "record.jsonl", dict[str, int]()
    programs = FunctionPrograms(lambda _: ProgramResult(output="", exit_code=0))
    for way in reversed(list_ways(options)):
        if way.name.startswith("votes, confidence"):
            recorded = RecordedModel(model=model, record=record, path=path)
            figures = Figures(way=way.name, questions=1)
            answer, _ = await way.ask(recorded, {"question": "How many?"}, figures, programs)
            assert answer == "4"
            taken[way.name.rpartition(" ")[2]] = recorded.usage.model_calls
    assert taken == {"1": 20, "0.95": 7, "0.9": 6, "0.8": 5}
    assert len(record) == 20
    options.samples = 3
    assert not any(way.name.startswith("votes, confidence") for way in list_ways(options))


@pytest.mark.parametrize(("temperature", "replies"), [(0.3, ["1", "2"]), (0.0, ["1", "1"])])
async def test_an_equal_request_of_a_run_gets_another_reply_where_it_could(
    tmp_path: Path, temperature: float, replies: list[str]
) -> None:
    path, count = tmp_path / "record.jsonl", itertools.count(1)
    request = ChatRequest(messages=(Message(role=Role.USER, content="Q"),), max_tokens=9, temperature=temperature)
    for model in (FunctionModel(lambda _: str(next(count))), connect("", "m")):
        recorded = RecordedModel(model=model, record=read_record(path), path=path)
        texts = [[event.text async for event in recorded.stream(request) if isinstance(event, Text)] for _ in range(2)]
        assert ["".join(each) for each in texts] == replies
