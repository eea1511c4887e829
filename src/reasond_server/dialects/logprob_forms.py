"""Log probabilities of tokens, as servers report them beside the text of a chunk.

    {"content": [{"token": "7", "logprob": -0.1, "top_logprobs": [{"token": "7", "logprob": -0.1}]}]}

is the form of OpenAI, vLLM and llama.cpp; OpenAI writes -9999.0, others null or less, for what was impossible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from reasond_server.types import TokenChance

_LEAST: Final = -9999.0
"""What stands for a probability of 0, as OpenAI writes it."""


def read_logprobs(report: object) -> Sequence[TokenChance]:
    """Return the tokens of a member `logprobs`; those that cannot be read are left out."""
    content = report.get("content") if isinstance(report, dict) else None
    return [
        TokenChance(text=one["token"], logprob=_read(one), top=tuple(_list_top(one.get("top_logprobs"))))
        for one in (content if isinstance(content, list) else ())
        if _is_token(one)
    ]


def _list_top(entries: object) -> Sequence[tuple[str, float]]:
    return [(one["token"], _read(one)) for one in (entries if isinstance(entries, list) else ()) if _is_token(one)]


def _is_token(one: object) -> bool:
    return isinstance(one, dict) and isinstance(one.get("token"), str)


def _read(one: dict[str, Any]) -> float:
    """Return a log probability as a number from -9999 to 0."""
    value = one.get("logprob")
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return _LEAST
    return min(0.0, max(_LEAST, float(value)))
