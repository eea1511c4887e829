"""What clients of A2A send, by the names of its JSON; members that are not known are ignored, as the protocol asks."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from reasond_server.http_api.params import Moment, Params
from reasond_server.protocols.wire_params import ReasondParams

EXTENSION: Final = "urn:reasond:reasoning:v1"
"""The member of `metadata` with our own parameters, and with what A2A has no place for."""
_MOST_PARTS: Final = 1_000
# Protobuf reads 100 levels of messages, three for an object within an object.
_MOST_LEVELS: Final = 26
_LARGEST: Final = sys.float_info.max


def restore_whole(value: Any, *, levels: int = _MOST_LEVELS) -> Any:  # noqa: ANN401 - any JSON value
    """Return a JSON value with its whole numbers: a Struct of protobuf has every number as a double.

    Raises:
        ValueError: a number is larger than a double, or the value nested deeper than clients of gRPC read a list of
            tasks with it.
    """
    if isinstance(value, dict | list):
        if not levels:
            raise ValueError(f"must be nested at most {_MOST_LEVELS} levels deep")
        if isinstance(value, list):
            return [restore_whole(each, levels=levels - 1) for each in value]
        return {name: restore_whole(each, levels=levels - 1) for name, each in value.items()}
    if isinstance(value, int | float) and not -_LARGEST <= value <= _LARGEST:
        raise ValueError("must have numbers between -1.8e308 and 1.8e308")
    return int(value) if isinstance(value, float) and value.is_integer() else value


Metadata = Annotated[dict[str, Any] | None, BeforeValidator(restore_whole)]


class A2aParams(Params):
    """Base of all parameters of A2A."""

    model_config = ConfigDict(
        strict=True, extra="ignore", frozen=True, defer_build=True, alias_generator=to_camel, populate_by_name=True
    )


class PartParams(A2aParams):
    """A part: exactly one of text, raw (base64), url and data."""

    text: str | None = None
    raw: str | None = None
    url: str | None = None
    data: Annotated[Any, BeforeValidator(restore_whole)] = None
    media_type: str = ""
    filename: str = ""
    metadata: Metadata = None

    @model_validator(mode="after")
    def _require_one(self) -> PartParams:
        given = self.model_fields_set & {"text", "raw", "url", "data"}
        if len(given) != 1:
            raise ValueError("must have exactly one of text, raw, url and data")
        return self


class A2aMessageParams(A2aParams):
    """A message of the client."""

    message_id: Annotated[str, Field(min_length=1, max_length=1_024)]
    context_id: Annotated[str, Field(max_length=1_024)] = ""
    task_id: Annotated[str, Field(max_length=1_024)] = ""
    role: str
    parts: Annotated[list[PartParams], Field(min_length=1, max_length=_MOST_PARTS)]
    metadata: Metadata = None
    extensions: list[str] | None = None
    reference_task_ids: list[str] | None = None


class ConfigurationParams(A2aParams):
    """How a client wants to be answered."""

    accepted_output_modes: list[str] | None = None
    task_push_notification_config: dict[str, Any] | None = None
    history_length: Annotated[int, Field(ge=0)] | None = None
    return_immediately: bool = False


class SendParams(A2aParams):
    """A message to the agent."""

    message: A2aMessageParams
    configuration: ConfigurationParams = ConfigurationParams()
    metadata: Metadata = None

    @property
    def own(self) -> Any:  # noqa: ANN401 - what a client has sent
        """Our own parameters, unchecked."""
        return (self.message.metadata or {}).get(EXTENSION, (self.metadata or {}).get(EXTENSION, {}))


class TaskParams(A2aParams):
    """Parameters about one task."""

    id: Annotated[str, Field(min_length=1)]
    history_length: Annotated[int, Field(ge=0)] | None = None
    metadata: Metadata = None

    @property
    def own(self) -> Any:  # noqa: ANN401 - what a client has sent
        """Our own parameters, unchecked."""
        return (self.metadata or {}).get(EXTENSION, {})


class ListTasksParams(A2aParams):
    """Which tasks to list."""

    context_id: str = ""
    status: str = ""
    page_size: Annotated[int, Field(ge=1, le=100)] = 50
    page_token: str = ""
    history_length: Annotated[int, Field(ge=0)] | None = None
    status_timestamp_after: Moment | None = None
    include_artifacts: bool = False


class AnyParams(A2aParams):
    """Parameters of an operation that is not offered."""


class ResultParams(A2aParams):
    """What came of a call: either any `result`, or an `error`."""

    call_id: str
    result: Annotated[Any, BeforeValidator(restore_whole)] = None
    error: Annotated[Any, BeforeValidator(restore_whole)] = None

    @model_validator(mode="after")
    def _require_one(self) -> ResultParams:
        if len(self.model_fields_set & {"result", "error"}) != 1:
            raise ValueError("must have either result or error")
        return self


class A2aDecisionParams(A2aParams):
    """A person's decision about a call."""

    call_id: str
    approved: bool
    reason: str = ""


class SettlementParams(A2aParams):
    """The data part that settles all calls of a hand-off."""

    etag: str
    tool_results: list[ResultParams] = Field(default_factory=list)
    decisions: list[A2aDecisionParams] = Field(default_factory=list)


class OwnParams(ReasondParams):
    """Our own parameters of a message, by the names of JSON or by ours.

    With `server_tools` a turn may call tools of the server beside `tools`, those of its client; `if_generation_match`
    is the generation that its task must have.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    strategy: str = ""
    system: str = ""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: str | dict[str, Any] | None = None
    server_tools: bool = False
    answer_schema: dict[str, Any] | None = None
    if_generation_match: int | None = None
