import asyncio
import gc
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from reasond_server.agents.cards import parse_card
from reasond_server.assembly.core import Core, assemble
from reasond_server.config import Settings
from reasond_server.errors.access import PermissionMissingError
from reasond_server.errors.base import InternalError
from reasond_server.errors.executions import ExecutionNotFoundError
from reasond_server.errors.limits import OverloadedError, StoreUnavailableError
from reasond_server.errors.model import ModelUnavailableError
from reasond_server.errors.request import (
    AgentNotFoundError,
    InvalidConfigError,
    InvalidRequestError,
    RequestIdReusedError,
    StrategyNotSupportedError,
)
from reasond_server.llm.model import ChatModel, ChatRequest, ModelEvent
from reasond_server.reasoning.registry import StrategyRegistry
from reasond_server.reasoning.views import read_view
from reasond_server.runs.run import Run
from reasond_server.strategies.chain_of_thought import ChainOfThought
from reasond_server.strategies.program_of_thought import ProgramOfThought
from reasond_server.strategies.strategy import (
    Outcome,
    ReasoningStrategy,
    RunContext,
    StrategyConfig,
    StrategyEvent,
)
from reasond_server.testing import Reply, ScriptedModel
from reasond_server.types import (
    CustomMetrics,
    ExecutionStarted,
    ExecutionState,
    FinishReason,
    Iteration,
    Principal,
    Result,
    StrategySource,
    Task,
)

ALICE = Principal(subject="alice", tenant="acme", permissions=frozenset({"reasoning:execute"}))


EVE = Principal(subject="eve", tenant="evil", permissions=frozenset({"reasoning:execute"}))


CARD = '{"id": "a1", "capabilities": ["reasoning.strategy.slow"], "strategy_config": {"slow": {"max_tokens": 7}}}'


MakeCore = Callable[..., Core]


@pytest.fixture
def make_core(registry: StrategyRegistry) -> MakeCore:
    def make(*replies: str | Reply, **sections: Any) -> Core:
        sections.setdefault("reasoning", {"default_strategy": "", "enabled_strategies": []})
        settings = Settings.model_validate_json(json.dumps(sections))
        return assemble(settings, model=ScriptedModel(list(replies)), registry=registry)

    return make


async def test_execute_and_stream_tell_the_same_story(make_core: MakeCore) -> None:
    service = make_core("forty-two", "forty-two").reasoning
    task = Task(query="why?", strategy="quick")
    view = await service.execute(ALICE, task)
    async with aclosing(service.stream(ALICE, task)) as stream:
        events = [event.event async for event in stream]
    assert [type(event) for event in events] == [ExecutionStarted, Iteration, Result]
    assert isinstance(events[-1], Result)
    assert view.result.answer == events[-1].answer == "forty-two"
    assert view.result.finish_reason is FinishReason.ANSWERED
    assert view.result.strategy_source is StrategySource.REQUEST
    assert view.execution.state is ExecutionState.SUCCEEDED
    assert [step.index for step in view.steps] == [0]


async def test_a_bad_task_is_refused_before_anything_starts(make_core: MakeCore) -> None:
    service = make_core().reasoning
    with pytest.raises(InvalidRequestError):
        await service.execute(ALICE, Task(query="", strategy="quick"))
    with pytest.raises(InvalidConfigError, match="max_tokens must be at least 1"):
        await service.execute(ALICE, Task(query="why?", strategy="quick", config={"max_tokens": 0}))
    assert (await service.desk.list(ALICE)).executions == []


async def test_a_failed_run_raises_its_error_and_keeps_its_result(make_core: MakeCore) -> None:
    service = make_core(Reply(text="", error=ModelUnavailableError("gone"))).reasoning
    with pytest.raises(ModelUnavailableError) as raised:
        await service.execute(ALICE, Task(query="why?", strategy="quick"))
    assert raised.value.execution_id is not None
    view = await read_view(service.desk, ALICE, raised.value.execution_id)
    assert view.result.finish_reason is FinishReason.FAILED
    assert view.execution.state is ExecutionState.FAILED


async def test_a_strategy_that_the_token_does_not_name_is_refused(make_core: MakeCore) -> None:
    service = make_core("yes").reasoning
    narrow = Principal(subject="n", tenant="acme", permissions=frozenset({"reasoning:execute:quick"}))
    with pytest.raises(PermissionMissingError, match="'reasoning:execute:slow'"):
        await service.execute(narrow, Task(query="why?", strategy="slow"))
    assert (await service.execute(narrow, Task(query="why?", strategy="quick"))).result.answer == "yes"


async def test_a_token_for_one_strategy_touches_no_run_of_another(make_core: MakeCore) -> None:
    service = make_core("mine", "his").reasoning
    narrow = Principal(
        subject="n", tenant="acme", permissions=frozenset({"reasoning:execute:quick", "executions:read"})
    )
    mine = (await service.execute(narrow, Task(query="why?", strategy="quick"))).execution.execution_id
    task = Task(query="why?", strategy="slow")
    his = (await service.execute(ALICE, task, request_id="r-1")).execution.execution_id
    events = [event async for event in service.desk.resume(narrow, mine, after_sequence=0)]
    assert isinstance(events[-1].event, Result)
    uses: list[Callable[[], Any]] = [
        lambda: anext(service.desk.resume(narrow, his, after_sequence=0)),
        lambda: service.desk.cancel(narrow, his),
        lambda: service.desk.delete(narrow, his),
        lambda: service.execute(narrow, task, request_id="r-1"),
        lambda: anext(service.stream(narrow, task, request_id="r-1")),
    ]
    for use in uses:
        with pytest.raises(PermissionMissingError, match="'reasoning:execute:slow'"):
            await use()
    # The scope `executions:read` covers every strategy.
    assert (await read_view(service.desk, narrow, his)).result.answer == "his"
    await service.desk.delete(narrow, mine)


async def test_an_agents_strategies_and_parameters_apply(make_core: MakeCore) -> None:
    core = make_core("yes")
    parsed = parse_card(CARD, max_bytes=1000)
    await core.directory.register(tenant="acme", agent_id="a1", parsed=parsed, ttl_s=None, etag="")
    async with aclosing(core.reasoning.stream(ALICE, Task(query="why?", agent="a1"))) as stream:
        started = (await anext(stream)).event
    assert isinstance(started, ExecutionStarted)
    assert (started.strategy, started.strategy_source) == ("slow", StrategySource.AGENT)
    assert started.config["max_tokens"] == 7
    with pytest.raises(StrategyNotSupportedError):
        await core.reasoning.execute(ALICE, Task(query="why?", agent="a1", strategy="quick"))
    with pytest.raises(AgentNotFoundError):
        await core.reasoning.execute(EVE, Task(query="why?", agent="a1"))


async def test_a_directory_that_hangs_is_not_waited_for(make_core: MakeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core(reasoning={"performance": {"strategy_selection_timeout_ms": 5}, "enabled_strategies": []})

    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(type(core.directory), "get", hang)
    with pytest.raises(StoreUnavailableError, match="longer than 5 ms") as refused:
        await core.reasoning.execute(ALICE, Task(query="why?", agent="a1"))
    assert refused.value.retry_after_s == 1.0


async def test_a_look_up_that_is_answered_while_the_event_loop_stands_still_is_not_refused(
    make_core: MakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core("yes", reasoning={"performance": {"strategy_selection_timeout_ms": 500}, "enabled_strategies": []})
    parsed = parse_card(CARD, max_bytes=1000)
    await core.directory.register(tenant="acme", agent_id="a1", parsed=parsed, ttl_s=None, etag="")
    found = await core.directory.get(tenant="acme", agent_id="a1")

    stands = threading.Event()

    def stall() -> None:
        stands.set()
        time.sleep(0.6)

    async def from_a_thread(*_: object, **__: object) -> object:
        asyncio.get_running_loop().call_soon(stall)
        await asyncio.to_thread(stands.wait, 60)
        return found

    monkeypatch.setattr(type(core.directory), "get", from_a_thread)
    view = await core.reasoning.execute(ALICE, Task(query="why?", agent="a1"))
    assert view.result is not None
    assert view.result.strategy_used == "slow"


async def test_a_hundred_duplicates_of_a_request_make_one_run(make_core: MakeCore) -> None:
    service = make_core("yes").reasoning
    task = Task(query="why?", strategy="quick")
    views = await asyncio.gather(*(service.execute(ALICE, task, request_id="r1") for _ in range(100)))
    assert len({view.execution.execution_id for view in views}) == 1
    with pytest.raises(RequestIdReusedError):
        await service.execute(ALICE, Task(query="other?", strategy="quick"), request_id="r1")


async def test_a_caller_that_goes_away_cancels_its_run(make_core: MakeCore) -> None:
    service = make_core(Reply(text="never", hold=asyncio.Event())).reasoning
    stream = service.stream(ALICE, Task(query="why?", strategy="quick"))
    execution_id = (await anext(stream)).execution_id
    await stream.aclose()
    assert (await service.desk.cancel(ALICE, execution_id)).state is ExecutionState.CANCELLED


async def test_a_run_that_is_kept_is_resumed_without_loss(make_core: MakeCore) -> None:
    hold = asyncio.Event()
    service = make_core(Reply(text="late", hold=hold)).reasoning
    stream = service.stream(ALICE, Task(query="why?", strategy="quick"), keep_running=True)
    execution_id = (await anext(stream)).execution_id
    await stream.aclose()
    assert (await read_view(service.desk, ALICE, execution_id)).result.finish_reason is None
    hold.set()
    events = [event async for event in service.desk.resume(ALICE, execution_id, after_sequence=1)]
    assert [event.sequence for event in events] == [2, 3]
    assert isinstance(events[-1].event, Result)
    assert events[-1].event.answer == "late"


@pytest.mark.parametrize("after", [-1, 4])
async def test_a_cursor_outside_the_log_is_refused_with_its_range(make_core: MakeCore, after: int) -> None:
    service = make_core("yes").reasoning
    view = await service.execute(ALICE, Task(query="why?", strategy="quick"))
    stream = service.desk.resume(ALICE, view.execution.execution_id, after_sequence=after)
    with pytest.raises(InvalidRequestError, match=f"resume.after_sequence must be between 0 and 3, got {after}"):
        await anext(stream)


async def test_another_tenant_cannot_read_cancel_or_delete(make_core: MakeCore) -> None:
    service = make_core("yes").reasoning
    execution_id = (await service.execute(ALICE, Task(query="why?", strategy="quick"))).execution.execution_id
    for call in (service.desk.read, service.desk.cancel, service.desk.delete):
        with pytest.raises(ExecutionNotFoundError):
            await call(EVE, execution_id)
    with pytest.raises(ExecutionNotFoundError):
        await anext(service.desk.resume(EVE, execution_id, after_sequence=0))
    assert (await service.desk.list(EVE)).executions == []


async def test_deleting_a_running_execution_stops_it_and_forgets_it(make_core: MakeCore) -> None:
    service = make_core(Reply(text="never", hold=asyncio.Event())).reasoning
    stream = service.stream(ALICE, Task(query="why?", strategy="quick"), keep_running=True)
    execution_id = (await anext(stream)).execution_id
    await service.desk.delete(ALICE, execution_id)
    with pytest.raises(ExecutionNotFoundError):
        await read_view(service.desk, ALICE, execution_id)
    await stream.aclose()


async def test_executions_are_listed_page_by_page(make_core: MakeCore) -> None:
    service = make_core(*["yes"] * 5).reasoning
    ids = [
        (await service.execute(ALICE, Task(query="why?", strategy="quick"))).execution.execution_id for _ in range(5)
    ]
    first = await service.desk.list(ALICE, page_size=3)
    rest = await service.desk.list(ALICE, page_size=3, page_token=first.next_page_token)
    assert sorted(one.execution_id for one in (*first.executions, *rest.executions)) == sorted(ids)
    assert rest.next_page_token == ""
    with pytest.raises(InvalidRequestError, match="page_token must be the next_page_token"):
        await service.desk.list(ALICE, strategy="slow", page_token=first.next_page_token)
    for token in ("!!!", "e30=", "WzEsMiwzXQ=="):
        with pytest.raises(InvalidRequestError):
            await service.desk.list(ALICE, page_token=token)
    with pytest.raises(InvalidRequestError, match="page_size must be at least 0, got -1"):
        await service.desk.list(ALICE, page_size=-1)
    assert len((await service.desk.list(ALICE, page_size=1000)).executions) == 5


async def test_strategies_are_described_with_what_applies_here(make_core: MakeCore) -> None:
    tables = {"quick": {"default_max_tokens": 9}}
    reasoning = {"default_strategy": "quick", "enabled_strategies": ["quick"], "strategies": tables}
    infos = make_core(reasoning=reasoning).reasoning.strategies()
    assert [info.name for info in infos] == ["quick", "slow"]
    assert infos[0].default_config == {"max_tokens": 9, "temperature": 0.5, "shout": False}
    assert infos[0].config_schema["properties"]["max_tokens"]["default"] == 9
    assert (infos[0].is_default, infos[1].is_default) == (True, False)


class Careful(ReasoningStrategy[StrategyConfig]):
    """Reports when it checks a task, and waits for the test before the check ends."""

    name = "careful"
    description = "Checks for long."
    config_type = StrategyConfig

    def __init__(self, error: BaseException | None = None) -> None:
        self.checks = 0
        self.checking = threading.Event()
        self.go_on = threading.Event()
        self.error = error

    def check(self, task: Task, config: StrategyConfig, model: ChatModel) -> None:
        del config, model
        self.checks += 1
        self.checking.set()
        if task.material:
            self.go_on.wait(180)
        if self.error is not None:
            raise self.error

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        del task, context
        yield Outcome(answer="done", finish_reason=FinishReason.ANSWERED, metrics=CustomMetrics(data={}))


def careful_core(strategy: Careful) -> Core:
    sections = {
        "performance": {"max_concurrent_requests": 1, "max_queued_requests": 0},
        "enabled_strategies": [],
        "default_strategy": "careful",
    }
    settings = Settings.model_validate_json(json.dumps({"reasoning": sections}))
    return assemble(settings, model=ScriptedModel([]), registry=StrategyRegistry([strategy]))


async def test_a_task_for_which_there_is_no_place_is_refused_before_it_is_looked_at() -> None:
    strategy = Careful()
    service = careful_core(strategy).reasoning
    first = asyncio.create_task(service.execute(ALICE, Task(query="why?", strategy="careful", material="x" * 60_000)))
    await asyncio.to_thread(strategy.checking.wait, 20)
    with pytest.raises(OverloadedError):
        await service.execute(ALICE, Task(query="why?", strategy="careful"))
    strategy.go_on.set()
    assert (await first).result.answer == "done"
    assert strategy.checks == 1


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("material", ["", "x" * 60_000])
async def test_a_check_cannot_end_the_process(error: BaseException, material: str) -> None:
    strategy = Careful(error)
    strategy.go_on.set()
    service = careful_core(strategy).reasoning
    with pytest.raises(InternalError, match="the check of strategy 'careful' failed"):
        await service.execute(ALICE, Task(query="why?", strategy="careful", material=material))


async def test_who_asks_to_keep_what_has_ended_changes_nothing(make_core: MakeCore) -> None:
    service = make_core("yes").reasoning
    execution = (await service.execute(ALICE, Task(query="why?", strategy="quick"))).execution
    resumed = service.desk.resume(ALICE, execution.execution_id, after_sequence=0, keep_running=True)
    assert [event.sequence async for event in resumed] == [1, 2, 3]
    assert await service.desk.cancel(ALICE, execution.execution_id) == execution


async def test_the_model_behind_the_strategies_is_named(make_core: MakeCore) -> None:
    service = make_core().reasoning
    assert service.model_name == ScriptedModel([]).name
    assert list(service.model_warnings) == list(ScriptedModel([]).warnings)


async def test_a_strategy_that_needs_a_sandbox_is_marked_where_there_is_none() -> None:
    registry = StrategyRegistry([ProgramOfThought(), ChainOfThought()])
    core = assemble(Settings(), model=ScriptedModel([]), registry=registry)
    told = {info.name: info.description for info in core.reasoning.strategies()}
    assert told["chain_of_thought"] == ChainOfThought.description
    assert told["program_of_thought"].startswith(ProgramOfThought.description)
    assert "Not usable here: this server has no sandbox for programs" in told["program_of_thought"]


async def test_what_a_check_raises_reaches_the_caller() -> None:
    strategy = Careful(InvalidRequestError("no"))
    strategy.go_on.set()
    with pytest.raises(InvalidRequestError, match="no"):
        await careful_core(strategy).reasoning.execute(ALICE, Task(query="why?", strategy="careful"))


class Gone(ScriptedModel):
    """Fails each time with a new error."""

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        raise ModelUnavailableError(f"{request.max_tokens} tokens are too many")
        yield


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_failed_run_is_not_kept_by_the_error_that_its_caller_got(
    registry: StrategyRegistry, *, is_streamed: bool
) -> None:
    sections = {"reasoning": {"default_strategy": "", "enabled_strategies": []}}
    service = assemble(Settings.model_validate(sections), model=Gone([]), registry=registry).reasoning
    task = Task(query="why?", strategy="quick")

    async def ask() -> None:
        if is_streamed:
            async with aclosing(service.stream(ALICE, task)) as stream:
                _ = [event async for event in stream]
        else:
            await service.execute(ALICE, task)

    gc.collect()
    of_other_tests = {id(one): one for one in gc.get_objects() if type(one) is Run}
    gc.disable()
    try:
        with pytest.raises(ModelUnavailableError):
            await ask()
        # What the failed run left to do ends by itself, later on a busy machine; a cycle would keep it for good.
        async with asyncio.timeout(60):
            while [  # noqa: ASYNC110 - nobody tells when an object is gone
                one for one in gc.get_objects() if type(one) is Run and id(one) not in of_other_tests
            ]:
                await asyncio.sleep(0.05)
    finally:
        gc.enable()
