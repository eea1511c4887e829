from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from reasond_server.base.violations import drop_surplus_unknown, list_violations, suggest_nearest


class Order(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    count: Annotated[int, Field(gt=0, lt=10)] = 1
    share: Annotated[float, Field(ge=0.5, le=2, allow_inf_nan=False)] = 1
    name: Annotated[str, Field(min_length=2, max_length=3, pattern="^[a-z]+$")] = "ab"
    tags: Annotated[list[str], Field(min_length=1, max_length=2)] = ["x"]
    maybe: bytes = b""

    @field_validator("name")
    @classmethod
    def _no_xs(cls, name: str) -> str:
        if "x" in name:
            raise ValueError("must not hold an x")
        return name


@pytest.mark.parametrize(
    ("values", "field", "description"),
    [
        ({"count": 0}, "count", "must be greater than 0, got 0"),
        ({"count": 10}, "count", "must be less than 10, got 10"),
        ({"count": 1.5}, "count", "must be a whole number, got 1.5"),
        ({"share": 0.1}, "share", "must be at least 0.5, got 0.1"),
        ({"share": 3}, "share", "must be at most 2, got 3"),
        ({"share": float("nan")}, "share", "must be a finite number, got nan"),
        ({"name": "a"}, "name", "must have at least 2 characters"),
        ({"name": "abcd"}, "name", "must have at most 3 characters"),
        ({"name": "AB"}, "name", "must match ^[a-z]+$, got 'AB'"),
        ({"name": "ax"}, "name", "must not hold an x"),
        ({"tags": []}, "tags", "must have at least 1 entry"),
        ({"tags": ["a"] * 3}, "tags", "must have at most 2 entries"),
        ({"tags": ["a", 5]}, "tags.1", "must be a string, got 5"),
        ({"maybe": "text"}, "maybe", "is not valid, got 'text'"),
        ({"nmae": "ab"}, "nmae", "is not known; did you mean 'name'?"),
    ],
)
def test_what_is_wrong_is_said_in_our_own_words(values: dict[str, Any], field: str, description: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Order.model_validate(values)
    (violation,) = list_violations(caught.value, model=Order)
    assert (violation.field, violation.description) == (field, description)


def test_without_a_near_name_all_are_named_and_without_any_none() -> None:
    assert suggest_nearest("zzz", ["b", "a"]) == "; known are 'a', 'b'"
    assert suggest_nearest("zzz", []) == ""


def test_names_as_long_as_a_book_are_shortened_and_have_no_near_ones() -> None:
    with pytest.raises(ValidationError) as caught:
        Order.model_validate({"n" * 1_000_000: 1})
    (violation,) = list_violations(caught.value, model=Order)
    assert violation.field == "n" * 120
    assert violation.description.startswith("is not known; known are")
    assert suggest_nearest("coun" + "t" * 200, ["count"]) == "; known are 'count'"


def test_of_a_hundred_thousand_unknown_names_few_are_looked_at() -> None:
    values = {"count": 3, **{f"q{number}": 1 for number in range(100_000)}}
    kept = drop_surplus_unknown(values, Order.model_fields, most=7)
    assert list(kept) == ["count", *(f"q{number}" for number in range(7))]
    with pytest.raises(ValidationError) as caught:
        Order.model_validate(kept)
    assert len(list_violations(caught.value, most=5)) == 5


def test_values_with_few_unknown_names_stay_as_they_are() -> None:
    values = {"count": 3, "q": 1}
    assert drop_surplus_unknown(values, Order.model_fields) is values
