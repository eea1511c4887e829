from __future__ import annotations

import math
from typing import Any

import pytest

from reasond_server.dialects.stream_forms import read_logprobs
from reasond_server.types import TokenChance


def test_tokens_are_read_with_their_alternatives() -> None:
    told = {
        "content": [
            {
                "token": "7",
                "logprob": -0.5,
                "bytes": [55],
                "top_logprobs": [{"token": "8", "logprob": -1, "bytes": None}],
            },
            {"token": "!", "logprob": None},
        ],
        "refusal": None,
    }
    assert read_logprobs(told) == [
        TokenChance(text="7", logprob=-0.5, top=(("8", -1.0),)),
        TokenChance(text="!", logprob=-9999.0),
    ]


@pytest.mark.parametrize(
    "told", [None, [], {}, {"content": None}, {"content": [None, "a", {"token": 1}]}, {"tokens": ["a"]}, 7]
)
def test_what_cannot_be_read_has_no_tokens(told: Any) -> None:
    assert not read_logprobs(told)


@pytest.mark.parametrize(("logprob", "read"), [(0.1, 0.0), (-1e9, -9999.0), (math.nan, -9999.0), (True, -9999.0)])
def test_a_log_probability_is_in_its_range(logprob: Any, read: float) -> None:
    (token,) = read_logprobs({"content": [{"token": "a", "logprob": logprob}]})
    assert token.logprob == read
