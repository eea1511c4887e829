"""The classes that `value` makes, and that the server has no other kind of them."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

import reasond_server
from reasond_server.types.values import value

SOURCES = Path(reasond_server.__file__).parent
BY_HAND = {"errors/base.py", "demo/arithmetic.py", "search/tree.py"}
"""Two classes whose arguments have no names, and the nodes of a tree, which are compared by identity."""


@value
class Point:
    """Two numbers."""

    x: int
    y: int = 0


def test_a_value_is_the_same_as_another_with_the_same_fields() -> None:
    assert Point(x=1) == Point(x=1, y=0)
    assert {Point(x=1), Point(x=1, y=0)} == {Point(x=1)}
    assert replace(Point(x=1), y=2) == Point(x=1, y=2)


def test_a_value_never_changes() -> None:
    made: Any = Point(x=1)
    with pytest.raises(FrozenInstanceError):
        made.x = 2


def test_a_value_takes_its_fields_by_keyword_only_and_has_no_others() -> None:
    positional: Any = Point
    with pytest.raises(TypeError):
        positional(1)
    assert not hasattr(Point(x=1), "__dict__")


def test_the_server_has_no_other_kind_of_value() -> None:
    own = SOURCES / "types" / "values.py"
    by_hand = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if path != own and re.search(r"^@dataclass\(.*frozen=True", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert by_hand == BY_HAND
