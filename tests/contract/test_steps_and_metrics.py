"""Every kind of step and of metrics is the same over gRPC and JSON-RPC, and both wires have all kinds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import pytest
from google.protobuf import json_format

from reasond import AsyncClient, TraceView
from reasond.v1 import execution_pb2
from reasond_server.grpc_api.reasoning_servicer import build_iteration_message, build_metrics_message
from reasond_server.http_api.json_mapping import build_kind_json, list_trace_items
from reasond_server.testing import ScriptedModel, running_server
from reasond_server.types import (
    CustomMetrics,
    CustomStep,
    Iteration,
    Metrics,
    ReactMetrics,
    ReactStep,
    Sample,
    StepDetail,
    StrategyMetrics,
    Thought,
    TreeStep,
    Usage,
)
from reasond_server.types.kinds import STEPS
from tests.contract.values import CYCLE, DETAILS, METRICS, NODE, SAMPLE, WINDOW, Showing
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from google.protobuf.message import Message

USAGE = Usage(input_tokens=90, output_tokens=10, model_calls=1)
KINDS = sorted(get_args(StepDetail), key=lambda kind: kind.__name__)
SPECIFICS = sorted(get_args(StrategyMetrics), key=lambda kind: kind.__name__)


def iteration(detail: StepDetail, *, answer_found: bool = False) -> Iteration:
    return Iteration(index=2, answer_found=answer_found, usage=USAGE, elapsed_s=0.5, detail=detail)


def specific_message(metrics: StrategyMetrics) -> Message:
    message = build_metrics_message(Metrics(usage=USAGE, execution_time_s=1.0, strategy_specific=metrics))
    found: Message = getattr(message, str(message.WhichOneof("strategy_specific")))
    return found


def plain(message: Message) -> dict[str, Any]:
    """Return a message in its form on the JSON wire."""
    data = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {key: item for name, value in data.items() for key, item in [_plain(name, value)]}


def _plain(name: str, value: Any) -> tuple[str, Any]:
    if name in {"execution_time", "program_time"}:
        return f"{name}_ms", round(float(value.removesuffix("s")) * 1000)
    if isinstance(value, dict):
        return name, dict(_plain(*each) for each in value.items())
    if isinstance(value, list):
        return name, [_plain(name, each)[1] for each in value]
    if isinstance(value, str) and name in {"baseline", "carryover_mode"}:
        return name, value.removeprefix("SAVINGS_BASELINE_").removeprefix("CARRYOVER_MODE_").lower()
    is_number = isinstance(value, str) and name.endswith("tokens")
    return name, int(value) if is_number else value


def unset(message: Message, path: str = "") -> set[str]:
    """Return the paths of the fields with default values, at every level."""
    found = {f"{path}{field.name}" for field in message.DESCRIPTOR.fields}
    for field, value in message.ListFields():
        found.discard(f"{path}{field.name}")
        if field.message_type is None or field.message_type.full_name.startswith("google."):
            continue
        for each in value if field.is_repeated else [value]:
            found |= unset(each, f"{path}{field.name}.")
    return found


def test_the_examples_cover_every_kind_of_step_and_of_metrics() -> None:
    assert set(DETAILS) == set(KINDS)
    assert set(METRICS) == set(SPECIFICS)


def test_every_alternative_of_the_proto_is_reached_by_some_kind() -> None:
    details = {build_iteration_message(iteration(detail)).WhichOneof("detail") for detail in DETAILS.values()}
    assert details == {field.name for field in execution_pb2.Iteration.DESCRIPTOR.oneofs_by_name["detail"].fields}
    runs = [Metrics(usage=USAGE, execution_time_s=1, strategy_specific=metrics) for metrics in METRICS.values()]
    known = execution_pb2.Metrics.DESCRIPTOR.oneofs_by_name["strategy_specific"].fields
    assert {build_metrics_message(run).WhichOneof("strategy_specific") for run in runs} == {
        field.name for field in known
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_says_the_same_on_both_wires_and_leaves_no_field_out(kind: type) -> None:
    message = build_iteration_message(iteration(DETAILS[kind]))
    name, shown = STEPS.kinds[kind].wire_tag, build_kind_json(DETAILS[kind])
    assert message.WhichOneof("detail") == name
    detail = getattr(message, name)
    # A successful tool call has is_error at its default: the only field that cannot be set everywhere.
    assert unset(detail) - {"observations.is_error"} == set()
    assert plain(detail) == shown if name != "custom" else dict(detail.items()) == shown


@pytest.mark.parametrize("kind", SPECIFICS)
def test_metrics_say_the_same_on_both_wires_and_leave_no_field_out(kind: type) -> None:
    message, shown = specific_message(METRICS[kind]), build_kind_json(METRICS[kind])
    if kind is CustomMetrics:
        assert json_format.MessageToDict(message) == shown
        return
    assert unset(message) == set()
    assert plain(message) == shown


@pytest.mark.parametrize("kind", KINDS)
def test_steps_without_texts_keep_their_kind_and_figures_and_nothing_that_was_written(kind: type) -> None:
    message = build_iteration_message(iteration(DETAILS[kind]), has_texts=False)
    assert message.WhichOneof("detail") == build_iteration_message(iteration(DETAILS[kind])).WhichOneof("detail")
    assert b"TEXT" not in message.SerializeToString()


def test_steps_without_texts_keep_calls_nodes_and_temperatures() -> None:
    cycle = build_iteration_message(iteration(CYCLE), has_texts=False).react
    assert [(call.call_id, call.tool) for call in cycle.actions] == [("c1", "calculator"), ("c2", "clock")]
    assert [result.is_error for result in cycle.observations] == [False, True]
    node = build_iteration_message(iteration(NODE), has_texts=False).tree
    assert (node.node_id, node.parent_id, node.depth, node.score, node.is_pruned) == ("n0.1", "n0", 1, 0.75, True)
    assert build_iteration_message(iteration(SAMPLE), has_texts=False).sample.temperature == 0.625
    report = build_iteration_message(iteration(WINDOW), has_texts=False).bounded_context.carryover_report
    assert (report.before_tokens, report.after_tokens, [one.part for one in report.dropped]) == (
        40,
        30,
        ["tail", "facts"],
    )


@pytest.mark.parametrize(
    "detail",
    [
        Thought(text=""),
        ReactStep(thought=""),
        TreeStep(node_id="", parent_id="", depth=0, thought="", score=0.0, is_pruned=False),
        Sample(text="", answer="", normalized_answer="", temperature=0.0),
        CustomStep(data={}),
    ],
)
def test_an_empty_step_still_has_its_kind(detail: StepDetail) -> None:
    assert build_iteration_message(iteration(detail)).WhichOneof("detail") == STEPS.kinds[type(detail)].wire_tag


def test_a_cycle_without_an_answer_leaves_its_iteration_out_over_grpc_and_null_in_json() -> None:
    found = METRICS[ReactMetrics]
    assert isinstance(found, ReactMetrics)
    metrics = replace(found, answer_found_at_iteration=None)
    assert not specific_message(metrics).HasField("answer_found_at_iteration")
    assert build_kind_json(metrics)["answer_found_at_iteration"] is None
    first = specific_message(replace(found, answer_found_at_iteration=0))
    assert first.HasField("answer_found_at_iteration")


def test_a_cycle_in_a_trace_has_the_keys_of_seed_001_first_and_in_its_order() -> None:
    (item,) = list_trace_items(iteration(CYCLE))
    assert list(item)[:6] == ["iteration", "thought", "action", "observation", "answer_found", "tokens"]
    assert item["action"] == 'calculator({"expression": "TEXT 2+2"})\nclock(TEXT {not JSON)'
    assert item["observation"] == 'TEXT 4\nError: {"error": "TEXT bad"}'
    assert (item["iteration"], item["answer_found"], item["tokens"]) == (2, False, 100)
    assert [call["tool"] for call in item["actions"]] == ["calculator", "clock"]
    assert [result["is_error"] for result in item["observations"]] == [False, True]


def test_the_cycle_that_found_the_answer_shows_it_as_its_observation() -> None:
    (item,) = list_trace_items(iteration(ReactStep(thought="I know"), answer_found=True), answer="a light jacket")
    assert (item["action"], item["observation"]) == ("Answer", "a light jacket")
    (other,) = list_trace_items(iteration(ReactStep(thought="I think"), answer_found=False), answer="a light jacket")
    assert (other["action"], other["observation"]) == ("", "")


def test_a_result_that_is_not_json_is_shown_unchanged() -> None:
    deep = "[" * 100_000
    for text in (deep, "{broken", "\u202ebidi"):
        detail = replace(CYCLE, observations=(replace(CYCLE.observations[0], result_json=text),))
        (item,) = list_trace_items(iteration(detail))
        assert item["observation"] == text


async def test_every_kind_goes_over_both_wires_of_a_real_server() -> None:
    """The stream, the trace of the unary answer and server-sent events of one server contain every kind of step."""
    details = list(DETAILS.values())
    strategy = Showing(*details, metrics=METRICS[ReactMetrics])
    async with running_server(model=ScriptedModel([]), strategies=[strategy]) as server:
        async with AsyncClient(server.grpc, token=server.token) as client:
            streamed = [event async for event in client.reason_iterations("q", strategy="showing")]
            unary = await client.reason("q", strategy="showing", trace_view=TraceView.TRACE_VIEW_FULL)
        sent = {"query": "q", "strategy": "showing", "auth_token": server.token}
        request = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": sent}
        async with make_http_client() as http:
            url = f"{server.http}/api/v1/jsonrpc"
            answer = (await http.post(url, json=request)).json()["result"]
            events = (await http.post(url, json=request, headers={"Accept": "text/event-stream"})).text
    expected = [build_iteration_message(iteration(detail)).WhichOneof("detail") for detail in details]
    steps = [event.iteration for event in streamed if event.WhichOneof("event") == "iteration"]
    assert [step.WhichOneof("detail") for step in steps] == expected
    assert [step.WhichOneof("detail") for step in unary.trace] == expected
    data = [json.loads(line.removeprefix("data: ")) for line in events.splitlines() if line.startswith("data: ")]
    bodies = [one["iteration"] for one in data if "iteration" in one]
    assert [name in body for name, body in zip(expected, bodies, strict=True)] == [True] * len(details)
    assert answer["metrics"]["strategy_specific"]["answer_found_at_iteration"] == 3
    assert unary.metrics.react.answer_found_at_iteration == 3
    assert len(answer["trace"]) == len(details) + 1  # a thought is two items
