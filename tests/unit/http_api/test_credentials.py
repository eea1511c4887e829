from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors.access import TokenInvalidError
from reasond_server.http_api.http_calls import take_token

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize(
    ("params", "authorization"),
    [
        ({"auth_token": "t"}, []),
        ({}, ["Bearer t"]),
        ({}, ["bEARER   t  "]),
        ({"auth_token": "t"}, ["Bearer t"]),
        ({"auth_token": None}, ["Bearer t"]),
        ({"auth_token": ""}, ["Bearer t"]),
    ],
)
def test_the_token_is_taken_from_params_or_the_header(params: dict[str, Any], authorization: Sequence[str]) -> None:
    assert take_token(params, authorization)[0] == "t"


def test_the_other_params_come_back_without_the_token_and_the_given_ones_are_left_alone() -> None:
    params = {"auth_token": "t", "query": "q"}
    assert take_token(params, []) == ("t", {"query": "q"})
    assert params == {"auth_token": "t", "query": "q"}


@pytest.mark.parametrize("params", [{}, {"auth_token": None}, {"auth_token": ""}])
def test_where_there_is_no_token_it_is_empty(params: dict[str, Any]) -> None:
    assert take_token(params, []) == ("", {})


@pytest.mark.parametrize(
    ("params", "authorization"),
    [
        ({"auth_token": 5}, []),
        ({"auth_token": ["t"]}, ["Bearer t"]),
        ({"auth_token": "t"}, ["Bearer other"]),
        ({}, ["Basic dTpw"]),
        ({}, ["Bearer"]),
        ({}, ["Bearer "]),
        ({}, [""]),
        ({}, ["Bearer a b"]),
        ({"auth_token": "t"}, ["Basic t"]),
        ({}, ["Bearer t", "Bearer t"]),
    ],
)
def test_what_is_no_single_token_is_refused_without_repeating_it(
    params: dict[str, Any], authorization: Sequence[str]
) -> None:
    with pytest.raises(TokenInvalidError) as caught:
        take_token(params, authorization)
    assert caught.value.message.startswith("Authentication failed: ")
    assert "other" not in caught.value.full_message
    assert "dTpw" not in caught.value.full_message
