"""Repairs on a real Temporal server, with real processes that are killed.

By hand: `TEMPORAL_KILLS=20 TEMPORAL_SEEDS=50 pytest -n0 tests/temporal/test_repairs_on_temporal.py`.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.json_format import MessageToDict

import reasond
from reasond.v1.execution_pb2 import (
    FINISH_REASON_ANSWERED,
    FINISH_REASON_BUDGET_EXHAUSTED,
    FINISH_REASON_CANCELLED,
    ExecutionCursor,
)
from reasond.v1.repairs_pb2 import RepairSearch
from reasond_server.assembly.stores import migrate_stores
from reasond_server.engines import workflow
from reasond_server.types.repairs import SandboxLevel
from tests.engines.served import serving
from tests.faults.test_repair_crashes import RIGHT, WRITTEN, CountingModel, client_of, follow, make_task, settings_of
from tests.faults.turn_servers import read_count
from tests.faults.upstream import upstream
from tests.forking import ForkedProcess
from tests.sandboxing import require_level
from tests.temporal.temporal_server import find_temporal, running_temporal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from reasond.v1.repair_service_pb2 import RepairStepsResponse
    from tests.engines.postgres import PostgresServer
    from tests.temporal.temporal_server import TemporalServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]

KILLS = read_count("TEMPORAL_KILLS", 1)
SEEDS = read_count("TEMPORAL_SEEDS", 2)
PATIENCE_S = 300.0
KEPT = {"REASOND__STORE__RECORD_PROMPTS": "true"}
ACTIVITIES = (
    *(workflow.MEASURE_BASELINE, workflow.BOUND_TOKENS, workflow.GENERATE, workflow.SCORE, workflow.COMMIT),
    *(workflow.REFLECT, workflow.VALIDATE, workflow.FINALIZE),
)
"""In the order in which they first come."""
CHECKS_RUN = 20
"""Two checks twice on the original, one on each of 15 candidates, one on the winner."""
SECRET = "a sentence that no cluster may learn"
LARGEST_HISTORY = 1024 * 1024
TENANT = "sub:developer"


@pytest.fixture(scope="module")
def temporal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    find_temporal()
    with running_temporal(tmp_path_factory.mktemp("temporal")) as server:
        yield server


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    url = postgres.new_database()
    migrate_stores(url=url, data_dir="")
    return url


@asynccontextmanager
async def answering(*, lost: Collection[int] = ()) -> AsyncIterator[tuple[CountingModel, dict[str, str]]]:
    """Yield a model, and the settings that all processes share but for the store and the engine.

    It leaves once without an answer to attempts in `lost`.
    """
    require_level(SandboxLevel.BWRAP)
    model = CountingModel(lost=lost)
    async with upstream(model.answer) as server:
        yield model, settings_of(server)


def on(temporal: TemporalServer, store_url: str, queue: str, *work_on: str) -> dict[str, str]:
    """Return the settings of an engine; `queue` keeps the workers of tests apart."""
    return {
        "REASOND__STORE__URL": store_url,
        "REASOND__ENGINE__REPAIR": "temporal",
        "REASOND__ENGINE__ADDRESS": temporal.address,
        "REASOND__ENGINE__QUEUE": queue,
        "REASOND__ENGINE__WORK_ON": json.dumps(work_on or ["models", "checks"]),
    }


@contextmanager
def working(folder: Path, name: str, environ: Mapping[str, str], *queues: str) -> Iterator[ForkedProcess]:
    """Run `reasond worker` while the context lasts."""
    asked = [word for queue in queues for word in ("--queue", queue)]
    process = ForkedProcess("worker", *asked, environ=environ, folder=folder, stderr=folder / f"{name}.log")
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def check_repaired(events: Sequence[RepairStepsResponse], model: CountingModel) -> None:
    """Check that a repair ended as it does in one process, that nothing is missing, and that all was paid once."""
    assert [each.sequence for each in events] == [*range(1, len(events) + 1)]
    result = events[-1].completed
    assert result.is_accepted
    assert result.finish_reason == FINISH_REASON_ANSWERED
    assert f"+    return value * {RIGHT}" in result.patch
    assert result.usage.model_calls == len(model.asked)
    assert not result.warnings


async def list_prompts(client: reasond.AsyncClient, events: Sequence[RepairStepsResponse]) -> Sequence[str]:
    """Return the prompt of each model call, which are kept once each."""
    calls = [call async for call in client.list_model_calls(events[-1].execution_id)]
    assert len(calls) == events[-1].completed.usage.model_calls
    assert sum(call.usage.output_tokens for call in calls) == events[-1].completed.usage.output_tokens
    return ["".join(message.text for message in call.prompt) for call in calls]


async def test_two_pools_share_a_repair_and_the_cluster_learns_no_text(
    tmp_path: Path, temporal: TemporalServer, database: str
) -> None:
    async with answering() as (model, settings):
        environ = settings | on(temporal, database, "pools", "models") | KEPT
        keyless = {name: text for name, text in environ.items() if name != "OPENAI_API_KEY"}
        task = make_task()
        task.description = f"{SECRET}: {task.description}"
        async with serving(tmp_path, "server", environ) as served, client_of(served) as client:
            with working(tmp_path, "checks", keyless, "checks"):
                events = await follow(client, task)
            prompts = await list_prompts(client, events)
    check_repaired(events, model)
    assert all(SECRET in prompt for prompt in prompts)
    history = temporal.show_history(f"repair/{TENANT}/{events[0].execution_id}")
    assert json.loads(history)["events"][-1]["eventType"] == "EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED"
    assert len(history) < LARGEST_HISTORY
    for text in (SECRET, "return value", "test_scaling", "scaling.py"):
        assert text not in history
        assert text.encode().hex() not in history
    assert all(model.asked[attempt] == 1 for attempt in model.asked)


async def test_a_worker_that_dies_in_any_activity_costs_nothing_twice(
    tmp_path: Path, temporal: TemporalServer, database: str
) -> None:
    for number in range(KILLS):
        async with answering() as (model, settings):
            folder = tmp_path / str(number)
            folder.mkdir()
            environ = settings | on(temporal, database, f"kills-{number}") | {"REASOND__ENGINE__WORK_ON": "[]"} | KEPT
            async with serving(folder, "server", environ) as served, client_of(served) as client:
                task = make_task()
                task.budget.max_total_tokens = 1_000_000
                (first,) = await follow(client, task, most=1)
                paid: dict[int, int] = {}
                for name in ACTIVITIES:
                    await wait_for_death(folder, environ | {"DIE_IN": name})
                    for candidate in list_complete(folder):
                        paid.setdefault(candidate, model.asked[candidate])
                with working(folder, "last", environ):
                    async with asyncio.timeout(PATIENCE_S):
                        events = await follow(client, ExecutionCursor(execution_id=first.execution_id))
                await list_prompts(client, events)
            check_repaired(events, model)
            done = (folder / "done.txt").read_text("utf-8")
            assert [line.partition("/")[0] for line in done.splitlines()] == [*ACTIVITIES]
            # Before that a call may have been in flight when another worker died.
            assert all(model.asked[each] == times for each, times in paid.items()), "a complete call was made again"
            assert events[-1].completed.checks == CHECKS_RUN


def list_complete(folder: Path) -> Sequence[int]:
    """Return the numbers of the candidates that workers had written when they died."""
    done = (folder / "done.txt").read_text("utf-8")
    return [int(number) for number in re.findall(r"^(?:generate|reflect)\w+/cand-(\d+)$", done, re.MULTILINE)]


async def wait_for_death(folder: Path, environ: Mapping[str, str]) -> None:
    """Let a worker work until it dies where `DIE_IN` says."""
    name = environ["DIE_IN"]
    process = ForkedProcess(
        environ=environ, folder=folder, stderr=folder / f"{name}.log", call="tests.temporal.dying_worker:main"
    )
    try:
        assert await asyncio.to_thread(process.wait, PATIENCE_S) == -signal.SIGKILL, name
    finally:
        process.kill()
        process.wait()


async def test_a_cluster_that_is_killed_and_comes_back_goes_on(tmp_path: Path) -> None:
    find_temporal()
    with running_temporal(tmp_path) as temporal:
        async with answering() as (model, settings):
            environ = settings | on(temporal, f"sqlite:///{tmp_path / 'reasond.db'}", "outage")
            async with serving(tmp_path, "server", environ) as served, client_of(served) as client:
                seen = await follow(client, make_task(), most=8)
                temporal.kill()
                with pytest.raises(reasond.ReasondError) as refused:
                    await follow(client, make_task())
                assert refused.value.reason == "ENGINE_UNAVAILABLE"
                await asyncio.to_thread(temporal.start)
                async with asyncio.timeout(PATIENCE_S):
                    events = await follow(client, ExecutionCursor(execution_id=seen[-1].execution_id))
        check_repaired(events, model)


async def test_a_server_that_is_killed_is_replaced_while_the_workers_go_on(
    tmp_path: Path, temporal: TemporalServer, database: str
) -> None:
    async with answering() as (model, settings):
        environ = settings | on(temporal, database, "takeover") | {"REASOND__ENGINE__WORK_ON": "[]"} | KEPT
        with working(tmp_path, "worker", environ):
            async with serving(tmp_path, "first", environ) as first, client_of(first) as client:
                seen = await follow(client, make_task(), most=6)
                first.process.kill()
                first.process.wait()
            async with serving(tmp_path, "second", environ) as second, client_of(second) as client:
                async with asyncio.timeout(PATIENCE_S):
                    events = await follow(client, ExecutionCursor(execution_id=seen[-1].execution_id))
                await list_prompts(client, events)
    check_repaired(events, model)
    assert [each.SerializeToString() for each in events[: len(seen)]] == [each.SerializeToString() for each in seen]
    assert all(count == 1 for count in model.asked.values())


async def test_a_repair_is_cancelled_and_one_that_an_operator_ends_has_failed(
    tmp_path: Path, temporal: TemporalServer
) -> None:
    async with answering() as (_, settings):
        environ = settings | on(temporal, f"sqlite:///{tmp_path / 'reasond.db'}", "ends")
        async with serving(tmp_path, "server", environ) as served, client_of(served) as client:
            cancelled = (await follow(client, make_task(), most=3))[-1].execution_id
            assert (await client.cancel_execution(cancelled)).finish_reason == FINISH_REASON_CANCELLED
            await until_closed(temporal, cancelled, "EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED")
            ended = (await follow(client, make_task(), most=3))[-1].execution_id
            temporal.terminate(f"repair/{TENANT}/{ended}")
            with pytest.raises(reasond.ReasondError) as failed:
                await follow(client, ExecutionCursor(execution_id=ended))
            assert failed.value.reason == "ENGINE_FAILED"


async def until_closed(temporal: TemporalServer, execution_id: str, last: str) -> None:
    """Wait until the history of a workflow ends with an event."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            history = await asyncio.to_thread(temporal.show_history, f"repair/{TENANT}/{execution_id}")
            if json.loads(history)["events"][-1]["eventType"] == last:
                return
            await asyncio.sleep(0.2)


async def test_one_request_id_is_one_workflow_however_often_it_is_sent(
    tmp_path: Path, temporal: TemporalServer
) -> None:
    async with answering() as (model, settings):
        environ = settings | on(temporal, f"sqlite:///{tmp_path / 'reasond.db'}", "twice")
        async with serving(tmp_path, "server", environ) as served, client_of(served) as client:
            results = await asyncio.gather(
                *(client.repair(make_task(), request_id="once", timeout_s=PATIENCE_S) for _ in range(100))
            )
    assert len({each.execution_id for each in results}) == 1
    assert all(count == 1 for count in model.asked.values())


async def test_a_unary_call_without_a_request_id_is_worked_out_and_kept(
    tmp_path: Path, temporal: TemporalServer
) -> None:
    async with answering() as (_, settings):
        environ = settings | on(temporal, f"sqlite:///{tmp_path / 'reasond.db'}", "unary")
        async with serving(tmp_path, "server", environ) as served, client_of(served) as client:
            result = await client.repair(make_task(), timeout_s=PATIENCE_S)
            found = await client.get_repair(result.execution_id)
    assert result.is_accepted
    assert found.repair.patch == result.patch


@pytest.mark.parametrize("engine", ["in_process", "temporal"])
async def test_what_all_candidates_write_stays_within_the_budget(
    tmp_path: Path, temporal: TemporalServer, engine: str
) -> None:
    async with answering() as (model, settings):
        there = on(temporal, f"sqlite:///{tmp_path / 'reasond.db'}", "written")
        environ = settings | there | {"REASOND__ENGINE__REPAIR": engine}
        async with serving(tmp_path, "server", environ) as served, client_of(served) as client:
            task = make_task()
            task.config.num_candidates = 1
            task.budget.max_output_tokens = 3 * WRITTEN
            result = (await follow(client, task))[-1].completed
    assert result.finish_reason == FINISH_REASON_BUDGET_EXHAUSTED
    assert result.usage.output_tokens == 3 * WRITTEN
    assert model.allowed == [3 * WRITTEN, 2 * WRITTEN, WRITTEN]


async def test_an_attempt_without_an_answer_is_not_repeated_with_the_tokens_of_other_candidates(
    tmp_path: Path, temporal: TemporalServer
) -> None:
    async with answering(lost=[2]) as (model, settings):
        environ = settings | on(temporal, f"sqlite:///{tmp_path / 'reasond.db'}", "lost")
        async with serving(tmp_path, "server", environ) as served, client_of(served) as client:
            task = make_task()
            task.budget.max_total_tokens = 1_000_000
            result = (await follow(client, task))[-1].completed
    assert result.is_accepted
    assert model.asked[2] == 1


async def test_both_engines_write_the_same_log(tmp_path: Path, temporal: TemporalServer) -> None:
    async with answering() as (_, settings):
        url = f"sqlite:///{tmp_path / 'reasond.db'}"
        here = {"REASOND__STORE__URL": f"sqlite:///{tmp_path / 'here.db'}"}
        async with (
            serving(tmp_path, "here", settings | here) as one,
            client_of(one) as in_process,
            serving(tmp_path, "there", settings | on(temporal, url, "same")) as two,
            client_of(two) as other,
        ):
            for seed in range(SEEDS):
                assert await tell(in_process, seed) == await tell(other, seed)


async def tell(client: reasond.AsyncClient, seed: int) -> Sequence[Mapping[str, Any]]:
    """Return the events of a repair whose search depends on `seed`, without ids and times."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    task = make_task()
    task.config.search = chance.choice(RepairSearch.values()[1:])
    task.config.num_candidates = chance.randint(1, 4)
    task.config.max_candidates = chance.randint(1, 12)
    task.config.seed = seed
    return [without_times(MessageToDict(each)) for each in await follow(client, task)]


def without_times(row: Any) -> Any:
    """Return JSON without what differs from run to run."""
    if isinstance(row, str):
        return re.sub(r"\d+\.\d+s", "", row)
    if isinstance(row, list):
        return [without_times(each) for each in row]
    if not isinstance(row, dict):
        return row
    own = {"executionId", "createTime", "elapsed", "checkCpu", "cpu", "snapshotId"}
    return {name: without_times(each) for name, each in row.items() if name not in own}
