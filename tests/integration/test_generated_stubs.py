"""The generated synchronous stubs, through pytest-grpc's fixtures, against a real server.

pytest-grpc would start its own synchronous server; `grpc_server` and `grpc_addr` are overridden so that its channel and
stub fixtures use ours. The plugin is loaded only in the run of this file (`-p pytest_grpc`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from reasond.v1 import (
    execution_pb2,
    execution_service_pb2,
    execution_service_pb2_grpc,
    reasoning_service_pb2,
    reasoning_service_pb2_grpc,
)
from reasond.v1.agent_service_pb2 import GetAgentCardRequest
from reasond.v1.agent_service_pb2_grpc import AgentServiceStub
from reasond_server.config import ReasoningSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

Metadata = tuple[tuple[str, str], ...]

LIMIT_S = 180.0
STRATEGIES = list(ReasoningSettings().enabled_strategies)
# A development server has no environment for programs of a model.
ANSWERING = [name for name in STRATEGIES if name != "program_of_thought"]
QUESTION = "What is 17 * 23?"


@pytest.fixture(scope="module")
def grpc_addr(dev_server: Mapping[str, str]) -> str:
    return dev_server["grpc"]


@pytest.fixture(scope="module")
def grpc_server(dev_server: Mapping[str, str]) -> Mapping[str, str]:
    """The development server, instead of the one that pytest-grpc would start."""
    return dev_server


@pytest.fixture(scope="module")
def grpc_stub_cls() -> type[reasoning_service_pb2_grpc.ReasoningServiceStub]:
    return reasoning_service_pb2_grpc.ReasoningServiceStub


@pytest.fixture(scope="module")
def metadata(dev_server: Mapping[str, str]) -> Metadata:
    return (("authorization", f"Bearer {dev_server['token']}"),)


def task(strategy: str) -> execution_pb2.ReasoningTask:
    return execution_pb2.ReasoningTask(query=QUESTION, strategy=strategy)


@pytest.mark.parametrize("strategy", ANSWERING)
def test_a_unary_call_returns_the_answer(
    grpc_stub: reasoning_service_pb2_grpc.ReasoningServiceStub, metadata: Metadata, strategy: str
) -> None:
    request = reasoning_service_pb2.ReasonRequest(task=task(strategy))
    response = grpc_stub.Reason(request, metadata=metadata, timeout=LIMIT_S)
    assert "391" in response.reasoning.answer
    assert response.reasoning.strategy_used == strategy


def test_a_stream_numbers_its_events_without_gaps_and_ends_with_the_result(
    grpc_stub: reasoning_service_pb2_grpc.ReasoningServiceStub, metadata: Metadata
) -> None:
    request = reasoning_service_pb2.ReasonIterationsRequest(task=task("chain_of_thought"))
    events = list(grpc_stub.ReasonIterations(request, metadata=metadata, timeout=LIMIT_S))
    logged = [event for event in events if event.WhichOneof("event") not in {"delta", "heartbeat"}]
    assert [event.sequence for event in logged] == list(range(1, len(logged) + 1))
    assert logged[0].WhichOneof("event") == "started"
    assert "391" in logged[-1].completed.answer


def test_an_execution_can_be_read_again_and_forgotten(
    grpc_stub: reasoning_service_pb2_grpc.ReasoningServiceStub, grpc_channel: grpc.Channel, metadata: Metadata
) -> None:
    executions = execution_service_pb2_grpc.ExecutionServiceStub(grpc_channel)
    request = reasoning_service_pb2.ReasonRequest(task=task("chain_of_thought"))
    reasoning = grpc_stub.Reason(request, metadata=metadata, timeout=LIMIT_S).reasoning
    wanted = execution_service_pb2.GetExecutionRequest(execution_id=reasoning.execution_id)
    assert executions.GetExecution(wanted, metadata=metadata, timeout=LIMIT_S).reasoning.answer == reasoning.answer
    forgotten = execution_service_pb2.DeleteExecutionRequest(execution_id=reasoning.execution_id)
    executions.DeleteExecution(forgotten, metadata=metadata, timeout=LIMIT_S)
    with pytest.raises(grpc.RpcError) as failure:
        executions.GetExecution(wanted, metadata=metadata, timeout=LIMIT_S)
    assert failure.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_call_without_a_token_is_refused(grpc_stub: reasoning_service_pb2_grpc.ReasoningServiceStub) -> None:
    with pytest.raises(grpc.RpcError) as failure:
        grpc_stub.ListStrategies(reasoning_service_pb2.ListStrategiesRequest(), timeout=LIMIT_S)
    assert failure.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_all_strategies_are_listed_with_the_model_that_answers(
    grpc_stub: reasoning_service_pb2_grpc.ReasoningServiceStub, metadata: Metadata
) -> None:
    request = reasoning_service_pb2.ListStrategiesRequest()
    listed = grpc_stub.ListStrategies(request, metadata=metadata, timeout=LIMIT_S)
    assert [strategy.name for strategy in listed.strategies] == STRATEGIES
    assert "demo" in listed.model


def test_the_agent_card_names_the_strategies_as_skills(grpc_channel: grpc.Channel, metadata: Metadata) -> None:
    response = AgentServiceStub(grpc_channel).GetAgentCard(GetAgentCardRequest(), metadata=metadata, timeout=LIMIT_S)
    tags = {tag for skill in response.card.skills for tag in (skill.id, *skill.tags)}
    assert {name for tag in tags for name in STRATEGIES if name in tag} == set(STRATEGIES)
