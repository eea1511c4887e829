from __future__ import annotations

import pytest

from reasond.v1 import agent_service_pb2, reasoning_service_pb2
from reasond_server.access.permissions import (
    OPERATIONS,
    find_allowed_strategies,
    may_use_strategy,
    require_metrics,
    require_permission,
    require_strategy,
    require_tools,
)
from reasond_server.errors import InternalError, PermissionMissingError
from reasond_server.types import Principal


def principal(*permissions: str) -> Principal:
    return Principal(subject="alice", tenant="acme", permissions=frozenset(permissions))


def test_every_rpc_has_a_permission_and_nothing_else_does() -> None:
    services = [
        *reasoning_service_pb2.DESCRIPTOR.services_by_name.values(),
        *agent_service_pb2.DESCRIPTOR.services_by_name.values(),
    ]
    assert set(OPERATIONS) == {method.name for service in services for method in service.methods}


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_an_operation_needs_its_permission(operation: str) -> None:
    require_permission(principal(OPERATIONS[operation]), operation)
    require_permission(principal("admin"), operation)
    others = {"reasoning:execute", "reasoning:tools", "executions:read", "agents:write"} - {OPERATIONS[operation]}
    with pytest.raises(PermissionMissingError) as caught:
        require_permission(principal(*others), operation)
    assert caught.value.metadata == {"permission": OPERATIONS[operation]}


def test_the_message_is_seed_001s() -> None:
    with pytest.raises(PermissionMissingError) as caught:
        require_permission(principal(), "Reason")
    assert caught.value.full_message == "Authorization failed: Missing required permission 'reasoning:execute'"


def test_an_operation_that_is_not_listed_is_refused_even_to_an_admin() -> None:
    with pytest.raises(InternalError):
        require_permission(principal("admin"), "DropEverything")


@pytest.mark.parametrize("permission", ["reasoning:execute", "admin"])
def test_all_strategies_may_be_used_with_the_general_permission(permission: str) -> None:
    assert find_allowed_strategies(principal(permission)) is None
    assert may_use_strategy(principal(permission), "anything")


def test_a_strategys_permission_opens_reasoning_and_that_strategy_alone() -> None:
    narrow = principal("reasoning:execute:chain_of_thought", "executions:read")
    require_permission(narrow, "Reason")
    require_strategy(narrow, "chain_of_thought")
    assert find_allowed_strategies(narrow) == frozenset({"chain_of_thought"})
    with pytest.raises(PermissionMissingError) as caught:
        require_strategy(narrow, "bounded_context")
    assert caught.value.message == (
        "Authorization failed: Missing required permission 'reasoning:execute:bounded_context'"
    )
    with pytest.raises(PermissionMissingError):
        require_permission(narrow, "RegisterAgent")


@pytest.mark.parametrize(
    "permission", ["reasoning:execute:", "reasoning:execute:*", "reasoning:execute:A", "reasoning:execute:a\n", "Admin"]
)
def test_what_is_no_permission_grants_nothing(permission: str) -> None:
    with pytest.raises(PermissionMissingError):
        require_permission(principal(permission), "Reason")
    assert find_allowed_strategies(principal(permission)) == frozenset()


def test_tools_need_a_permission_that_no_strategy_brings() -> None:
    for permission in ("reasoning:tools", "admin"):
        require_tools(principal(permission))
    with pytest.raises(PermissionMissingError, match="'reasoning:tools'"):
        require_tools(principal("reasoning:execute", "reasoning:execute:react"))


def test_metrics_are_for_those_who_may_read_them_and_for_administrators() -> None:
    require_metrics(principal("metrics:read"))
    require_metrics(principal("admin"))
    with pytest.raises(PermissionMissingError, match="'metrics:read'"):
        require_metrics(principal("reasoning:execute"))
