"""The page of the JSON result lists exactly the keys that a result can have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

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
from reasond_server.wire.json_kinds import kind_json
from reasond_server.wire.json_mapping import result_json, trace_items
from tests.contract.values import DETAILS, METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "json-result.md"
USAGE = Usage(input_tokens=1)
STEPS = {
    "Thought": "`chain_of_thought`",
    "BoundedContextStep": "`bounded_context`",
    "ReactStep": "`react`",
    "TreeStep": "`tree_of_thought`",
    "Sample": "`self_consistency`",
    "StageStep": "a strategy in stages",
}
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
    """Return the keys in the table below a heading."""
    _, _, rest = PAGE.read_text("utf-8").partition(f"\n## {heading}\n")
    assert rest, f"{PAGE.name} has no section {heading}"
    return set(re.findall(r"^\| `([^`]+)` \|", rest.partition("\n## ")[0], re.MULTILINE))


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
    assert keys_on_page("The `result`") == set(keys_in(result_json(result, [])))


@pytest.mark.parametrize("kind", OWN_METRICS)
def test_what_a_strategy_reports_has_the_keys_of_its_table(kind: type) -> None:
    strategy = KINDS.kinds[kind].wire_tag
    assert keys_on_page(f"`strategy_specific` of `{strategy}`") == set(keys_in(kind_json(METRICS[kind])))


@pytest.mark.parametrize("kind", [kind for kind in DETAILS if kind.__name__ != "CustomStep"])
def test_items_of_a_trace_have_the_keys_of_their_table(kind: type) -> None:
    step = Iteration(index=0, answer_found=True, usage=USAGE, elapsed_s=1.0, detail=DETAILS[kind])
    found = {key for item in trace_items(step, answer="42") for key in keys_in(item)}
    assert keys_on_page(f"An item of the `trace` of {STEPS[kind.__name__]}") == found
