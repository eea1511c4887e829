"""Requests: proto -> types. Checks errors that only gRPC requests can have; the core checks the limits of a task."""

from __future__ import annotations

import base64
import math
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reasond.v1 import execution_pb2, reasoning_service_pb2, strategies_pb2
from reasond_server.errors.base import ReasondError, Violation, show
from reasond_server.errors.request import InvalidConfigError, InvalidRequestError
from reasond_server.grpc_api.message_writers import read_struct
from reasond_server.requests.task_checks import MAX_SCHEMA_BYTES
from reasond_server.tools.json_parser import read_strict_json
from reasond_server.types import (
    NO_BUDGET,
    Budget,
    Cursor,
    ExecutionState,
    FinishReason,
    HistoryMessage,
    Image,
    Speaker,
    Task,
    ToolCall,
    ToolResult,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from google.protobuf import duration_pb2, timestamp_pb2
    from google.protobuf.descriptor import EnumDescriptor
    from google.protobuf.message import Message

    from reasond_server.types import Json

_NANOS: Final = 10**9
_MAX_SECONDS: Final = 315_576_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_SECOND: Final = -62_135_596_800
_LAST_SECOND: Final = 253_402_300_799
_TRACE_VIEWS: Final[Mapping[int, execution_pb2.TraceView.ValueType]] = {
    **{number: number for number in execution_pb2.TraceView.values()},
    execution_pb2.TRACE_VIEW_UNSPECIFIED: execution_pb2.TRACE_VIEW_NONE,
}
# Fields of the core's tasks that have another name in the proto.
_FIELD_NAMES: Final[Mapping[str, str]] = {"answer_schema": "answer_schema_json"}
_TASK_FIELDS: Final = frozenset(field.name for field in execution_pb2.ReasoningTask.DESCRIPTOR.fields)

ReadT = TypeVar("ReadT")


def read_task(task: execution_pb2.ReasoningTask) -> Task:
    """Return the task. A config alone selects the strategy it belongs to.

    Raises:
        InvalidRequestError: the config belongs to another strategy, or a value is not declared by the proto or
            not valid in JSON.
    """
    # One call for all fields; most tasks set one or two of them, and asking each takes twice as long.
    given: dict[str, Any] = {field.name: found for field, found in task.ListFields()}
    get = given.get
    strategy, config = _read_strategy_and_config(task, get("strategy"))
    return Task(
        query=get("query", ""),
        material=get("material", ""),
        strategy=strategy,
        config=config,
        agent=get("agent"),
        agent_capabilities=tuple(get("agent_capabilities", ())),
        budget=read_budget(given["budget"], path="task.budget") if "budget" in given else NO_BUDGET,
        system=get("system", ""),
        history=tuple(read_history(given["history"], path="task.history")) if "history" in given else (),
        model=get("model"),
        stop=tuple(get("stop", ())),
        answer_schema=_read_schema(given["answer_schema_json"]) if "answer_schema_json" in given else None,
        images=tuple(map(read_image, given["images"])) if "images" in given else (),
    )


def read_history(messages: Iterable[execution_pb2.HistoryMessage], *, path: str) -> Iterator[HistoryMessage]:
    """Yield the messages of the field at `path`.

    Raises:
        InvalidRequestError: a message has no role.
    """
    speakers = _list_speakers()
    for index, message in enumerate(messages):
        role = speakers.get(message.role)
        if role is None:
            read_enum_word(execution_pb2.Speaker.DESCRIPTOR, message.role, path=f"{path}[{index}].role")
            raise invalid(f"{path}[{index}].role", "is required: SPEAKER_USER, SPEAKER_ASSISTANT or SPEAKER_TOOL")
        yield HistoryMessage(
            role=role,
            text=message.text,
            images=_read_each(message.images, read_image),
            reasoning=message.reasoning,
            tool_calls=_read_each(message.tool_calls, _read_call),
            tool_results=_read_each(message.tool_results, read_result),
        )


def _read_each(found: Sequence[Any], read: Callable[[Any], ReadT]) -> tuple[ReadT, ...]:
    return tuple(map(read, found)) if found else ()


def _read_call(call: strategies_pb2.ToolCall) -> ToolCall:
    return ToolCall(call_id=call.call_id, name=call.tool, arguments_json=call.arguments_json)


@cache
def _list_speakers() -> Mapping[int, Speaker]:
    kind = execution_pb2.Speaker.DESCRIPTOR
    words = {each.number: read_enum_word(kind, each.number, path="role") for each in kind.values}
    return {number: Speaker(word) for number, word in words.items() if word is not None}


def read_result(result: strategies_pb2.ToolResult) -> ToolResult:
    """Return the result of a call."""
    return ToolResult(call_id=result.call_id, result_json=result.result_json, is_error=result.is_error)


def read_image(image: execution_pb2.Image) -> Image:
    """Return an image of a request."""
    return Image(media_type=image.media_type, base64=base64.b64encode(image.data).decode("ascii"))


def _read_schema(text: str) -> Json:
    """Return the JSON Schema in a field of a task; the core checks its depth and whether it can be used."""
    path = "task.answer_schema_json"
    if (size := len(text.encode())) > MAX_SCHEMA_BYTES:
        raise invalid(path, f"must be at most {MAX_SCHEMA_BYTES} bytes of UTF-8, got {size}; shorten its descriptions")
    try:
        schema = read_strict_json(text)
    except ValueError:
        schema = None
    if not isinstance(schema, dict):
        raise invalid(path, f"must be a JSON object, got {show(text)}")
    return schema


def require_task(request: reasoning_service_pb2.ReasonRequest) -> Task:
    """Return the request's task.

    Raises:
        InvalidRequestError: there is no task, or `read_task` raises it.
    """
    if not request.HasField("task"):
        raise invalid("task", "is required")
    return read_task(request.task)


def read_budget(budget: execution_pb2.Budget, *, path: str) -> Budget:
    """Return the bounds that are set; their ranges are checked with the rest of the request.

    Raises:
        InvalidRequestError: `max_elapsed` is not a valid duration.
    """
    if not budget.ByteSize():
        return NO_BUDGET
    has_elapsed = budget.HasField("max_elapsed")
    return Budget(
        max_total_tokens=budget.max_total_tokens if budget.HasField("max_total_tokens") else None,
        max_model_calls=budget.max_model_calls if budget.HasField("max_model_calls") else None,
        max_tool_calls=budget.max_tool_calls if budget.HasField("max_tool_calls") else None,
        max_output_tokens=budget.max_output_tokens if budget.HasField("max_output_tokens") else None,
        max_elapsed_s=read_seconds(budget.max_elapsed, path=f"{path}.max_elapsed") if has_elapsed else None,
    )


def read_seconds(duration: duration_pb2.Duration, *, path: str) -> float:
    """Return `duration` in seconds.

    Raises:
        InvalidRequestError: its parts are out of range or have different signs.
    """
    seconds, nanos = duration.seconds, duration.nanos
    if abs(seconds) > _MAX_SECONDS or abs(nanos) >= _NANOS or seconds * nanos < 0:
        least_to_most = f"-{_MAX_SECONDS} to {_MAX_SECONDS} seconds and less than a second in nanos, both of one sign"
        raise invalid(path, f"must be {least_to_most}; got {seconds} and {nanos}")
    return seconds + nanos / _NANOS


def read_trace_view(number: int) -> execution_pb2.TraceView.ValueType:
    """Return the trace view; unspecified means NONE.

    Raises:
        InvalidRequestError: the proto declares no such value.
    """
    view = _TRACE_VIEWS.get(number)
    if view is None:
        raise _build_no_value_error(execution_pb2.TraceView.DESCRIPTOR, number, path="trace_view")
    return view


def read_finish_reason(number: int) -> FinishReason | None:
    """Return the finish reason to filter by; None for unspecified.

    Raises:
        InvalidRequestError: the proto declares no such value.
    """
    word = read_enum_word(execution_pb2.FinishReason.DESCRIPTOR, number, path="finish_reason")
    return None if word is None else FinishReason(word)


def read_state(number: int) -> ExecutionState | None:
    """Return the state to filter by; None for unspecified.

    Raises:
        InvalidRequestError: the proto declares no such value.
    """
    word = read_enum_word(execution_pb2.ExecutionState.DESCRIPTOR, number, path="state")
    return None if word is None else ExecutionState(word)


def read_moment(stamp: timestamp_pb2.Timestamp, *, path: str) -> datetime:
    """Return the time, without what is shorter than a microsecond.

    Raises:
        InvalidRequestError: it is out of the range of a Timestamp, the years 1 to 9999.
    """
    if not (_FIRST_SECOND <= stamp.seconds <= _LAST_SECOND and 0 <= stamp.nanos < _NANOS):
        raise invalid(
            path, f"must be in the years 1 to 9999, with 0 to 999999999 nanos; got {stamp.seconds} s and {stamp.nanos}"
        )
    return _EPOCH + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)


def name_request_fields(error: ReasondError, task: execution_pb2.ReasoningTask) -> None:
    """Make the violations of `error` name the fields of a request that holds `task` (AIP-193).

    The core names the fields `query` or, in a configuration, `max_tokens`; here they become `task.query` and
    `task.chain_of_thought.max_tokens`.
    """
    prefix = "task."
    if isinstance(error, InvalidConfigError):
        prefix = f"task.{task.WhichOneof('config') or 'config'}."
    error.violations = tuple(
        replace(violation, field=f"{prefix}{_FIELD_NAMES.get(violation.field, violation.field)}")
        if _is_of_task(violation, error)
        else violation
        for violation in error.violations
    )


def prefix_fields(error: ReasondError, prefix: str, fields: Collection[str]) -> None:
    """Put `prefix` before the violations of `error` that name one of `fields`, or a part of one (AIP-193)."""
    error.violations = tuple(
        replace(each, field=f"{prefix}{each.field}")
        if re.split(r"[.\[]", each.field, maxsplit=1)[0] in fields
        else each
        for each in error.violations
    )


def read_cursor(cursor: execution_pb2.ExecutionCursor, *, path: str) -> Cursor:
    """Return the place to follow an execution from.

    Raises:
        InvalidRequestError: it names no execution, or a negative place.
    """
    if cursor.after_sequence < 0:
        raise invalid(f"{path}.after_sequence", f"must be at least 0, got {cursor.after_sequence}")
    execution_id = require_id(cursor.execution_id, field=f"{path}.execution_id")
    return Cursor(execution_id=execution_id, after_sequence=cursor.after_sequence)


def require_id(value: str, *, field: str) -> str:
    """Return the id in `field` of a request.

    Raises:
        InvalidRequestError: it is empty.
    """
    if not value:
        raise invalid(field, "is required")
    return value


def invalid(field: str, description: str) -> InvalidRequestError:
    """Return the error for one invalid field."""
    return InvalidRequestError.at(field, description)


def _is_of_task(violation: Violation, error: ReasondError) -> bool:
    root = re.split(r"[.\[]", violation.field, maxsplit=1)[0]
    return root != "task" and (isinstance(error, InvalidConfigError) or root in _TASK_FIELDS or root in _FIELD_NAMES)


def _read_strategy_and_config(task: execution_pb2.ReasoningTask, strategy: str | None) -> tuple[str | None, Json]:
    case = task.WhichOneof("config")
    if case is None:
        return strategy, {}
    if case == "custom":
        if strategy is None:
            raise invalid("task.strategy", "is required with a custom config, which does not say whose it is")
        return strategy, read_struct(task.custom, path="task.custom")
    if strategy not in {None, case}:
        raise invalid(f"task.{case}", f"is the config of another strategy than {show(strategy)}; leave one out")
    return case, read_config(getattr(task, case), path=f"task.{case}")


def read_config(config: Message, *, path: str) -> dict[str, Any]:
    """Return the fields that are set; an enum as the lower-case word of its value, unspecified as unset."""
    values: dict[str, Any] = {}
    for field, value in config.ListFields():
        if field.enum_type is not None:
            word = read_enum_word(field.enum_type, value, path=f"{path}.{field.name}")
            if word is not None:
                values[field.name] = word
        elif isinstance(value, float) and not math.isfinite(value):
            raise invalid(f"{path}.{field.name}", f"must be a finite number, not {value}")
        else:
            values[field.name] = value
    return values


def read_enum_word(kind: EnumDescriptor, number: int, *, path: str) -> str | None:
    """Return the word of an enum's value; None for unspecified.

    Raises:
        InvalidRequestError: the proto declares no such value.
    """
    name = _read_enum_name(kind, number, path=path)
    prefix = kind.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return name.removeprefix(prefix).lower() if number else None


def _read_enum_name(kind: EnumDescriptor, number: int, *, path: str) -> str:
    """Return the name of an enum's value; checks it, because proto3 accepts any number."""
    value = kind.values_by_number.get(number)
    if value is None:
        raise _build_no_value_error(kind, number, path=path)
    return value.name


def _build_no_value_error(kind: EnumDescriptor, number: int, *, path: str) -> InvalidRequestError:
    known = ", ".join(each.name for each in kind.values)
    return invalid(path, f"must be one of {known}, not {number}")
