"""A scrape after a mixed set of turns agrees with what was done, also where another process goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from reasond_server.testing import Reply, running_server
from reasond_server.types import ToolCall
from tests.contract.test_turns import OPEN_FILE, ask, model, reply, settle
from tests.integration.test_metrics_of_mixed_work import LIMIT_S, scrape, total

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from reasond_server.assembly.app import Listening

ENVIRON = {"REASOND__METRICS__ADDRESS": "127.0.0.1:0", "REASOND__TURNS__NEEDS_APPROVAL": '["calculator"]'}
CLIENT = {"message": "Read it.", "client_tools": [OPEN_FILE]}
LONG = '["' + '","'.join(f"row {number} of the table" for number in range(400)) + '"]'


def calculate(expression: str) -> Reply:
    call = ToolCall(call_id="p", name="calculator", arguments_json=f'{{"expression": "{expression}"}}')
    return Reply(text="I compute.", tool_calls=(call,))


async def scrape_until(listening: Listening, name: str, value: float) -> Mapping[str, float]:
    """Return a scrape in which the series `name` has `value`, because some are counted after the answer."""
    async with asyncio.timeout(LIMIT_S):
        while (found := await scrape(listening)).get(name) != value:  # noqa: ASYNC110 - it shows only in a scrape
            await asyncio.sleep(0.05)
    return found


def exits(found: Mapping[str, float]) -> dict[str, float]:
    names = ("done", "client_tools", "failed", "cancelled", "expired")
    return {name: found[f'reasond_turns_total{{exit="{name}"}}'] for name in names}


async def start(server: Listening, **more: Any) -> Any:
    return await ask(server, "grpc", "turns.start", {**CLIENT, **more})


async def use(server: Listening) -> None:
    """Do a turn with a client's tool and a repeated re-entry, an approval, a failure, and a cancelled hand-off."""
    first = await start(server)
    reentry = settle(first, ("c1", LONG))
    assert (await ask(server, "grpc", "turns.reenter", settle(first, ("c9", "1")))).reason
    assert (await ask(server, "grpc", "turns.reenter", reentry)).body["result"]["answer"] == "It says hello."
    assert (await ask(server, "grpc", "turns.reenter", reentry)).body["result"]["answer"] == "It says hello."
    assert (await ask(server, "grpc", "turns.reenter", {**reentry, "etag": "another"})).reason
    approved = await start(server)
    decision = [{"call_id": "c1", "is_approved": True, "reason": "it is harmless"}]
    await ask(server, "grpc", "turns.reenter", {**settle(approved), "decisions": decision})
    assert (await start(server)).reason == "TOOL_NOT_REGISTERED"
    left = await start(server)
    await ask(server, "grpc", "turns.cancel", {"turn_id": left.turn["turn_id"]})


async def test_a_scrape_after_mixed_turns_says_exactly_what_was_done() -> None:
    unknown = Reply(tool_calls=(ToolCall(call_id="p", name="the secret plan", arguments_json="{}"),))
    replies = (reply("a"), "It says hello.", "It says hello.", calculate("6*7"), "42", unknown, reply("b"))
    with model(*replies) as scripted:
        async with running_server(model=scripted, environ=ENVIRON) as server:
            await use(server)
            found = await scrape_until(server, 'reasond_turns_total{exit="cancelled"}', 1)
    assert exits(found) == {"done": 2, "client_tools": 3, "failed": 1, "cancelled": 1, "expired": 0}
    of = {name: found[f'reasond_handoffs_total{{outcome="{name}"}}'] for name in ("handed_off", "settled", "cancelled")}
    assert of == {"handed_off": 3, "settled": 2, "cancelled": 1}
    assert found["reasond_handoff_calls_total"] == 3
    assert found['reasond_handoff_wait_seconds_count{outcome="settled"}'] == 2
    told = {outcome: found[f'reasond_reentries_total{{outcome="{outcome}"}}'] for outcome in ("accepted", "replayed")}
    assert told == {"accepted": 2, "replayed": 1}
    assert total(found, "reasond_reentries_total") == 5
    assert found['reasond_executions_total{finish_reason="answered",strategy="turn"}'] == 2
    assert found['reasond_tool_calls_total{outcome="ok",tool="calculator"}'] == 1
    assert found['reasond_context_tokens_total{goal="planning",rendering="preview"}'] > 0
    whole = found['reasond_context_tokens_total{goal="synthesis",rendering="full"}']
    assert whole > found['reasond_context_tokens_total{goal="planning",rendering="preview"}']
    assert found["reasond_tool_outcomes_unknown_total"] == 0
    assert not any("secret" in series or "row" in series for series in found)


async def test_waiting_turns_are_counted_by_every_process_of_the_store(tmp_path: Path) -> None:
    environ = {**ENVIRON, "REASOND__STORE__URL": f"sqlite:///{tmp_path}/reasond.db"}
    with model(reply("a"), reply("b"), "It says hello.") as scripted:
        async with running_server(model=scripted, environ=environ) as one:
            first = await start(one)
            await start(one)
            await scrape_until(one, "reasond_turns_awaiting", 2)
        async with running_server(model=scripted, environ=environ) as other:
            await scrape_until(other, "reasond_turns_awaiting", 2)
            await ask(other, "grpc", "turns.reenter", settle(first, ("c1", '"hello"')))
            found = await scrape_until(other, "reasond_turns_awaiting", 1)
            assert found['reasond_handoffs_total{outcome="settled"}'] == 1
