"""Usage: tokens and model calls that were spent."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from reasond_server.types.values import value


class UsageSource(StrEnum):
    """The source of token counts."""

    REPORTED = "reported"
    ESTIMATED = "estimated"
    PARTIAL = "partial"


@value
class Usage:
    """Tokens and calls that were spent; addable."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    model_calls: int = 0
    source: UsageSource = UsageSource.REPORTED

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
