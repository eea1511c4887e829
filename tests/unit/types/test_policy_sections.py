"""Policies of rooms as sections of the configuration: as strict as a model, and plain dataclasses for programs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from reasond_server.types.policy_sections import PolicySection, ToolName


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner(PolicySection):
    tools: Annotated[tuple[ToolName, ...], Field(strict=False)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer(PolicySection):
    most: Annotated[int, Field(ge=1, le=5)] = 3
    share: float = 0.5
    first: Inner = field(default_factory=Inner)
    second: Inner = field(default_factory=Inner)


OUTER = TypeAdapter(Outer)


def test_tables_make_policies_within_policies() -> None:
    found = OUTER.validate_python({"most": 5, "share": 1, "first": {"tools": ["a"]}, "second": {"tools": ["b"]}})
    assert found == Outer(most=5, share=1.0, first=Inner(tools=("a",)), second=Inner(tools=("b",)))


@pytest.mark.parametrize(
    ("table", "place"),
    [
        ({"most": 6}, ("most",)),
        ({"most": "5"}, ("most",)),
        ({"most": True}, ("most",)),
        ({"most": 5.0}, ("most",)),
        ({"share": float("inf")}, ("share",)),
        ({"share": "0.5"}, ("share",)),
        ({"mots": 5}, ("mots",)),
        ({"first": {"tools": ["a b"]}}, ("first", "tools", 0)),
        ({"second": {"tool": []}}, ("second", "tool")),
        ({"first": []}, ("first",)),
    ],
)
def test_what_a_model_of_the_configuration_refuses_a_policy_refuses(table: dict[str, object], place: object) -> None:
    with pytest.raises(ValidationError) as caught:
        OUTER.validate_python(table)
    assert [each["loc"] for each in caught.value.errors()] == [place]


def test_programs_may_make_what_an_operator_may_not() -> None:
    assert replace(Outer(), most=1000).most == 1000
