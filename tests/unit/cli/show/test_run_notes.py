from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond import ExecutionStarted, Iteration
from reasond.v1.strategies_pb2 import (
    BoundedContextStep,
    CarryoverReport,
    Dropped,
    ReactStep,
    Sample,
    StageStep,
    ToolCall,
    ToolResult,
    TreeStep,
)
from reasond_server.cli.show.run import RunLines, describe_step
from reasond_server.cli.terminal import count_columns

CALL = ToolCall(call_id="c1", tool="calculator", arguments_json='{"expression": "2+2"}')
CYCLE = ReactStep(
    thought="I compute.\nThen I see.", actions=[CALL], observations=[ToolResult(call_id="c1", result_json="4")]
)
NODE = TreeStep(node_id="n0.1", parent_id="n0", depth=2, thought="13 - 9 = 4", score=0.754, is_pruned=True)


def note(*, votes: int = 0, **step: object) -> str:
    return describe_step(Iteration(**step), votes=votes, width=120)  # type: ignore[arg-type]  # fields of the message


def test_a_cycle_shows_thought_action_and_observation() -> None:
    assert note(react=CYCLE) == 'I compute. | calculator({"expression": "2+2"}) -> 4'
    assert note(react=ReactStep(thought="I know."), answer_found=True) == "answer found; I know."
    assert note(react=ReactStep(actions=[CALL])) == 'calculator({"expression": "2+2"})'


def test_a_failed_call_says_so_and_further_calls_are_counted() -> None:
    failed = ReactStep(
        thought="t", actions=[CALL, CALL, CALL], observations=[ToolResult(result_json='"no"', is_error=True)]
    )
    assert note(react=failed) == 't | calculator({"expression": "2+2"}) -> error: no (+2 more)'


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ('"so it is"', "so it is"),
        ('{"expression": "2+2", "result": 4}', "4"),
        ('{"result": {"a": 1}}', '{"result": {"a": 1}}'),
        ("[1, 2]", "[1, 2]"),
        ("null", "null"),
        ("{no JSON", "{no JSON"),
        ("[" * 9_000, "[" * 39 + "…"),
        ("9" * 5_000, "9" * 39 + "…"),
    ],
)
def test_of_a_result_that_is_shown_which_says_most(result: str, shown: str) -> None:
    step = ReactStep(actions=[ToolCall(tool="t")], observations=[ToolResult(result_json=result)])
    assert note(react=step) == f"t() -> {shown}"


def test_a_long_thought_gives_way_to_the_action_and_what_came_of_it() -> None:
    shown = note(react=ReactStep(thought="x" * 500, actions=CYCLE.actions, observations=CYCLE.observations))
    assert shown.endswith('… | calculator({"expression": "2+2"}) -> 4')
    assert count_columns(shown) <= 120


def test_a_node_shows_depth_score_and_fate() -> None:
    assert note(tree=NODE) == "depth 2, score 0.75, pruned; 13 - 9 = 4"
    assert note(tree=TreeStep(depth=3, score=1, answer="24"), answer_found=True) == (
        "answer found; depth 3, score 1.00; = 24"
    )


def test_a_sample_shows_its_answer_and_votes() -> None:
    assert note(sample=Sample(answer="4.0", normalized_answer="4"), votes=2) == "4.0 (2 votes)"
    assert note(sample=Sample(answer="4", normalized_answer="4"), votes=1) == "4 (1 vote)"
    assert note(sample=Sample(text="\nHm.")) == "no answer; Hm."


def test_a_stage_shows_its_name_and_its_answer_or_what_was_written() -> None:
    assert note(stage=StageStep(stage="critique", text="\nThe sum is wrong.\nMore")) == "critique; The sum is wrong."
    assert note(stage=StageStep(stage="sample", text="Hm.", answer="24", score=0.75)) == "sample, score 0.75; = 24"


def test_a_window_shows_what_it_carried_and_why_it_fell_back() -> None:
    report = CarryoverReport(
        before_tokens=1900,
        after_tokens=512,
        dropped=[Dropped(part="tail", tokens=1200), Dropped(part="facts", tokens=188)],
        fallback_reason="the summary was empty",
    )
    shown = note(bounded_context=BoundedContextStep(text="So.", carryover_report=report))
    assert shown == "notes 1,900->512, dropped 1,200 of tail, 188 of facts, fell back: the summary was empty; So."
    plain = CarryoverReport(before_tokens=9, after_tokens=9)
    assert note(bounded_context=BoundedContextStep(text="So.", carryover_report=plain)) == "notes 9->9; So."


def test_votes_are_counted_over_the_samples_of_a_run() -> None:
    progress = RunLines()
    progress.start(ExecutionStarted(strategy="self_consistency", config_json='{"samples": 5}'))
    answers = ["4", "5", "4"]
    lines = [
        progress.format_step(Iteration(index=index, sample=Sample(answer=answer, normalized_answer=answer)))[0]
        for index, answer in enumerate(answers)
    ]
    assert [line.split()[1] for line in lines] == ["1/5", "2/5", "3/5"]
    assert [line.rpartition("  ")[2] for line in lines] == ["4 (1 vote)", "5 (1 vote)", "4 (2 votes)"]


def test_nodes_are_counted_as_nodes() -> None:
    progress = RunLines()
    progress.start(ExecutionStarted(strategy="tree_of_thought", config_json='{"max_depth": 4}'))
    assert progress.format_step(Iteration(index=6, tree=NODE))[0].startswith("node 7 ")


HOSTILE = st.text(max_size=400)


@pytest.mark.parametrize("width", [20, 80, 120])
@given(text=HOSTILE)
def test_no_text_of_any_kind_of_step_breaks_the_line_or_commands_the_terminal(width: int, text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    steps = [
        Iteration(react=ReactStep(thought=text, actions=[ToolCall(tool=text, arguments_json=text)])),
        Iteration(react=ReactStep(actions=[CALL], observations=[ToolResult(result_json=text, is_error=True)])),
        Iteration(tree=TreeStep(thought=text, answer=text)),
        Iteration(sample=Sample(text=text, answer=text, normalized_answer=text)),
        Iteration(stage=StageStep(stage=text, text=text, answer=text)),
        Iteration(
            bounded_context=BoundedContextStep(
                text=text,
                carryover_report=CarryoverReport(dropped=[Dropped(part=text, tokens=1)], fallback_reason=text),
            )
        ),
    ]
    progress = RunLines()
    for step in steps:
        figures, *notes = progress.format_step(step, width=width)
        for line in [*notes, figures if not notes else ""]:
            assert count_columns(line) <= max(width, count_columns("step 1        in      0  out     0     0 ms"))
            assert not any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in line)
            assert not set(line) & set("\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
