"""The page of the JSON result lists exactly the keys that a result can have."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.http_api.json_mapping import build_kind_json, build_result_json, list_trace_items
from reasond_server.types import (
    ExecutionFailure,
    FinishReason,
    Iteration,
    Metrics,
    Result,
    StrategySource,
    Usage,
)
from reasond_server.types.kinds import METRICS as KINDS
from tests.contract.values import DETAILS, METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api" / "json.md"
USAGE = Usage(input_tokens=1)
STEPS = {
    "Thought": "`chain_of_thought`",
    "BoundedContextStep": "`bounded_context`",
    "ReactStep": "`react`",
    "TreeStep": "`tree_of_thought`",
    "Sample": "`self_consistency`",
    "StageStep": "a strategy in stages",
}
LIVE = ("chain_of_thought", "bounded_context", "react", "tree_of_thought", "self_consistency")
STAGED = ("best_of_n", "self_refine", "plan_and_solve", "chain_of_verification")  # the other one needs a sandbox
OWN_METRICS = [kind for kind in METRICS if not KINDS.kinds[kind].body]


def keys_in(value: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted keys of a JSON value; [] marks the items of lists."""
    if isinstance(value, dict):
        for name, inner in value.items():
            key = f"{path}.{name}" if path else name
            yield key
            yield from keys_in(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_in(inner, f"{path}[]")


def keys_on_page(heading: str) -> set[str]:
    """Return the keys that are listed below a heading."""
    _, _, rest = PAGE.read_text("utf-8").partition(f"\n## {heading}\n")
    assert rest, f"{PAGE.name} has no section {heading}"
    listed = rest.partition("\n## ")[0].partition("Keys: ")[2].partition("\n\n")[0]
    return set(re.findall(r"`([^`]+)`", listed))


def execute(server: Mapping[str, str], strategy: str) -> dict[str, Any]:
    """Return the result of a real call over JSON-RPC."""
    params = {"query": "What is 17 * 24?", "strategy": strategy}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params}).encode()
    headers = {"Authorization": f"Bearer {server['token']}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{server['http']}/api/v1/jsonrpc", body, headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        result: dict[str, Any] = json.load(response)["result"]
    return result


@pytest.mark.parametrize("strategy", [*LIVE, *STAGED])
def test_a_real_result_has_the_keys_of_its_tables(strategy: str, dev_server: Mapping[str, str]) -> None:
    result = execute(dev_server, strategy)
    trace, specific = result.pop("trace"), result["metrics"].pop("strategy_specific")
    of_page = keys_on_page("The `result`")
    rare = {key for key in of_page if key.startswith(("error", "answer_json"))}
    assert set(keys_in(result)) | {"trace", "metrics.strategy_specific"} == of_page - rare
    assert specific
    assert set(keys_in(specific)) <= keys_on_page(f"`strategy_specific` of `{strategy}`")
    assert trace
    items = "a strategy in stages" if strategy in STAGED else f"`{strategy}`"
    assert {key for item in trace for key in keys_in(item)} <= keys_on_page(f"An item of the `trace` of {items}")


def test_the_result_has_the_keys_of_its_table() -> None:
    result = Result(
        execution_id="e",
        answer="42",
        strategy_used="react",
        strategy_source=StrategySource.REQUEST,
        finish_reason=FinishReason.FAILED,
        metrics=Metrics(usage=USAGE, execution_time_s=1.0, strategy_specific=None),
        warnings=(),
        model="m",
        error=ExecutionFailure(reason="INTERNAL", message="m"),
        answer_json="42",
    )
    assert keys_on_page("The `result`") == set(keys_in(build_result_json(result, [])))


@pytest.mark.parametrize("kind", OWN_METRICS)
def test_what_a_strategy_reports_has_the_keys_of_its_table(kind: type) -> None:
    strategy = KINDS.kinds[kind].wire_tag
    assert keys_on_page(f"`strategy_specific` of `{strategy}`") == set(keys_in(build_kind_json(METRICS[kind])))


@pytest.mark.parametrize("kind", [kind for kind in DETAILS if kind.__name__ != "CustomStep"])
def test_items_of_a_trace_have_the_keys_of_their_table(kind: type) -> None:
    step = Iteration(index=0, answer_found=True, usage=USAGE, elapsed_s=1.0, detail=DETAILS[kind])
    found = {key for item in list_trace_items(step, answer="42") for key in keys_in(item)}
    assert keys_on_page(f"An item of the `trace` of {STEPS[kind.__name__]}") == found
