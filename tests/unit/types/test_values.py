"""The classes that `value` makes, and the constructors of `constructor_of`."""

from __future__ import annotations

import copy
import inspect
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import pytest

from reasond_server.types.values import constructor_of, value


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """A frozen class with every sort of default; some fields have the names that generated code could use itself."""

    kind: str
    new: int = 1
    made: list[int] = field(default_factory=list)
    unset: object = None
    kept: bytes = field(default=b"", init=False, compare=False)


def test_a_constructor_makes_what_the_class_makes() -> None:
    assert constructor_of(Point)(x=1) == Point(x=1)
    assert constructor_of(Point)(x=1, y=2) == Point(x=1, y=2)
    one, other = constructor_of(Frozen)(kind="a", unset=3), Frozen(kind="a", unset=3)
    assert one == other
    assert type(one) is Frozen
    assert (one.new, one.made, one.kept, hash(one.kind)) == (1, [], b"", hash("a"))
    assert copy.copy(one) == replace(one) == one


def test_a_constructor_makes_its_own_default_for_each_value() -> None:
    make = constructor_of(Frozen)
    assert make(kind="a").made is not make(kind="a").made


def test_a_value_of_a_constructor_is_as_frozen_as_its_class() -> None:
    made: Any = constructor_of(Frozen)(kind="a")
    with pytest.raises(FrozenInstanceError):
        made.kind = "b"


def test_a_constructor_has_the_signature_of_its_class() -> None:
    make: Any = constructor_of(Frozen)
    assert [*inspect.signature(make).parameters] == [*inspect.signature(Frozen).parameters]
    for wrong in ({}, {"kind": "a", "kept": b""}, {"kind": "a", "other": 1}):
        with pytest.raises(TypeError):
            make(**wrong)


def test_other_classes_have_no_constructor() -> None:
    @dataclass(slots=True)
    class Positional:
        x: int

    @dataclass(slots=True, kw_only=True)
    class Checked:
        x: int

        def __post_init__(self) -> None:
            self.x += 1

    @dataclass(kw_only=True)
    class Open:
        x: int

    for kind in (Positional, Checked, Open):
        with pytest.raises(TypeError, match=kind.__name__):
            constructor_of(kind)
