"""The tool tasks of `benchmarks.tool_tasks`, and what is counted of the runs that work on them."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import prompts
from benchmarks.prompts import NONCE, RecordedModel, is_right, split_words
from benchmarks.tool_tasks import IN_TEXT, REACT, TASKS, TURN, VOTES, ToolFigures, build_task_tools, has_call, list_ways
from reasond_server.llm.model import ChatRequest, Message, Role
from reasond_server.testing import FunctionModel, Reply
from reasond_server.tools.execution import RunToolbox, ToolLimits
from reasond_server.types import ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROBLEMS: list[dict[str, Any]] = [json.loads(line) for line in TASKS.read_text("utf-8").splitlines()]
WAYS = (REACT, REACT + IN_TEXT, TURN, TURN + IN_TEXT, VOTES)
LOOKUP = next(problem for problem in PROBLEMS if len(problem["calls"]) == 2 and len(problem["tables"]) == 2)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem["question"][:40])
async def test_the_calls_of_a_task_lead_to_its_answer(problem: dict[str, Any]) -> None:
    toolbox = RunToolbox(tools=build_task_tools(problem), limits=ToolLimits(), max_calls=None)
    for place, call in enumerate(problem["calls"]):
        made = ToolCall(call_id=f"c{place}", name=call["tool"], arguments_json=json.dumps(call["arguments"]))
        result = await toolbox.call(made)
        assert not result.is_error, result
    assert is_right(result.result_json, problem["answer"], wrong=[]), result
    assert split_words(problem["answer"]) not in split_words(problem["question"])


def make_options(record: Path | None, tasks: Path) -> argparse.Namespace:
    return argparse.Namespace(
        url=None,
        model="m",
        record=record,
        tasks=tasks,
        questions=None,
        only=[],
        max_tokens=512,
        temperature=0.0,
        samples=3,
        vote_temperature=0.7,
        at_once=1,
    )


def follow(problem: dict[str, Any], write: Callable[[dict[str, Any]], str]) -> Callable[[ChatRequest], str | Reply]:
    """Return a model that makes the calls of a task, natively or as `write` writes them, and then answers."""

    def reply(request: ChatRequest) -> str | Reply:
        done = sum("<observation " in message.content for message in request.messages)
        if done == len(problem["calls"]) or not any("<question" in each.content for each in request.messages):
            return f"I am done. <answer>{problem['answer']}</answer>"
        call = problem["calls"][done]
        if request.tools:
            arguments = json.dumps(call["arguments"])
            return Reply(tool_calls=[ToolCall(call_id=f"p{done}", name=call["tool"], arguments_json=arguments)])
        return write(call)

    return reply


def write_action(call: dict[str, Any]) -> str:
    return f"<action>{json.dumps(call)}</action>"


async def measure(
    monkeypatch: pytest.MonkeyPatch, path: Path, reply: Callable[[ChatRequest], str | Reply] | None, *, record: Path
) -> dict[str, ToolFigures]:
    tasks = path / "tasks.jsonl"
    tasks.write_text(json.dumps(LOOKUP), "utf-8")
    if reply is not None:
        model = FunctionModel(reply, has_native_tools=True)
        monkeypatch.setattr(prompts, "connect", lambda _url, _model: model)
    options = make_options(record, tasks)
    found = await prompts.measure(options, list_ways(options))
    return {each.way: each for each in found if isinstance(each, ToolFigures)}


async def test_all_ways_with_tools_reach_the_answer_and_again_from_the_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = tmp_path / "record.jsonl"
    with monkeypatch.context() as patched:
        first = await measure(patched, tmp_path, follow(LOOKUP, write_action), record=record)
    assert tuple(first) == WAYS
    for way, figures in first.items():
        assert (figures.right, figures.limited, figures.made, figures.mistaken) == (1, 0, 2, 0), way
        assert figures.text_read == (2 if way.endswith(IN_TEXT) else 0)
        assert figures.text_unread == 0
    assert await measure(monkeypatch, tmp_path, None, record=record) == first


async def test_a_call_that_nobody_reads_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def write_unread(call: dict[str, Any]) -> str:
        return f"Then I use {call['tool']}({', '.join(f'{name}=?' for name in call['arguments'])}) and see."

    found = await measure(monkeypatch, tmp_path, follow(LOOKUP, write_unread), record=tmp_path / "record.jsonl")
    assert found[REACT + IN_TEXT].text_unread > 0
    assert found[REACT].text_unread == 0
    assert "a call was not read in" in capsys.readouterr().out


async def test_names_that_do_not_exist_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def mistake(request: ChatRequest) -> str | Reply:
        if request.tools and not any("<observation " in message.content for message in request.messages):
            return Reply(tool_calls=[ToolCall(call_id="p0", name="price_of", arguments_json='{"good": "saw"}')])
        return "<answer>1</answer>"

    found = await measure(monkeypatch, tmp_path, mistake, record=tmp_path / "record.jsonl")
    assert [(found[way].mistaken, found[way].made, found[way].right) for way in (REACT, TURN)] == [(1, 0, 0)] * 2


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ('{"name": "price_of", "arguments": {"article": "saw"}}', True),
        ('price_of(article="saw")', True),
        ('`price_of`: {"article": "saw"}', True),
        ("price_of arguments: {'article': 'saw'}", True),
        ("calculator(37 * 18.4)", True),
        ("I use the calculator (a tool) for this.", False),
        ("The tool price_of gives the price.", False),
        ("stock_of(article)", False),
        ('{"name": "other"}', False),
    ],
)
def test_a_plain_call_in_a_text_is_seen(text: str, *, is_found: bool) -> None:
    assert has_call(text, ["price_of", "stock_of", "calculator"]) is is_found


async def test_requests_without_tools_keep_their_key() -> None:
    request = ChatRequest(messages=(Message(role=Role.USER, content=NONCE),), max_tokens=5, temperature=0.0, label="l")
    reply = {"text": "kept", "finish": "stop", "matched_stop": None, "read": 1, "written": 1}
    key = "5c1effaa277575e5ba9f80765650074a6baa74e101fada5ada4b065001fecea0"
    model = RecordedModel(model=prompts.connect("", "m"), record={key: reply}, path=None)
    assert [event async for event in model.stream(request)]
