"""Usage: tokens and model calls that were spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from reasond_server.types.values import value

_DECIMALS: Final = 9
"""Of costs in US dollars: the sums of prices of single tokens stay exact enough to be compared."""


class UsageSource(StrEnum):
    """The source of token counts."""

    REPORTED = "reported"
    ESTIMATED = "estimated"
    PARTIAL = "partial"


@value
class Price:
    """What a million tokens of a model cost in US dollars; `cached_input_usd` is that of input from the cache."""

    input_usd: float
    cached_input_usd: float
    output_usd: float

    def charge(self, usage: Usage) -> Usage:
        """Return `usage` with its cost."""
        read = usage.input_tokens - usage.cached_input_tokens
        cost = read * self.input_usd + usage.cached_input_tokens * self.cached_input_usd
        return replace(usage, cost_usd=round((cost + usage.output_tokens * self.output_usd) / 1e6, _DECIMALS))


@value
class Usage:
    """Tokens and calls that were spent; addable. `cost_usd` is None if a model that was called has no price."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    model_calls: int = 0
    source: UsageSource = UsageSource.REPORTED
    cost_usd: float | None = None

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        if self is NOTHING:
            return other
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            model_calls=self.model_calls + other.model_calls,
            source=_join_sources(self, other),
            cost_usd=_join_costs(self, other),
        )

    def __sub__(self, other: Usage) -> Usage:
        if other is self:
            # The usage of a step without a model call.
            return _NONE[self.source]
        if other is NOTHING:
            return self
        return Usage(
            input_tokens=self.input_tokens - other.input_tokens,
            output_tokens=self.output_tokens - other.output_tokens,
            cached_input_tokens=self.cached_input_tokens - other.cached_input_tokens,
            reasoning_tokens=self.reasoning_tokens - other.reasoning_tokens,
            model_calls=self.model_calls - other.model_calls,
            source=self.source,
            cost_usd=None
            if self.cost_usd is None
            else round(max(0.0, self.cost_usd - (other.cost_usd or 0.0)), _DECIMALS),
        )


NOTHING: Final = Usage()
"""The usage of a run when it begins."""

_NONE: Final = {source: Usage(source=source) for source in UsageSource}


def _join_sources(one: Usage, other: Usage) -> UsageSource:
    """Return the source of the sum of two usages; a usage without model calls is ignored."""
    if not one.model_calls:
        return other.source
    if not other.model_calls or one.source is other.source:
        return one.source
    return UsageSource.PARTIAL


def _join_costs(one: Usage, other: Usage) -> float | None:
    """Return the cost of the sum of two usages; what has tokens and no price makes it unknown."""
    if one.cost_usd is None or other.cost_usd is None:
        if one.cost_usd is None and (one.model_calls or one.total_tokens):
            return None
        return one.cost_usd if other.model_calls == other.total_tokens == 0 else other.cost_usd
    return round(one.cost_usd + other.cost_usd, _DECIMALS)


@value
class TokenChance:
    """A token that a model wrote, with its log probability, and those of the likeliest tokens in its place."""

    text: str
    logprob: float
    top: Sequence[tuple[str, float]] = ()
