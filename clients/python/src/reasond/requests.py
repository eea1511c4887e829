"""Builds the request messages of both clients from plain arguments."""

from __future__ import annotations

import difflib
import json
import uuid
from collections.abc import Mapping
from datetime import UTC
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from reasond.v1.agent_card_pb2 import AgentCard
from reasond.v1.agent_service_pb2 import RegisterAgentRequest
from reasond.v1.execution_pb2 import Budget, ExecutionCursor, HistoryMessage, Image, ReasoningTask, Speaker, TraceView
from reasond.v1.reasoning_service_pb2 import ReasonIterationsRequest, ReasonRequest
from reasond.v1.repair_service_pb2 import RepairStepsRequest
from reasond.v1.repairs_pb2 import Check, CriticReport, Fix, Plan, RepairConfig, RepairTask, SourceFile
from reasond.v1.turn_service_pb2 import CharacterRange, ExecuteTurnRequest, ReadToolResultRequest, RunTurnRequest
from reasond.v1.turns_pb2 import TurnReentry, TurnStart

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from google.protobuf.descriptor import EnumDescriptor

    from reasond.v1.turns_pb2 import ClientTool, ContextBlock

StrategyConfig: TypeAlias = Message
"""The configuration of a strategy: a message such as `ReactConfig`, or a `Struct` for a strategy without one."""
ConfigT = TypeVar("ConfigT", bound="StrategyConfig | RepairConfig")
HistoryEntry: TypeAlias = HistoryMessage | tuple[str, str]
"""An earlier message: the message itself, or its role ("user" or "assistant") and its text."""
ImageEntry: TypeAlias = Image | tuple[str, bytes]
"""An image: the message itself, or its media type and its content."""
Card: TypeAlias = AgentCard | Mapping[str, Any] | str

_ONEOF: Final = ReasoningTask.DESCRIPTOR.oneofs_by_name["config"]
_CONFIGS: Final[Mapping[str, Any]] = MappingProxyType(
    {field.name: GetMessageClass(field.message_type) for field in _ONEOF.fields if field.message_type is not None}
)
"""The class of each message that a task can have as its configuration, by the name of the field."""
_KINDS: Final = MappingProxyType(
    {
        FieldDescriptor.TYPE_INT32: "a whole number of 32 bits",
        FieldDescriptor.TYPE_INT64: "a whole number of 64 bits",
        FieldDescriptor.TYPE_DOUBLE: "a number",
        FieldDescriptor.TYPE_ENUM: "a value of the enum",
    }
)
_CASES: Final = MappingProxyType({kind: case for case, kind in _CONFIGS.items()})


def reasoning_task(
    query: str,
    *,
    material: str,
    strategy: str | None,
    config: StrategyConfig | Mapping[str, Any] | None,
    agent: str,
    agent_capabilities: Iterable[str],
    budget: Budget | None,
    system: str,
    history: Iterable[HistoryEntry],
    model: str | None,
    stop: Iterable[str],
    answer_schema: Mapping[str, Any] | None,
    images: Iterable[ImageEntry],
) -> ReasoningTask:
    """Return the task; raises ValueError or TypeError if `config` does not fit the strategy, or a role is wrong."""
    task = ReasoningTask(
        query=query,
        material=material,
        strategy=strategy,
        agent=agent,
        agent_capabilities=agent_capabilities,
        budget=budget,
        system=system,
        history=map(_history_message, history),
        model=model,
        stop=stop,
        answer_schema_json="" if answer_schema is None else json.dumps(answer_schema),
        images=[each if isinstance(each, Image) else Image(media_type=each[0], data=each[1]) for each in images],
    )
    if config is not None:
        message = _config_message(strategy, config)
        getattr(task, _CASES[type(message)]).CopyFrom(message)
    return task


def _history_message(entry: HistoryEntry) -> HistoryMessage:
    if isinstance(entry, HistoryMessage):
        return entry
    role, text = entry
    number: Any = _enum_number("role", Speaker.DESCRIPTOR, role)
    return HistoryMessage(role=number, text=text)


def _config_message(strategy: str | None, config: StrategyConfig | Mapping[str, Any]) -> StrategyConfig:
    if isinstance(config, Message) and type(config) in _CASES:
        return config
    if not isinstance(config, Mapping):
        raise TypeError(f"config must be a configuration message or a mapping, not {type(config).__name__}")
    if not strategy:
        raise ValueError("config as a mapping needs `strategy`, which says what the keys mean")
    kind = _CONFIGS.get(strategy)
    return _struct(config) if kind is None or kind is Struct else _fill(kind(), config)


def _struct(config: Mapping[str, Any]) -> Struct:
    struct = Struct()
    try:
        struct.update(dict(config))
    except (ValueError, TypeError) as error:
        raise ValueError(f"config must hold only what JSON can say: {error}") from None
    return struct


def _fill(message: ConfigT, config: Mapping[str, Any]) -> ConfigT:
    """Set the fields of `message`; None leaves a field unset, an enum value is a name or a number."""
    fields: Mapping[str, Any] = message.DESCRIPTOR.fields_by_name
    for name, value in config.items():
        if name not in fields:
            nearest = difflib.get_close_matches(str(name), fields, n=1, cutoff=0.0)[0]
            known = ", ".join(sorted(fields))
            raise ValueError(
                f"{message.DESCRIPTOR.name} has no field {str(name)[:80]!r}; did you mean {nearest!r}? It has: {known}"
            )
        if value is not None:
            _set(message, fields[name], value)
    return message


def _set(message: StrategyConfig | RepairConfig, field: FieldDescriptor, value: object) -> None:
    if isinstance(value, bool) != (field.type == field.TYPE_BOOL):
        raise ValueError(f"{field.name} must {'not ' if isinstance(value, bool) else ''}be True or False")
    if field.enum_type is not None and isinstance(value, str):
        value = _enum_number(field.name, field.enum_type, value)
    try:
        setattr(message, field.name, value)
    except (TypeError, ValueError):
        wanted = _KINDS.get(field.type, "text")
        raise ValueError(f"{field.name} must be {wanted}, not {str(value)[:80]!r} (a {type(value).__name__})") from None


def _enum_number(field_name: str, enum: EnumDescriptor, text: str) -> int:
    """Return the number of the value named `text`: TAIL, tail and CARRYOVER_MODE_TAIL are the same."""
    values = enum.values_by_number
    prefix = values[0].name.removesuffix("UNSPECIFIED")
    names = {value.name.removeprefix(prefix): number for number, value in values.items() if number}
    try:
        return names[text.upper().removeprefix(prefix)]
    except KeyError:
        raise ValueError(f"{field_name} must be one of {', '.join(names)}, not {text[:80]!r}") from None


def request_id_or_new(request_id: str | None) -> str:
    """Return `request_id`, or a new one, so that a retry of a lost call finds its execution."""
    return str(uuid.uuid4()) if request_id is None else request_id


def reason_request(task: ReasoningTask, *, request_id: str | None, trace_view: TraceView.ValueType) -> ReasonRequest:
    """Return the request of Reason."""
    return ReasonRequest(task=task, request_id=request_id_or_new(request_id), trace_view=trace_view)


def start_request(
    task: ReasoningTask, *, request_id: str | None, include_deltas: bool, keep_running: bool
) -> ReasonIterationsRequest:
    """Return the request of ReasonIterations that starts `task`."""
    return ReasonIterationsRequest(
        task=task,
        request_id=request_id_or_new(request_id),
        include_deltas=include_deltas,
        keep_running=keep_running,
    )


def resume_request(
    execution_id: str, *, after_sequence: int, include_deltas: bool, keep_running: bool = False
) -> ReasonIterationsRequest:
    """Return the request of ReasonIterations that follows an execution after `after_sequence`."""
    cursor = ExecutionCursor(execution_id=execution_id, after_sequence=after_sequence)
    return ReasonIterationsRequest(resume=cursor, include_deltas=include_deltas, keep_running=keep_running)


def turn_start(
    text: str,
    *,
    session: str,
    client_tools: Iterable[ClientTool],
    material: str,
    mode: str | None,
    context: Iterable[ContextBlock],
    budget: Budget | None,
    if_revision: int | None,
    system: str,
    history: Iterable[HistoryEntry],
) -> TurnStart:
    """Return the start of a turn."""
    return TurnStart(
        message=text,
        session_id=session,
        client_tools=client_tools,
        material=material,
        mode=mode,
        context=context,
        budget=budget,
        if_revision=if_revision,
        system=system,
        history=map(_history_message, history),
    )


def execute_turn_request(
    source: TurnStart | TurnReentry | ExecutionCursor, *, request_id: str | None, include_deltas: bool, follow: bool
) -> ExecuteTurnRequest:
    """Return the request of ExecuteTurn."""
    request = ExecuteTurnRequest(include_deltas=include_deltas, follow=follow)
    if isinstance(source, TurnStart):
        request.start.CopyFrom(source)
        request.request_id = request_id_or_new(request_id)
    elif isinstance(source, TurnReentry):
        request.reentry.CopyFrom(source)
    else:
        request.attach.CopyFrom(source)
    return request


def run_turn_request(source: TurnStart | TurnReentry, *, request_id: str | None) -> RunTurnRequest:
    """Return the request of RunTurn."""
    if isinstance(source, TurnStart):
        return RunTurnRequest(start=source, request_id=request_id_or_new(request_id))
    return RunTurnRequest(reentry=source)


def repair_task(
    description: str = "",
    *,
    files: Mapping[str, str | bytes] | Iterable[SourceFile] = (),
    snapshot_id: str = "",
    environment: str = "",
    checks: Iterable[Check] = (),
    is_plan: bool = False,
    report: CriticReport | None = None,
    editable: Iterable[str] = (),
    config: RepairConfig | Mapping[str, Any] | None = None,
    budget: Budget | None = None,
) -> RepairTask:
    """Return a task for `repair` and `repair_steps`.

    Args:
        description: What is wrong or wanted, in words; a plan needs it.
        files: The code by path, text or bytes, or messages; at most 3 MiB together.
        snapshot_id: The code, instead of `files`: a snapshot that was uploaded before.
        environment: The environment of the server in which checks run; a patch needs it.
        checks: Commands whose results say whether the code works; a patch needs one.
        is_plan: A plan is wanted instead of a patch; nothing of it is run.
        report: What is known of the fault already.
        editable: Glob patterns of protected files, such as tests, that may be edited all the same.
        config: Parameters, as a message or as a mapping with its fields.
        budget: Limits on the spending of the repair.

    Raises:
        ValueError: `config` has an unknown name or a wrong value, or the code is given twice.
    """
    if files and snapshot_id:
        raise ValueError("only one of files and snapshot_id can be given")
    task = RepairTask(
        description=description,
        fix=None if is_plan else Fix(),
        plan=Plan() if is_plan else None,
        environment=environment,
        checks=checks,
        report=report,
        editable=editable,
        config=_fill(RepairConfig(), config) if isinstance(config, Mapping) else config,
        budget=budget,
    )
    if snapshot_id:
        task.snapshot_id = snapshot_id
    if files:
        task.files.files.extend(map(_source_file, files.items()) if isinstance(files, Mapping) else files)
    return task


def _source_file(file: tuple[str, str | bytes]) -> SourceFile:
    path, content = file
    return SourceFile(path=path, content=content.encode() if isinstance(content, str) else content)


def repair_steps_request(
    source: RepairTask | ExecutionCursor, *, request_id: str | None, include_deltas: bool, keep_running: bool
) -> RepairStepsRequest:
    """Return the request of RepairSteps."""
    request = RepairStepsRequest(include_deltas=include_deltas, keep_running=keep_running)
    if isinstance(source, RepairTask):
        request.task.CopyFrom(source)
        request.request_id = request_id_or_new(request_id)
    else:
        request.resume.CopyFrom(source)
    return request


def read_result_request(
    turn_id: str,
    call_id: str,
    *,
    offset: int,
    limit: int,
    json_pointer: str | None,
    contains: str | None,
    max_bytes: int,
) -> ReadToolResultRequest:
    """Return the request of ReadToolResult; raises ValueError if it names more than one part."""
    request = ReadToolResultRequest(turn_id=turn_id, call_id=call_id, max_bytes=max_bytes)
    if [bool(offset or limit), json_pointer is not None, contains is not None].count(True) > 1:
        raise ValueError("only one of offset and limit, json_pointer, contains can be given")
    if offset or limit:
        request.range.CopyFrom(CharacterRange(offset=offset, limit=limit))
    elif json_pointer is not None:
        request.json_pointer = json_pointer
    elif contains is not None:
        request.contains = contains
    return request


def register_request(card: Card, *, agent_id: str, ttl_s: float | None, etag: str) -> RegisterAgentRequest:
    """Return the request of RegisterAgent; text is sent unchanged, a mapping as JSON."""
    request = RegisterAgentRequest(agent_id=agent_id, etag=etag)
    if isinstance(card, AgentCard):
        request.card.CopyFrom(card)
    else:
        request.card_json = card if isinstance(card, str) else json.dumps(dict(card))
    if ttl_s is not None:
        request.ttl.CopyFrom(duration(ttl_s))
    return request


def timestamp(moment: datetime | None) -> Timestamp | None:
    """Return `moment` as a message; a time without a zone is local."""
    if moment is None:
        return None
    message = Timestamp()
    message.FromDatetime(moment.astimezone(UTC))
    return message


def duration(seconds: float) -> Duration:
    """Return `seconds` as a message, to the nearest nanosecond."""
    message = Duration()
    message.FromNanoseconds(round(seconds * 1_000_000_000))
    return message
