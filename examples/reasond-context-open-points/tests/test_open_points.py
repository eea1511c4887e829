from __future__ import annotations

import pytest
from reasond_open_points import OpenPoints

import reasond
from reasond_server.testing import ContextProviderConformance, ScriptedModel, running_server
from reasond_server.types.turns import ContextGoal, LedgerState, ToolStep


def step(tool: str, state: LedgerState) -> ToolStep:
    return ToolStep(call_id="c1", tool=tool, state=state, result_json="{}")


FAILED = step("fetch", LedgerState.FAILED)


@pytest.mark.parametrize("check", ContextProviderConformance.CHECKS)
async def test_the_provider_conforms(check: str) -> None:
    assert not await ContextProviderConformance(OpenPoints(), events=[FAILED, FAILED]).check(check)


def test_failures_in_a_row_are_counted_and_a_success_clears_them() -> None:
    provider = OpenPoints()
    state = provider.populate(FAILED, provider.populate(FAILED, {}))
    assert provider.render(state, ContextGoal.PLANNING).endswith("- fetch: failed 2 times in a row")
    assert provider.populate(step("fetch", LedgerState.SUCCEEDED), state) == {}
    assert provider.render({}, ContextGoal.PLANNING) == ""


async def test_a_server_finds_it_by_its_entry_point() -> None:
    model = ScriptedModel(["Hello."])
    environ = {"REASOND__TURNS__CONTEXT_PROVIDERS": '["open_points"]'}
    async with (
        running_server(model=model, environ=environ) as server,
        reasond.AsyncClient(server.grpc, token=server.token) as client,
    ):
        turn = await client.turn("Hi", session="s1")
    assert turn.answer == "Hello."
