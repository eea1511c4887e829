"""What the server says of repairs to its operators: audit, lines, spans and metrics, and no content in any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reasond_server.telemetry.spans import REPAIR_SPANS
from reasond_server.testing import ScriptedModel
from tests.contract.repair_calls import CHECK, EDIT, TASK, TEST, WIRES, call, mint, repairing_server, stream
from tests.contract.test_turn_lines import CANARY, Lines, lines_of_the_server
from tests.http_clients import make_http_client
from tests.spans import Spans, attributes_of

if TYPE_CHECKING:
    from reasond_server.assembly.app import Listening

__all__ = ["lines_of_the_server"]

pytestmark = pytest.mark.slow
CALC = f"def add(a, b):  # {CANARY}\n    return a - b\n"
CHECKED = f"from calc import add\n\nassert add(2, 3) == 5, '{CANARY} failed'\n"
MARKED = {
    **TASK,
    "description": f"The sum is wrong, said the {CANARY}.",
    "files": [
        {"path": "calc.py", "content": CALC},
        {"path": "test_calc.py", "content": CHECKED},
        {"path": f"{CANARY}.py", "content": TEST},
    ],
    "report": {"issues": [{"rule_id": "F1", "path": "calc.py", "message": f"{CANARY} again"}]},
    "checks": [{**CHECK, "argv": ["python", "test_calc.py", CANARY]}],
}
REPLY = f"{CANARY} thinks.\n\n{EDIT}"


async def test_the_audit_log_names_each_operation_once_with_the_repair(lines: Lines) -> None:
    with ScriptedModel([REPLY] * 3) as model:
        async with repairing_server(model) as server:
            done = [
                (await call(server, wire, "repair.execute", MARKED)).body["repair"]["execution_id"] for wire in WIRES
            ]
            streamed = (await stream(server, "jsonrpc", MARKED))[0][0]
            await call(server, "grpc", "repair.get", {"execution_id": streamed})
            await call(server, "jsonrpc", "repair.execute", MARKED, mint("executions:read"))
            await call(server, "grpc", "repair.list_environments", {})
            await call(server, "jsonrpc", "repair.create_snapshot", {"manifest": []})
    told = [(line["operation"], line["outcome"], line["execution_id"]) for line in lines.of("reasond.audit")]
    assert told == [
        *(("Repair", "allowed", each) for each in done),
        ("RepairSteps", "allowed", streamed),
        ("GetRepair", "allowed", streamed),
        ("Repair", "denied", ""),
        ("ListEnvironments", "allowed", ""),
        ("CreateSnapshot", "allowed", ""),
    ]
    assert CANARY not in "".join(lines.written)


async def test_a_repair_has_its_spans_and_metrics_and_no_content_is_in_any_of_them(
    lines: Lines, capfd: pytest.CaptureFixture[str]
) -> None:
    spans = Spans()
    with ScriptedModel([REPLY]) as model:
        async with repairing_server(model, spans=spans.sink, REASOND__METRICS__ADDRESS="127.0.0.1:0") as server:
            done = (await call(server, "grpc", "repair.execute", MARKED)).body["repair"]
            await spans.until(lambda one: one.find_named("reasond.v1.RepairService"))
            metrics = await read_metrics(server)
    assert any(CANARY in str(request.messages) for request in model.requests), "the search must find something"
    generated, scored, validated = (attributes_of(spans.one(name)) for name in REPAIR_SPANS)
    assert (generated["modelID"], generated["numCandidates"], generated["retryCount"]) == ("scripted", 1, 0)
    assert generated["tokensOut"] > 0
    assert (scored["numCandidatesScored"], scored["averageCriticScore"]) == (1, 100.0)
    assert (validated["patchID"], validated["validationStatus"]) == (done["final_candidate_id"], "success")
    chat, asked = spans.one("chat"), spans.one(REPAIR_SPANS[0])
    assert chat.parent is not None
    assert asked.context is not None
    assert chat.parent.span_id == asked.context.span_id
    level = done["level"]
    counts = {
        "reasond_repair_reflection_iterations_total": 1,
        "reasond_repair_candidates_active": 0,
        "reasond_repair_critic_score_sum": 100,
        "reasond_repair_early_terminations_total": 1,
        f'reasond_repair_check_duration_seconds_count{{level="{level}",outcome="failed"}}': 2,
        f'reasond_repair_check_duration_seconds_count{{level="{level}",outcome="passed"}}': 1,
        'reasond_executions_total{finish_reason="answered",strategy="repair"}': 1,
    }
    assert {name: metrics[name] for name in counts} == counts
    assert CANARY not in "".join(lines.written)
    assert CANARY not in "".join(capfd.readouterr())
    assert CANARY not in str(metrics)
    assert CANARY not in str([(one.name, attributes_of(one), one.events, one.status) for one in spans.all])


async def read_metrics(server: Listening) -> dict[str, float]:
    """Return the metrics by name and labels."""
    async with make_http_client() as client:
        text = (await client.get(server.metrics)).text
    pairs = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}
