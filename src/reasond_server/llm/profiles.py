"""What is known of a provider's server, as positive facts: what it takes, what it honours, what it tells."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class LimitField(StrEnum):
    """The name under which the limit of written tokens is sent."""

    MAX_TOKENS = "max_tokens"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"


class SchemaLevel(StrEnum):
    """How far the server follows a JSON Schema: enforced, enforced but not shown to the model, any JSON, not."""

    STRICT = "strict"
    GUIDED = "guided"
    OBJECT = "object"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """What a server can do. A parameter that is not supported is left out and named in a warning.

    `max_stops` is how many stop strings it takes (0: none). `sampling` tells whether temperature and seed may be sent.
    `reasoning_fields` are read in order. `stop_match_fields` are where it tells which stop string matched.
    `count_path` is where it counts the tokens of messages (relative to the base URL's root), empty if nowhere.
    `context_window` is in tokens, None if unknown.
    """

    name: str = "generic"
    limit_field: LimitField = LimitField.MAX_TOKENS
    max_stops: int = 4
    sampling: bool = True
    reasoning_fields: Sequence[str] = ("reasoning", "reasoning_content")
    sends_reasoning_back: bool = False
    stop_match_fields: Sequence[str] = ()
    stream_usage: bool = True
    json_schema: SchemaLevel = SchemaLevel.NONE
    tools: bool = True
    forced_tool_choice: bool = True
    several_system_messages: bool = True
    count_path: str = ""
    context_window: int | None = None
