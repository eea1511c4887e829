"""Completeness: every RPC and every error reason is registered in all required places."""

import re
from pathlib import Path

import pytest
from google.longrunning import operations_pb2  # type: ignore[import-untyped]  # shipped without py.typed

from reasond import AsyncClient, Client
from reasond.v1 import (
    agent_service_pb2,
    errors_pb2,
    execution_service_pb2,
    reasoning_service_pb2,
    repair_service_pb2,
    turn_service_pb2,
)
from reasond_server.errors.reasons import build_error
from reasond_server.grpc_api.agent_servicer import AgentServicer
from reasond_server.grpc_api.execution_servicer import ExecutionServicer
from reasond_server.grpc_api.reasoning_servicer import ReasoningServicer
from reasond_server.grpc_api.repair_servicer import RepairServicer
from reasond_server.grpc_api.turn_servicer import TurnServicer
from reasond_server.services import DECLARED

OPERATIONS = {rpc for service in DECLARED for rpc in service.permissions}
ROOT = Path(__file__).parents[2]
SERVICES = {
    ReasoningServicer: reasoning_service_pb2.DESCRIPTOR.services_by_name["ReasoningService"],
    TurnServicer: turn_service_pb2.DESCRIPTOR.services_by_name["TurnService"],
    RepairServicer: repair_service_pb2.DESCRIPTOR.services_by_name["RepairService"],
    ExecutionServicer: execution_service_pb2.DESCRIPTOR.services_by_name["ExecutionService"],
    AgentServicer: agent_service_pb2.DESCRIPTOR.services_by_name["AgentService"],
}
RPCS = [(servicer, method.name) for servicer, service in SERVICES.items() for method in service.methods]
REASONS = [name.removeprefix("ERROR_REASON_") for name in errors_pb2.ErrorReason.keys()[1:]]


@pytest.mark.parametrize(("servicer", "rpc"), RPCS)
def test_every_rpc_has_a_servicer_a_permission_client_methods_and_a_page(servicer: type, rpc: str) -> None:
    assert rpc in vars(servicer)
    assert rpc in OPERATIONS
    method = re.sub(r"(?<!^)(?=[A-Z])", "_", rpc).lower()
    assert callable(getattr(AsyncClient, method))
    assert callable(getattr(Client, method))
    pages = [page.read_text("utf-8") for page in (ROOT / "docs" / "api").glob("*.md")]
    assert any(rpc in page for page in pages)


def test_every_service_declares_its_rpcs_and_no_others() -> None:
    declared = {service.name: set(service.permissions) for service in DECLARED}
    services = (*SERVICES.values(), operations_pb2.DESCRIPTOR.services_by_name["Operations"])
    assert declared == {service.full_name: {rpc.name for rpc in service.methods} for service in services}
    assert sum(map(len, declared.values())) == len(OPERATIONS), "the audit log names an operation by its RPC alone"


def test_every_json_rpc_method_asks_for_the_permission_of_an_rpc_of_its_service() -> None:
    assert all(set(service.methods.values()) <= set(service.permissions) for service in DECLARED)


@pytest.mark.parametrize("reason", REASONS)
def test_every_error_reason_has_an_exception_and_a_line_in_the_documentation(reason: str) -> None:
    assert build_error(reason, "text").reason == reason
    assert f"`{reason}`" in (ROOT / "docs" / "api" / "errors.md").read_text("utf-8")
