from __future__ import annotations

import pytest

from reasond_server.access.permissions import (
    EXECUTE,
    READ_EXECUTIONS,
    WRITE_AGENTS,
    Operation,
    find_allowed_strategies,
    may_use_commands,
    may_use_strategy,
    require_metrics,
    require_permission,
    require_repairs,
    require_strategy,
    require_tools,
)
from reasond_server.errors.access import PermissionMissingError
from reasond_server.types import Principal


def principal(*permissions: str) -> Principal:
    return Principal(subject="alice", tenant="acme", permissions=frozenset(permissions))


REASON = Operation("Reason", EXECUTE)


@pytest.mark.parametrize("permission", [EXECUTE, READ_EXECUTIONS, WRITE_AGENTS])
def test_an_operation_needs_its_permission(permission: str) -> None:
    operation = Operation("Something", permission)
    require_permission(principal(permission), operation)
    require_permission(principal("admin"), operation)
    others = {"reasoning:execute", "reasoning:tools", "executions:read", "agents:write"} - {permission}
    with pytest.raises(PermissionMissingError) as caught:
        require_permission(principal(*others), operation)
    assert caught.value.metadata == {"permission": permission}


def test_the_message_is_seed_001s() -> None:
    with pytest.raises(PermissionMissingError) as caught:
        require_permission(principal(), REASON)
    assert caught.value.full_message == "Authorization failed: Missing required permission 'reasoning:execute'"


@pytest.mark.parametrize("permission", ["reasoning:execute", "admin"])
def test_all_strategies_may_be_used_with_the_general_permission(permission: str) -> None:
    assert find_allowed_strategies(principal(permission)) is None
    assert may_use_strategy(principal(permission), "anything")


def test_a_strategys_permission_opens_reasoning_and_that_strategy_alone() -> None:
    narrow = principal("reasoning:execute:chain_of_thought", "executions:read")
    require_permission(narrow, REASON)
    require_strategy(narrow, "chain_of_thought")
    assert find_allowed_strategies(narrow) == frozenset({"chain_of_thought"})
    with pytest.raises(PermissionMissingError) as caught:
        require_strategy(narrow, "bounded_context")
    assert caught.value.message == (
        "Authorization failed: Missing required permission 'reasoning:execute:bounded_context'"
    )
    with pytest.raises(PermissionMissingError):
        require_permission(narrow, Operation("RegisterAgent", WRITE_AGENTS))


@pytest.mark.parametrize(
    "permission", ["reasoning:execute:", "reasoning:execute:*", "reasoning:execute:A", "reasoning:execute:a\n", "Admin"]
)
def test_what_is_no_permission_grants_nothing(permission: str) -> None:
    with pytest.raises(PermissionMissingError):
        require_permission(principal(permission), REASON)
    assert find_allowed_strategies(principal(permission)) == frozenset()


def test_tools_need_a_permission_that_no_strategy_brings() -> None:
    for permission in ("reasoning:tools", "admin"):
        require_tools(principal(permission))
    with pytest.raises(PermissionMissingError, match="'reasoning:tools'"):
        require_tools(principal("reasoning:execute", "reasoning:execute:react"))


def test_another_permission_may_be_enough_for_an_operation_and_an_empty_one_never_is() -> None:
    cancel = Operation("CancelExecution", EXECUTE, ("repair:execute",))
    require_permission(principal("repair:execute"), cancel)
    for operation in (REASON, cancel):
        with pytest.raises(PermissionMissingError, match="'reasoning:execute'"):
            require_permission(principal("", "repair:commands"), operation)


def test_commands_of_repairs_need_a_permission_that_repairs_do_not_bring() -> None:
    assert all(may_use_commands(principal(permission)) for permission in ("repair:commands", "admin"))
    assert not may_use_commands(principal("repair:execute", "reasoning:execute"))


def test_metrics_are_for_those_who_may_read_them_and_for_administrators() -> None:
    require_metrics(principal("metrics:read"))
    require_metrics(principal("admin"))
    with pytest.raises(PermissionMissingError, match="'metrics:read'"):
        require_metrics(principal("reasoning:execute"))


def test_repairs_need_their_own_permission() -> None:
    require_repairs(principal("repair:execute"))
    require_repairs(principal("admin"))
    with pytest.raises(PermissionMissingError):
        require_repairs(principal("reasoning:execute", "repair:commands"))
