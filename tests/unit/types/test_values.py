"""The class that `value` makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reasond_server.types.values import value


@value
class Point:
    """Two numbers."""

    x: int
    y: int = 0


def test_a_value_equals_by_its_fields_and_is_no_key_because_it_could_change() -> None:
    assert Point(x=1) == Point(x=1, y=0)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Point(x=1))
    assert replace(Point(x=1), y=2) == Point(x=1, y=2)


def test_a_value_takes_its_fields_by_keyword_only_and_has_no_others() -> None:
    positional: Any = Point
    with pytest.raises(TypeError):
        positional(1)
    assert not hasattr(Point(x=1), "__dict__")
